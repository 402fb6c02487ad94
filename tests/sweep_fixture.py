"""Made results folders of many cells, with numbers like those of a real machine: what pictures are tried on.

Rounds are drawn at random (with a fixed seed): deeper at larger budgets, to the block's end in some. A round costs what
reading the weights costs and a little for each node; tensor parallelism divides the first and adds a fixed part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import records_fixture
from records_fixture import AR, ARMS, PROMPTS, FixtureArm, make_results, record, write_cell

from analysis.plots import Picture, pictures

BUDGETS = (16, 32, 64, 128, 256, 512, 1024)
CATEGORIES = ("chat", "code", "math", "tool_calls", "long_context")
BLOCK = 15
WEIGHTS_BYTES = 17_500_000_000
GPU = {"name": "a GPU", "memory_clock_max_hz": 3.2e9, "memory_bus_bits": 6144}
DETERMINED = {"chat": 0.78, "code": 0.88, "math": 0.9, "tool_calls": 0.92, "long_context": 0.7}
_SHARES = {"draft_s": 0.17, "build_s": 0.05, "verify_s": 0.72, "commit_s": 0.06}


@dataclass(frozen=True)
class Sweep:
    """Which cells and arms there are; every combination is one cell."""

    models: Mapping[str, float]  # by name, how large: 1 reads its weights in 3.6 ms
    temperatures: tuple[float, ...] = (0.0,)
    workloads: tuple[str, ...] = ("smoke",)
    tps: tuple[int, ...] = (1,)
    concurrencies: tuple[int, ...] = (1,)
    budgets: tuple[int, ...] = BUDGETS
    chains: bool = False
    prompts: int = 10
    profiled: bool = True
    floor: bool = True

    @property
    def arms(self) -> dict[str, FixtureArm]:
        arms = {AR: FixtureArm("autoregressive", None, 1.0, 0), "dflash": FixtureArm("dflash", None, 1.0, 1)}
        for budget in self.budgets:
            arms[f"ddtree-{budget}"] = FixtureArm("ddtree", budget, 1.0, 2)
            if self.chains:
                arms[f"ddtree-{budget}-chain"] = FixtureArm("ddtree", budget, 1.0, 2)
        return arms


ONE = Sweep({"qwen3_8b": 1.0})
SCALED = Sweep({"qwen3_8b": 1.0}, (0.0, 1.0), ("gsm8k", "math500"), (1, 2, 4), (1,), (16, 256), prompts=2)
MIXED_BUDGETS = (16, 32, 64, 128)


def make_sweep(results: Path, sweep: Sweep, statuses: Mapping[str, str] | None = None) -> Path:
    """The folder; `statuses` are those of arms that are not complete, in every cell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records_fixture, "ARMS", sweep.arms)
        several = [
            (f"{category}-{number}", category)
            for category in CATEGORIES
            for number in range(max(1, sweep.prompts // 5))
        ]
        cells = product(sweep.models, sweep.temperatures, sweep.workloads, sweep.tps, sweep.concurrencies)
        for number, (model, temperature, workload, tp, concurrency) in enumerate(cells):
            one = [(f"{workload}-{number}", "math") for number in range(sweep.prompts)]
            prompts = dict(several if workload in ("smoke", "file") else one)
            patch.setattr(records_fixture, "PROMPTS", prompts)
            maker = _Maker(sweep, f"{number:012x}", sweep.models[model], temperature, tp, concurrency, number)
            settings = {"model": model, "drafter": f"z-lab/{model}-DFlash", "device": "cuda", "dtype": "bfloat16"}
            settings |= {"temperature": temperature, "workload": workload, "tp": tp, "concurrency": concurrency}
            stand = dict.fromkeys(sweep.arms, "complete") | dict(statuses or {})
            folder = write_cell(results, maker.cell_id, [maker.lines(prompts)], stand, {}, **settings)
            write_environment(folder, tp, sweep)
    return results


def write_environment(folder: Path, tp: int, sweep: Sweep) -> None:
    engine = {f"weights_bytes_rank{rank}": WEIGHTS_BYTES // tp for rank in range(tp)} | {"dtype": "bfloat16"}
    facts = {"engine": engine, "gap_tolerance": 0.001, "gpu_facts": [GPU] * tp if sweep.floor else []}
    (folder / "sittings" / "0" / "environment.json").write_text(json.dumps(facts))


@dataclass
class _Maker:
    sweep: Sweep
    cell_id: str
    size: float
    temperature: float
    tp: int
    concurrency: int
    seed: int

    def lines(self, prompts: Mapping[str, str]) -> list[dict[str, Any]]:
        made = [self.line(arm, prompt, "timed") for prompt in prompts for arm in self.sweep.arms]
        if self.sweep.profiled:
            watched = list(prompts)[:: max(1, len(prompts) // 3)]
            made += [self.line(arm, prompt, "profile") for prompt in watched for arm in self.sweep.arms]
        return made

    def line(self, arm: str, prompt: str, phase: str) -> dict[str, Any]:
        spec = self.sweep.arms[arm]
        chance = np.random.default_rng([self.seed, *arm.encode(), *prompt.encode()])
        rounds = self.rounds(spec, arm.endswith("chain"), records_fixture.PROMPTS[prompt], chance)
        made = record(arm, prompt, 0, cell_id=self.cell_id, phase=phase, rounds=rounds)
        slow = 1 + 0.3 * np.random.default_rng([self.seed, *prompt.encode()]).random()
        round_s = self.round_s(spec) * slow * (1 + 0.02 * chance.standard_normal())
        decode = round_s * len(rounds)
        made |= {"decode_s": decode, "e2e_s": decode + made["ttft_s"], "tpot_s": decode / (made["n_output"] - 1)}
        if phase == "profile":
            shares = _SHARES if spec.method != "autoregressive" else {"verify_s": 0.97, "commit_s": 0.03}
            made["stages"] = {name: shares.get(name, 0.0) * 0.97 * decode for name in _SHARES}
        return made

    def rounds(self, spec: FixtureArm, chain: bool, category: str, chance: np.random.Generator) -> list[list[Any]]:
        left, made = 119, []
        sure = DETERMINED[category] - 0.05 * self.temperature
        if spec.budget:
            sure = 1 - (1 - sure) * spec.budget ** -(0.14 if chain else 0.17)
        while left > 0:
            accepted = 0 if spec.method == "autoregressive" else min(BLOCK, int(chance.geometric(1 - sure)) - 1)
            cut = accepted + 1 > left
            made.append([left, left, "length"] if cut else [accepted, accepted + 1, ""])
            left -= made[-1][1]
        return made

    def round_s(self, spec: FixtureArm) -> float:
        rows = self.concurrency * (1 + (spec.budget or (BLOCK if spec.method == "dflash" else 0)))
        verify = max(0.0036 * self.size, 0.0000075 * self.size * rows) / self.tp + 0.0005 * math.log2(2 * self.tp)
        return verify + (0 if spec.method == "autoregressive" else 0.0011)


def mixed_sweep(results: Path) -> Path:
    """Three workloads, four budgets of two kinds of tree; rounds of mixed depth that go deeper with the budget."""
    arms = {AR: ARMS[AR], "dflash": ARMS["dflash"]}
    for budget in MIXED_BUDGETS:
        arms[f"ddtree-{budget}"] = FixtureArm("ddtree", budget, 1 + math.log2(budget) / 3, 2)
        arms[f"ddtree-{budget}-chain"] = FixtureArm("ddtree", budget, 1 + math.log2(budget) / 4, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records_fixture, "ARMS", arms)
        for number, workload in enumerate(("math", "chat", "code")):
            lines = [
                record(arm, prompt, 0, cell_id=f"c{number}", rounds=_mixed(spec, number))
                for prompt in PROMPTS
                for arm, spec in arms.items()
            ]
            write_cell(results, f"c{number}", [lines], dict.fromkeys(arms, "complete"), {}, workload=workload)
    return results


def _mixed(arm: FixtureArm, number: int) -> list[list[Any]]:
    deepest = 0 if arm.method == "autoregressive" else 3 if arm.budget is None else int(math.log2(arm.budget)) + number
    return [[d, d + 1, ""] for d in range(deepest + 1)] + [[15, 15, "length"]]


@cache
def folder(name: str) -> Path:
    """One of the folders that tests share, made when first asked for and gone with the process: `one`, `scaled`,
    `mixed` and `fixture`, that of `records_fixture`."""
    root = Path(_FOLDER.name) / name
    if name == "one":
        return make_sweep(root, ONE, {"ddtree-1024": "invalid"})
    if name == "scaled":
        return make_sweep(root, SCALED)
    return mixed_sweep(root) if name == "mixed" else make_results(root)


@cache
def drawn(name: str) -> tuple[Picture, ...]:
    """All pictures of such a folder."""
    return tuple(pictures(folder(name)))


_FOLDER = TemporaryDirectory()
