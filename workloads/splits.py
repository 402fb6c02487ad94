"""Parts of a workload: a development and a test half, and a cap, both by rules that a prompt's id and category decide.

Budgets are chosen on `dev` and reported on `test`. Within each category the prompts are put in a fixed order, by a
hash of their ids; the first half (rounded down) is `dev`, the rest `test`. So the halves are the same on every machine
and for every seed, each has its half of every category, and a prompt added later moves at most one other prompt, of
its own category, across the middle. A cap of n takes the categories in turn, in the order of their first prompts,
and of each the next prompt in another such order, until there are n; a larger cap holds every smaller one. A part
keeps the order of the whole, and has a name of its own, so that it is never taken for the published set.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, Protocol, TypeVar, get_args

from methods.base import Refusal
from workloads.base import Workload

Split = Literal["all", "dev", "test"]
SPLITS: tuple[str, ...] = get_args(Split)


class Sorted(Protocol):
    """What the rules know of a prompt."""

    @property
    def id(self) -> str: ...

    @property
    def category(self) -> str: ...


P = TypeVar("P", bound=Sorted)


def part(workload: Workload, split: str = "all", limit: int | None = None) -> Workload:
    """The split of a workload, capped at `limit` prompts, under its own name.

    Raises:
        Refusal: there is no such split, the limit is below 1, or no prompt is left.
    """
    if split not in SPLITS:
        raise Refusal(f"workload.split={split} is not accepted: {', '.join(SPLITS[:-1])} or {SPLITS[-1]} is.")
    if limit is not None and limit < 1:
        raise Refusal(f"workload.limit={limit} is not accepted: an integer of at least 1 or null is.")
    kept = {p.id for p in workload.prompts}
    if split != "all":
        dev = dev_half(workload.prompts)
        kept = dev if split == "dev" else kept - dev
    if not kept:
        raise Refusal(
            f"workload.split={split} is not accepted: no category of {workload.name} has two prompts to divide."
        )
    if limit is not None:
        turns = _by_category([p for p in workload.prompts if p.id in kept], "limit")
        in_turn = (p for one_each in itertools.zip_longest(*turns) for p in one_each if p is not None)
        kept = {p.id for p in itertools.islice(in_turn, limit)}
    name = part_name(workload.name, split, limit)
    return replace(workload, name=name, prompts=tuple(p for p in workload.prompts if p.id in kept))


def dev_half(prompts: Iterable[Sorted]) -> set[str]:
    """The ids of those prompts that are `dev`."""
    return {p.id for of_one in _by_category(prompts, "split") for p in of_one[: len(of_one) // 2]}


def part_name(name: str, split: str = "all", limit: int | None = None, *more: str) -> str:
    """What a part is called, as in `gsm8k:dev:limit=32`; `more` are other ways in which its prompts differ."""
    words = [*([split] if split != "all" else []), *([f"limit={limit}"] if limit is not None else []), *more]
    return ":".join([name, *words])


def _by_category(prompts: Iterable[P], rule: str) -> list[list[P]]:
    """The prompts of each category in this rule's order, categories in the order of their first prompts."""
    found: dict[str, list[P]] = {}
    for prompt in prompts:
        found.setdefault(prompt.category, []).append(prompt)
    return [
        sorted(of_one, key=lambda p: hashlib.sha256(f"{rule}:{p.id}".encode()).digest()) for of_one in found.values()
    ]
