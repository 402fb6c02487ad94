"""Where two runs part: `python -m analysis rounds compare A B`.

Requests are paired by arm, phase, prompt, turn and repeat, and followed round by round until the root's position, the
tree, the accepted path or the bonus differ. A first pass over the dumps notes where each round's line begins; after
that one round of each side is in memory at a time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.columns import count
from analysis.round_dumps import DumpedRound, Selection, Source, line_at, lines, sources
from analysis.round_tree import INSPECTED, SHOWN, Words, facts, gap, picture, request_name, words_of
from methods.base import Refusal

_LISTED = 12  # requests that part, in the list
_MARKED = 12  # nodes of one tree only that are shown in a wide tree
_BEFORE = 80  # characters of the output before the round

Request = tuple[str, str, str, str, int, int]  # cell, arm, phase, prompt, turn, repeat


class Place(NamedTuple):
    """Where a round's line is."""

    round: int
    file: Path
    number: int
    at: int


@dataclass
class Side:
    """One of the two: its rounds' places by request, each request from the last sitting that answered it."""

    name: str
    places: dict[Request, list[Place]]
    target: str

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(arm for _, arm, *_ in self.places))

    def read(self, request: Request) -> Iterator[DumpedRound]:
        for place in sorted(self.places[request]):
            yield line_at(place.file, place.number, place.at).round()


@dataclass
class Course:
    """How two answers to one request run beside each other, up to where their rounds part and beyond."""

    a: Request
    parting: tuple[DumpedRound | None, DumpedRound | None] | None = None
    faults: list[tuple[str, str]] = field(default_factory=list)  # what differs there: a name and a sentence
    alike: int = 0  # rounds before it
    drift: float = 0.0  # largest difference of a log-prob in those
    outputs: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    before: int = 0  # output tokens up to the root of the round in which they part

    @property
    def tokens_part(self) -> int | None:
        """The first output token that differs, None where one output begins with the other."""
        pairs = enumerate(zip(*self.outputs, strict=False))
        return next((index for index, (a, b) in pairs if a != b), None)

    def add(self, a: DumpedRound | None, b: DumpedRound | None, words: Words) -> None:
        if self.parting is None:
            self.before = len(self.outputs[0])
            self.faults = differences(a, b, words)
            if self.faults:
                self.parting = a, b
            elif a is not None and b is not None:
                self.alike += 1
                self.drift = max(self.drift, _drift(a.log_probs, b.log_probs))
        for one, output in zip((a, b), self.outputs, strict=True):
            if one is not None:
                output.extend(one.emitted if output else (one.tokens[0], *one.emitted))


def differences(a: DumpedRound | None, b: DumpedRound | None, words: Words) -> list[tuple[str, str]]:
    """What differs between two rounds, in the order in which a round comes about; log-probs alone do not count."""
    if a is None or b is None:
        return [("end", f"{'A' if a is None else 'B'} has no such round")]
    found = []
    if a.root_at != b.root_at:
        found.append(("root position", f"{a.root_at} against {b.root_at}"))
    rows = range(min(len(a.tokens), len(b.tokens)))
    row = next((row for row in rows if a.tokens[row] != b.tokens[row]), None)
    if row is not None:
        name = "tree tokens" if row else "root token"
        found.append((name, f"row {row} is {_against(words, a.tokens[row], b.tokens[row])}"))
    row = next((row for row in rows[1:] if a.parents[row] != b.parents[row]), None)
    if row is not None:
        found.append(("parents", f"row {row} is below row {a.parents[row]} against row {b.parents[row]}"))
    if a.nodes != b.nodes:
        alike = "" if found else f", the first {min(a.nodes, b.nodes)} alike"
        found.append(("tree size", f"{a.nodes} against {count(b.nodes, 'node')}{alike}"))
    if a.path != b.path:
        paths = (" ".join(map(str, one.path)) for one in (a, b))
        found.append(("path", "rows " + " against ".join(paths)))
    if a.bonus != b.bonus:
        found.append(("bonus", _against(words, a.bonus, b.bonus)))
    return found


def _against(words: Words, a: int, b: int) -> str:
    return f"{words.token(a).plain} against {words.token(b).plain}"


def _drift(a: Sequence[float], b: Sequence[float]) -> float:
    return max((abs(x - y) for x, y in zip(a, b, strict=True) if x != y and not math.isnan(x - y)), default=0.0)


