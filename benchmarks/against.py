"""The authors' published DDTree code and the reference engine side by side: same weights, prompts and device.

    python benchmarks/against.py --ddtree PATH [--model tiny] [--device cuda] [--budgets 16,64,256,1024] [--tokens 96]

PATH is a clone of github.com/liranringel/ddtree. Every prompt is answered by both with every arm, one right after the
other and each first in turn. `tokens/s` is output tokens after the first over the time after the first, of all prompts;
both times are taken from outside, around whole calls, less what each says its prefill took. Acceptance lengths leave
out each request's last round, which the two count differently. The last line is JSON.

Their code asks for flash-attn, loguru and datasets; none of them changes what it computes, so attention is torch's and
the other two are stubbed. With a shape (`--model qwen3_8b`) weights are random, each side's its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import torch
from built_in import requests
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, Method, ModelSpec, Request
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.reference import ReferenceEngine
from methods.locate import CHECKPOINTS, read_json, resolve


@dataclass
class Side:
    """One side's answers of one arm so far."""

    tokens: int = 0
    seconds: float = 0.0
    advanced: int = 0  # tokens of rounds, each request's last left out
    rounds: int = 0
    texts: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, text: tuple[int, ...], seconds: float, rounds: list[int]) -> None:
        self.tokens, self.seconds = self.tokens + len(text) - 1, self.seconds + seconds
        self.advanced, self.rounds = self.advanced + sum(rounds[:-1]), self.rounds + len(rounds[:-1])
        self.texts.append(text)

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def acceptance(self) -> float:
        return self.advanced / max(self.rounds, 1)


class OldCache(DynamicCache):
    """The cache as their code knows it: `crop` keeps so many tokens; newer versions count what to take away."""

    def crop(self, max_length: int) -> None:
        surplus = self.get_seq_length() - max_length
        if surplus > 0:
            super().crop(-surplus)


class Published:
    """Their loop on their models."""

    def __init__(self, clone: Path, target: Path, drafter: Path, device: str, dtype: torch.dtype, real: bool) -> None:
        if not (clone / "ddtree.py").is_file():
            raise SystemExit(
                f"--ddtree {clone} holds no ddtree.py: a clone of github.com/liranringel/ddtree is needed."
            )
        sys.modules.setdefault("loguru", _stub("loguru", logger=types.SimpleNamespace(info=print, warning=print)))
        names = ("load_dataset", "Features", "Sequence", "Value")
        sys.modules.setdefault("datasets", _stub("datasets", **dict.fromkeys(names)))
        sys.path.insert(0, str(clone))
        self._loops = {name: importlib.import_module(name) for name in ("dflash", "ddtree")}
        for module in cast("list[Any]", list(self._loops.values())):
            module.DynamicCache = OldCache
            if device == "cpu":
                module.cuda_time = time.perf_counter
        draft_type = importlib.import_module("model").DFlashDraftModel
        if real:
            options = {"dtype": dtype, "attn_implementation": "sdpa"}
            self._target = AutoModelForCausalLM.from_pretrained(target, **options).to(device).eval()
            self._drafter = draft_type.from_pretrained(drafter, **options).to(device).eval()
        else:
            torch.set_default_dtype(dtype)
            with torch.device(device):
                config = AutoConfig.from_pretrained(target)
                self._target = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
                config = draft_type.config_class.from_pretrained(drafter)
                config._attn_implementation = "sdpa"
                self._drafter = draft_type(config).eval()
            torch.set_default_dtype(torch.float32)

    def answer(self, budget: int | None, request: Request) -> tuple[tuple[int, ...], float, list[int]]:
        """`budget` 0 is AR, None DFlash. The text, the seconds after its first token, and what each round advanced."""
        block = 1 if budget == 0 else self._drafter.block_size
        common: dict[str, Any] = {
            "model": self._drafter,
            "target": self._target,
            "input_ids": torch.tensor([request.prompt_ids], device=self._drafter.device),
            "mask_token_id": self._drafter.mask_token_id,
            "max_new_tokens": request.max_new_tokens,
            "block_size": block,
            "stop_token_ids": list(request.stop_ids),
        }
        begin = time.perf_counter()
        if budget:
            found = self._loops["ddtree"].ddtree_generate(**common, tree_budget=budget)
        else:
            found = self._loops["dflash"].dflash_generate(**common)
        seconds = time.perf_counter() - begin - found.time_to_first_token
        text = tuple(found.output_ids[0, len(request.prompt_ids) :].tolist())
        return text, seconds, list(found.acceptance_lengths)


