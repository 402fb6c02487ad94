"""Where two answers to one prompt have rounds in common: they start at the same place of the same text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from methods.base import Generation


class Meeting(NamedTuple):
    """What a round accepted in one answer and in the other, and whether the texts part inside it."""

    one: int
    other: int
    parted: bool


def meetings(one: Generation, other: Generation) -> Iterator[Meeting]:
    """The rounds of both, but for those that the output's end cut, as far as the texts are the same."""
    shorter = min(len(one.output_ids), len(other.output_ids))
    pairs = zip(one.output_ids, other.output_ids, strict=False)
    same = next((place for place, (a, b) in enumerate(pairs) if a != b), shorter)
    theirs = dict(_starts(other))
    for place, accepted in _starts(one):
        if place <= same and place in theirs:
            deeper = max(accepted, theirs[place])
            yield Meeting(accepted, theirs[place], same < min(shorter, place + deeper + 1))


def _starts(generation: Generation) -> Iterator[tuple[int, int]]:
    """Each uncut round's place in the output and what it accepted; the first token is the prompt's own."""
    place = 1
    for one in generation.rounds:
        if not one.cut:
            yield place, one.accepted
        place += one.emitted