def compare_rounds(
    console: Console,
    a: str | Path,
    b: str | Path,
    *,
    prompt: str | None = None,
    arms: Sequence[str] = (),
    phase: str | None = None,
    tokenizer: str | Path | None = None,
    full: bool = False,
) -> bool:
    """Print where two dumps part: the first request that does in full, the others in a list.

    Args:
        console: where to.
        a: a `rounds.jsonl` or a folder with some.
        b: the other.
        prompt: this prompt only.
        arms: one arm of both, or one of `a` and one of `b`; else those of the same name.
        phase: the requests of this phase only.
        tokenizer: a folder with a tokenizer.json instead of the target's own.
        full: print whole trees and the whole list.

    Returns:
        Whether they are identical: the same requests, with the same rounds.

    Raises:
        Refusal: no dump, a damaged line, or nothing in both to compare.
    """
    if len(arms) > 2:
        raise Refusal(f"--arm is given {len(arms)} times: once for both sides, or twice, A's then B's, is accepted.")
    left, right = _sides((a, b), prompt, arms, phase)
    arm_of = _paired_arms(left, right, arms)
    pairs = {one: (one[0], arm_of[one[1]], *one[2:]) for one in left.places if one[1] in arm_of}
    shared = {one: other for one, other in pairs.items() if other in right.places}
    if not shared:
        raise Refusal(f"{a} and {b} have no request in common: the same prompts of the same cell are needed.")
    words = words_of(tokenizer, left.target or right.target)
    _print_sides(console, left, right, arm_of)
    tally = Tally()
    for one, other in shared.items():
        course = Course(one)
        for rounds in zip_longest(left.read(one), right.read(other)):
            course.add(*rounds, words)
        if tally.add(course):
            _print_parting(console, course, words, full)
    lonely = len(pairs) - len(shared), sum(one[1] in arm_of.values() for one in right.places) - len(shared)
    tally.print(console, lonely, full)
    return not tally.parted and not any(lonely)


def _sides(
    places: tuple[str | Path, str | Path], prompt: str | None, arms: Sequence[str], phase: str | None
) -> list[Side]:
    found = [sources(place) for place in places]
    one_cell = all(len({source.cell for source in side}) == 1 for side in found)
    sides = []
    for index, (place, side) in enumerate(zip(places, found, strict=True)):
        chosen = Selection(prompt=prompt, arms=tuple(arms[-1:] if index else arms[:1]), phase=phase)
        sides.append(_index(place, side, chosen, one_cell))
    return sides


def _index(place: str | Path, side: Sequence[Source], chosen: Selection, one_cell: bool) -> Side:
    """Where each request's rounds are; the cell tells requests apart only where a side has several."""
    places: dict[Request, list[Place]] = {}
    owner: dict[Request, tuple[Path, int]] = {}
    for source in side:
        for line in lines(source.file):
            head = line.head()
            if not chosen.takes(head):
                continue
            cell = "" if one_cell else str(head["cell_id"])
            request = (cell, head["arm"], head["phase"], head["prompt_id"], head["turn"], head["repeat"])
            folder, sitting = owner.get(request, (source.cell, -1))
            if folder != source.cell:
                raise Refusal(f"{place} has cell {cell} more than once: name one of {folder} and {source.file}.")
            if head["sitting"] > sitting:
                owner[request], places[request] = (folder, head["sitting"]), []
            if head["sitting"] >= sitting:
                places[request].append(Place(head["round"], source.file, line.number, line.at))
    if not places:
        raise chosen.nothing(place)
    return Side(str(place), places, next((source.target for source in side if source.target), ""))


def _paired_arms(left: Side, right: Side, asked: Sequence[str]) -> dict[str, str]:
    """Which arm of the right side each arm of the left is compared with."""
    if asked:
        return {asked[0]: asked[-1]}
    same = {arm: arm for arm in left.arms if arm in right.arms}
    if not same and len(left.arms) == len(right.arms) == 1:
        return {left.arms[0]: right.arms[0]}
    if not same:
        there = f"{left.name} has {', '.join(left.arms)}, {right.name} has {', '.join(right.arms)}"
        raise Refusal(f"no arm is in both: {there}; name one of each with --arm and --arm.")
    return same


def _print_sides(console: Console, left: Side, right: Side, arm_of: Mapping[str, str]) -> None:
    for letter, side in (("A", left), ("B", right)):
        console.print(Text.assemble((f"{letter}  ", "bold"), side.name))
    paired = [a if a == b else f"{a} with {b}" for a, b in arm_of.items()]
    said = f"arms compared: {', '.join(paired)}"
    for letter, arms in (("A", set(left.arms) - set(arm_of)), ("B", set(right.arms) - set(arm_of.values()))):
        said += f"; only in {letter}: {', '.join(sorted(arms))}" if arms else ""
    console.print(Text(said + "\n", "dim"))