def _stub(name: str, **content: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(content)
    return module


def ours(engine: ReferenceEngine, method: Method, request: Request) -> tuple[tuple[int, ...], float, list[int]]:
    begin = time.perf_counter()
    found = engine.generate(method, request)
    seconds = time.perf_counter() - begin - found.ttft_s
    return found.output_ids, seconds, [one.accepted + 1 for one in found.rounds]


def prompts(model: ModelSpec, real: bool, count: int, tokens: int, context: int) -> list[Request]:
    if not real:
        vocabulary = read_json(resolve(model.target), "config.json")["vocab_size"]
        drawn = torch.randint(0, vocabulary - 1, (count, context), generator=torch.Generator().manual_seed(0))
        return [Request(f"random-{i}", tuple(row), tokens) for i, row in enumerate(drawn.tolist())]
    return requests(model, tokens, count)


def compare(published: Published, engine: ReferenceEngine, arms: list[Method], asked: list[Request]) -> dict[str, Any]:
    sides = {method.arm: (Side(), Side()) for method in arms}
    for index, request in enumerate([asked[0], *asked]):  # the first once more, to warm up
        for method in arms:
            budget = None if isinstance(method, DFlash) else method.node_budget or 0
            theirs, mine = sides[method.arm]
            turns = (0, 1) if index % 2 else (1, 0)
            for turn in turns:
                side = (theirs, mine)[turn]
                result = ours(engine, method, request) if turn else published.answer(budget, request)
                if index:
                    side.add(*result)
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ddtree", type=Path, required=True, help="a clone of github.com/liranringel/ddtree")
    parser.add_argument("--model", default="tiny", help="a built-in pair or shape")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None, help="float32 for a built-in pair, bfloat16 for a shape")
    parser.add_argument("--budgets", default="16,64,256,1024")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--context", type=int, default=512, help="tokens of a prompt made up for a shape")
    options = parser.parse_args()
    real = (CHECKPOINTS / options.model / "target").is_dir()
    kind = "builtin" if real else "shape"
    pair = f"{kind}:{options.model}/target", f"{kind}:{options.model}/drafter"
    model = ModelSpec(options.model, *pair, "checkpoint" if real else "random")
    dtype = options.dtype or ("float32" if real else "bfloat16")
    arms: list[Method] = [Autoregressive(), DFlash(), *(DDTree(int(b)) for b in options.budgets.split(","))]
    asked = prompts(model, real, options.prompts, options.tokens, options.context)
    length = max(len(request.prompt_ids) for request in asked) + options.tokens
    folders = [resolve(reference) for reference in pair]
    published = Published(options.ddtree, *folders, options.device, getattr(torch, dtype), real)
    device = cast(Literal["cpu", "cuda"], options.device)
    with ReferenceEngine(EngineSpec(model, device=device, dtype=dtype, max_length=length)) as engine:
        engine.open(arms)
        sides = compare(published, engine, arms, asked)
    report(sides, f"{options.model}, {dtype}, {options.device}, {len(asked)} prompts, {options.tokens} tokens")


def report(sides: dict[str, tuple[Side, Side]], title: str) -> None:
    table = Table(
        "arm", "tokens/s: published", "here", "here ÷ published", "acceptance length: published", "here", "same texts"
    )
    table.title = title
    rows = []
    for arm, (theirs, mine) in sides.items():
        same = sum(a == b for a, b in zip(theirs.texts, mine.texts, strict=True))
        numbers = [theirs.speed, mine.speed, mine.speed / theirs.speed, theirs.acceptance, mine.acceptance]
        cells = [f"{value:.{places}f}" for value, places in zip(numbers, (1, 1, 2, 2, 2), strict=True)]
        table.add_row(arm, *cells, f"{same} of {len(mine.texts)}")
        rows.append({"arm": arm, "published": numbers[0], "here": numbers[1], "tau": numbers[3:], "same": same})
    Console(width=120).print(table)
    print(json.dumps({"title": title, "rows": rows}))


if __name__ == "__main__":
    main()
