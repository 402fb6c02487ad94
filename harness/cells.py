"""Cells and arms: what a command's jobs come to once those that only differ in the method are gathered.

A cell's id is a hash of what the cell consumes; labels and the method stay out of it. An arm is identified by
its method's class and settings, so that a budget asked of a method without one adds nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any, Literal, cast

from harness.targets import target_of
from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, Inspect, Method, ModelSpec, Refusal, Sampling, Weights
from workloads.splits import part_name

BASELINE = Autoregressive()


def digest(value: object, length: int = 12) -> str:
    """A short hash of plain data: equal data, equal hash, on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


@dataclass(frozen=True)
class CellSettings:
    """Everything a cell consumes, and its labels `engine` and `model`, which name but do not distinguish.

    A setting with a default here is part of the id only away from it, so that one added later leaves ids as they are.
    """

    engine_target: str
    target: str
    drafter: str
    weights: Weights
    workload: str
    workload_path: str | None
    tp: int
    concurrency: int
    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    seed: int
    repeats: int
    device: Literal["cpu", "cuda"]
    dtype: str
    engine: str = field(compare=False)
    model: str = field(compare=False)
    oracle_rate: float = 0.0
    shadow_linear: bool = False
    dump_rounds: bool = False
    replay: int = 0
    split: str = "all"
    limit: int | None = None
    context: int | None = None
    context_path: str | None = None
    system: str | None = None
    enable_thinking: bool = False
    skip_bad: bool = False
    suite: str | None = None
    engine_python: str | None = None
    engine_args: str | None = None  # JSON
    engine_urls: str | None = None  # JSON
    simulate_acceptance: float | None = None
    request_rate: float | None = None
    burstiness: float = 1.0

    @cached_property
    def cell_id(self) -> str:
        consumed = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        defaults = {f.name: f.default for f in fields(self)}
        return digest({name: value for name, value in consumed.items() if value != defaults[name]})

    @property
    def own_suite(self) -> dict[str, Any] | None:
        """The definition of the suite, kept as JSON, where it is not one of conf/workload/."""
        return None if self.suite is None else cast(dict[str, Any], json.loads(self.suite))

    @property
    def inspect(self) -> Inspect:
        return Inspect(self.oracle_rate, self.shadow_linear, self.dump_rounds)

    @property
    def workload_name(self) -> str:
        """The workload as tables call it: a part of one, or one asked in another way, never by the name alone."""
        ways = [f"context={self.context}"] if self.context is not None else []
        ways += [word for word, said in (("system", self.system), ("thinking", self.enable_thinking)) if said]
        return part_name(self.workload, self.split, self.limit, *ways)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.top_k, self.seed)

    def engine_spec(self, max_length: int) -> EngineSpec:
        model = ModelSpec(self.model, self.target, self.drafter, self.weights)
        args = tuple(json.loads(self.engine_args).items()) if self.engine_args else ()
        sizes = (self.tp, self.device, self.dtype, max_length, self.seed, self.replay)
        return EngineSpec(
            model,
            *sizes,
            python=self.engine_python,
            args=args,
            concurrency=self.concurrency,
            urls=tuple(json.loads(self.engine_urls).items()) if self.engine_urls else (),
            simulate_acceptance=self.simulate_acceptance,
        )

    def __str__(self) -> str:
        words = [self.model, self.workload_name, f"tp={self.tp}", f"T={self.temperature:g}", self.engine, self.device]
        words += [f"c={self.concurrency}"] if self.concurrency > 1 else []
        words += [f"{self.request_rate:g}/s"] if self.request_rate is not None else []
        return " ".join(words)


@dataclass(frozen=True)
class Arm:
    """One method with its settings."""

    method: Method

    @property
    def name(self) -> str:
        return self.method.arm

    @property
    def settings(self) -> dict[str, Any]:
        """What identifies the arm, as its YAML would say it; `asdict` since a setting may be nested."""
        return {"_target_": target_of(self.method), **asdict(cast(Any, self.method))}

    @property
    def defaults(self) -> dict[str, Any]:
        """The settings that have a default, at it."""
        found = {}
        for f in fields(cast(Any, self.method)):
            value: Any = f.default
            if f.default_factory is not MISSING:
                value = f.default_factory()
            if value is not MISSING:
                found[f.name] = asdict(cast(Any, value)) if is_dataclass(value) else value
        return found

    @property
    def identity(self) -> dict[str, Any]:
        """The settings away from their defaults, so that one added to a method later leaves stored arms as they are."""
        defaults = self.defaults
        return {k: v for k, v in self.settings.items() if k not in defaults or digest(defaults[k]) != digest(v)}

    def is_stored_as(self, settings: Mapping[str, Any]) -> bool:
        """Whether an arm on disk with these settings is this one; JSON makes lists of tuples."""
        return digest({**self.defaults, **settings}) == digest(self.settings)


@dataclass(frozen=True)
class Cell:
    """A point of the sweep and its arms: autoregressive decoding first, then as asked."""

    settings: CellSettings
    arms: tuple[Arm, ...]

    @property
    def cell_id(self) -> str:
        return self.settings.cell_id

    @property
    def methods(self) -> tuple[Method, ...]:
        return tuple(arm.method for arm in self.arms)


def gather(jobs: Iterable[tuple[CellSettings, Method]]) -> tuple[Cell, ...]:
    """The cells behind the jobs, in the order asked, each with every arm once and AR always."""
    cells: dict[CellSettings, dict[str, Arm]] = {}
    for settings, method in jobs:
        arms = cells.setdefault(settings, {BASELINE.arm: Arm(BASELINE)})
        arm = Arm(method)
        if not re.fullmatch(r"[\w.+-]+", arm.name):
            raise Refusal(f"the arm name {arm.name!r} is not accepted: letters, digits and . _ + - are.")
        known = arms.setdefault(arm.name, arm)
        if known.settings != arm.settings:
            raise Refusal(
                f"two arms of one cell are both called {arm.name!r}: {known.settings} and {arm.settings}; "
                "a method's `arm` has to name the settings that differ."
            )
    return tuple(Cell(settings, tuple(arms.values())) for settings, arms in cells.items())


def command_hash(cells: Iterable[Cell]) -> str:
    """Names a command's results folder: the same cells and arms in any order are the same command."""
    return digest(sorted([cell.cell_id, *sorted(digest(arm.identity) for arm in cell.arms)] for cell in cells))