def _print_parting(console: Console, course: Course, words: Words, full: bool) -> None:
    """The first round in which two answers part: how, what stood before it, and both trees."""
    assert course.parting is not None
    a, b = course.parting
    one = a or b
    assert one is not None
    console.print(Text(f"{_name(course.a)} parts in round {one.round}", "bold"))
    for name, fault in course.faults:
        console.print(Text.assemble((f"  {name}: ", "bold"), fault))
    console.print(Text(f"  {_alike(course)}; {_outputs(course, words)}", "dim"))
    before = course.outputs[0][: course.before]
    if before:
        console.print(Text.assemble(("  output before it: ", "dim"), words.passage(before, _BEFORE)))
    for letter, mine, others in (("A", a, b), ("B", b, a)):
        if mine is None:
            console.print(Text(f"\n{letter}  no such round", "bold"))
            continue
        only = [] if others is None else _only_here(mine, others)
        console.print(Text(f"\n{letter}  {request_name(mine)} · round {mine.round}", "bold"))
        console.print(Text(facts(mine), "dim"))
        console.print(picture(mine, words, shown=None if full else SHOWN, only=only, also=only[:_MARKED]))
    console.print()


def _only_here(mine: DumpedRound, others: DumpedRound) -> list[int]:
    """The nodes whose tokens from the root on are no path of the other tree."""
    there = set(_paths(others))
    return [row for row, path in enumerate(_paths(mine)) if row and path not in there]


def _paths(one: DumpedRound) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = [()]
    for row in range(1, len(one.tokens)):
        paths.append((*paths[one.parents[row]], one.tokens[row]))
    return paths


def _name(request: Request) -> str:
    cell, arm, phase, prompt, turn, repeat = request
    said = [*([f"cell {cell}"] if cell else []), arm, prompt, f"turn {turn}", f"repeat {repeat}"]
    return " · ".join([*said, *([phase] if phase != INSPECTED else [])])


def _alike(course: Course) -> str:
    if not course.alike:
        return "no round before it"
    return f"{count(course.alike, 'round')} before it alike, {_within(course.drift)}"


def _within(drift: float) -> str:
    return f"log-probs within {gap(drift)}" if drift else "log-probs equal"


def _outputs(course: Course, words: Words) -> str:
    index = course.tokens_part
    if index is None:
        return f"the outputs agree in the {min(map(len, course.outputs))} tokens that both have"
    tokens = (output[index] for output in course.outputs)
    return f"the outputs part at token {index}: {_against(words, *tokens)}"


@dataclass
class Tally:
    """What came of the requests compared."""

    identical: int = 0
    alike: int = 0
    drift: float = 0.0
    parted: int = 0
    listed: list[tuple[str, str, str, str]] = field(default_factory=list)
    how: Counter[str] = field(default_factory=Counter)

    def add(self, course: Course) -> bool:
        """Count one; whether it is the first that parts."""
        self.alike += course.alike
        self.drift = max(self.drift, course.drift)
        if course.parting is None:
            self.identical += 1
            return False
        self.parted += 1
        self.how[course.faults[0][0]] += 1
        at, agree = course.tokens_part, min(map(len, course.outputs))
        names = ", ".join(name for name, _ in course.faults)
        output = f"agree in {agree} tokens" if at is None else f"part at token {at}"
        self.listed.append((_name(course.a), str(course.alike), names, output))
        return self.parted == 1

    def print(self, console: Console, lonely: tuple[int, int], full: bool) -> None:
        if self.parted > 1:
            self._print_list(console, full)
        compared = count(self.parted + self.identical, "request")
        said = f"{compared} compared: {self.identical} identical, {self.parted} part"
        if self.parted > 1:
            said += " (first by " + ", ".join(f"{name} {n}" for name, n in self.how.most_common()) + ")"
        for letter, missing in zip("AB", lonely, strict=True):
            said += f"; only in {letter}: {missing}" if missing else ""
        console.print(Text(said + ".", "bold"))
        if self.alike:
            console.print(Text(f"{count(self.alike, 'round')} alike, {_within(self.drift)}.", "dim"))

    def _print_list(self, console: Console, full: bool) -> None:
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for title, side in (("request", "left"), ("round", "right"), ("what differs", "left"), ("outputs", "left")):
            grid.add_column(title, justify="right" if side == "right" else "left")
        shown = self.listed if full else self.listed[:_LISTED]
        for row in shown:
            grid.add_row(*map(Text, row))
        console.print(grid)
        if len(shown) < len(self.listed):
            console.print(Text(f"… {count(len(self.listed) - len(shown), 'more request')}", "dim"))
        console.print()
