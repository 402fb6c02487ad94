"""The workloads by name: the five built-in types, `smoke` and `full`, which mix them, and `file`, anyone's JSONL.

`full` asks every prompt of every type, `smoke` the first k of each, k the least number that makes at least 12 in all;
both go type by type in turn: chat, code, math, tool calls, long context, chat, …
"""

from __future__ import annotations

import math
from pathlib import Path

from methods.base import Refusal
from workloads import jsonl
from workloads.base import Prompt, Workload

BUILTIN_FOLDER = Path(__file__).parent / "builtin"
TYPES = ("chat", "code", "math", "tool_calls", "long_context")
SMOKE = "smoke"
FULL = "full"
FILE = "file"
SMOKE_PROMPTS = 12


def names() -> tuple[str, ...]:
    """The names `load` knows, `file` aside."""
    return (SMOKE, *TYPES, FULL)


def load(name: str, path: str | Path | None = None) -> Workload:
    """The workload of this name with its warm-up prompts.

    Args:
        name: one of `names()`, or `file`.
        path: the JSONL file of `file`, in the format of `workloads.jsonl`; for no other name.

    Raises:
        Refusal: an unknown name, a path too many or too few, or a damaged file.
    """
    if name not in (*names(), FILE):
        raise Refusal(f"workload={name} is not known: one of {', '.join((*names(), FILE))} is accepted.")
    if (path is not None) != (name == FILE):
        if path is None:
            raise Refusal("workload=file needs workload.path: a JSONL file of prompts.")
        raise Refusal(f"workload.path={path} is not accepted with workload={name}: it goes with workload=file.")
    warmup = _builtin("warmup")
    if path is not None:
        return _outside(name, jsonl.read(Path(path)), warmup)
    if name in (SMOKE, FULL):
        suites = [_builtin(kind) for kind in TYPES]
        everything = len(suites) * max(map(len, suites))
        return Workload(name, interleave(suites, SMOKE_PROMPTS if name == SMOKE else everything), warmup)
    return Workload(name, _builtin(name), warmup)


def interleave(suites: list[tuple[Prompt, ...]], at_least: int = SMOKE_PROMPTS) -> tuple[Prompt, ...]:
    """The first k prompts of every suite in turn, k the least that makes `at_least` in all if none runs short."""
    each = math.ceil(at_least / len(suites))
    return tuple(suite[i] for i in range(each) for suite in suites if i < len(suite))


def _builtin(name: str) -> tuple[Prompt, ...]:
    return jsonl.read(BUILTIN_FOLDER / f"{name}.jsonl")


def _outside(name: str, prompts: tuple[Prompt, ...], warmup: tuple[Prompt, ...]) -> Workload:
    """A user's prompts, without the warm-up prompts that they happen to ask too."""
    ids, asked = {p.id for p in prompts}, {p.messages for p in prompts}
    return Workload(name, prompts, tuple(w for w in warmup if w.id not in ids and w.messages not in asked))
