"""Reads round dumps (`rounds.jsonl`, written where `dump_rounds=true`) line by line: they can be larger than memory.

A line is one round: its request's keys, the tree as it was verified, the accepted path and the bonus. What follows
the last line end is still being written and is passed over. `results/README.md` describes the keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from analysis.records import KEYS, UNBOUNDED, find_cells
from methods.base import Refusal

NAME = "rounds.jsonl"
_HEAD = (*KEYS, "round", "root_at")
_TEXTS = frozenset(("cell_id", "phase", "arm", "prompt_id"))
_ROWS = ("tokens", "parents", "depths")
_NAMED = 12  # how many of the values that exist a refusal lists


class Source(NamedTuple):
    """A dump on disk and the target its cell names, empty where no `cell.json` says."""

    file: Path
    target: str

    @property
    def cell(self) -> Path:
        """The folder of the cell a dump is of; a file that lies elsewhere stands for itself."""
        file = self.file.resolve()
        return file.parents[2] if len(file.parents) > 2 and file.parents[1].name == "sittings" else file


@dataclass(frozen=True, slots=True)
class DumpedRound:
    """One round: row 0 of the tree is the root, parents come first, `path` begins with row 0.

    `log_probs` are each node's own (NaN where not recorded), `accepted` is before a cut, `oracle_gap` is None where
    the oracle did not look and `shadow_accepted` None where no linear draft was followed beside the tree.
    """

    cell_id: str
    sitting: int
    phase: str
    arm: str
    prompt_id: str
    turn: int
    repeat: int
    round: int
    root_at: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    log_probs: tuple[float, ...]
    path: tuple[int, ...]
    bonus: int
    accepted: int
    oracle_gap: float | None
    shadow_accepted: int | None

    @property
    def nodes(self) -> int:
        return len(self.tokens) - 1

    @property
    def emitted(self) -> tuple[int, ...]:
        """The accepted tokens and the bonus, before a cut."""
        return (*(self.tokens[row] for row in self.path[1:]), self.bonus)

    def children(self) -> list[list[int]]:
        """Each row's children, the drafter's first choice first."""
        found: list[list[int]] = [[] for _ in self.tokens]
        for row in range(1, len(self.tokens)):
            found[self.parents[row]].append(row)
        return found

    def path_log_probs(self) -> list[float]:
        """Each row's score: the sum of the log-probs from the root to it."""
        scores = [0.0]
        for row in range(1, len(self.tokens)):
            scores.append(scores[self.parents[row]] + self.log_probs[row])
        return scores


class Line(NamedTuple):
    """One line of a dump that is not parsed yet; `at` is where it begins in the file."""

    file: Path
    number: int
    at: int
    raw: bytes

    def head(self) -> Mapping[str, Any]:
        """The keys before the tree, without parsing the tree where they stand first."""
        cut = self.raw.find(b'"tokens"')
        try:
            found = json.loads(self.raw[:cut].rstrip().removesuffix(b",") + b"}") if cut > 0 else {}
        except (ValueError, RecursionError):
            found = {}
        if not all(key in found for key in _HEAD):
            found = self._content()
        self._check_head(found)
        return found

    def round(self) -> DumpedRound:
        """The whole round, checked to be a tree with a path in it.

        Raises:
            Refusal: it is not; it names the file and the line.
        """
        content = self._content()
        self._check_head(content)
        for key in (*_ROWS, "log_probs", "path", "bonus", "accepted"):
            self._expect(key in content, f"no {key!r}")
        lists: dict[str, Any] = {key: content[key] for key in (*_ROWS, "path")}
        for key, values in lists.items():
            self._expect(isinstance(values, list) and values and all(map(_whole, values)), f"{key!r} is not whole")
        self._expect(_whole(content["bonus"]) and _whole(content["accepted"]), "bonus or accepted is not whole")
        self._check_tree(lists, content["log_probs"], content["accepted"])
        gap, shadow = content.get("oracle_gap"), content.get("shadow_accepted")
        self._expect(gap is None or _number(gap), f"'oracle_gap' is {gap!r}")
        self._expect(shadow is None or _whole(shadow), f"'shadow_accepted' is {shadow!r}")
        rows: dict[str, Any] = {key: tuple(values) for key, values in lists.items()}
        return DumpedRound(
            **{key: content[key] for key in _HEAD},
            **rows,
            log_probs=tuple(map(_real, content["log_probs"])),
            bonus=content["bonus"],
            accepted=content["accepted"],
            oracle_gap=None if gap is None else _real(gap),
            shadow_accepted=shadow,
        )

    def _check_head(self, found: Mapping[str, Any]) -> None:
        for key in _HEAD:
            self._expect(key in found, f"no {key!r}")
            right = isinstance(found[key], str) if key in _TEXTS else _whole(found[key]) and found[key] >= 0
            self._expect(right, f"{key!r} is {found[key]!r}")

    def _check_tree(self, lists: Mapping[str, Sequence[int]], log_probs: Any, accepted: int) -> None:
        tokens, parents, depths, path = (lists[key] for key in (*_ROWS, "path"))
        numbers = isinstance(log_probs, list) and all(p is None or _number(p) for p in log_probs)
        self._expect(numbers, "'log_probs' are not numbers")
        self._expect(len(tokens) == len(parents) == len(depths) == len(log_probs), "its rows differ in length")
        self._expect(depths[0] == 0, "row 0 is not at depth 0")
        for row in range(1, len(tokens)):
            parent = parents[row]
            self._expect(0 <= parent < row, f"row {row} has parent {parent}")
            self._expect(depths[row] == depths[parent] + 1, f"row {row} is not one deeper than its parent")
        self._expect(path[0] == 0 and accepted == len(path) - 1, "its path is not from the root or not as accepted")
        for parent, row in pairwise(path):
            self._expect(0 < row < len(tokens) and parents[row] == parent, f"row {row} does not continue its path")

    def _content(self) -> dict[str, Any]:
        try:
            content = json.loads(self.raw)
        except (ValueError, RecursionError) as error:
            raise Refusal(f"{self.file}, line {self.number} is damaged ({error}).") from None
        self._expect(isinstance(content, dict), "not a JSON object")
        return dict(content)

    def _expect(self, holds: object, fault: str) -> None:
        if not holds:
            raise Refusal(f"{self.file}, line {self.number} is not a dumped round ({fault}).")


def _whole(value: Any) -> bool:
    return type(value) is int


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _real(value: float | None) -> float:
    """A number as JSON writes it: null for not a number, the largest for an infinite one."""
    if value is None:
        return math.nan
    if abs(value) >= UNBOUNDED:
        return math.inf if value > 0 else -math.inf
    return float(value)


@dataclass
class Selection:
    """Which rounds are meant, and what else was there: a refusal names it. None means all; `rounds` is a closed
    range of indices."""

    prompt: str | None = None
    arms: tuple[str, ...] = ()
    phase: str | None = None
    rounds: tuple[int, float] | None = None
    _seen: dict[str, dict[str, None]] = field(default_factory=dict, init=False)

    def takes(self, head: Mapping[str, Any]) -> bool:
        wanted = (
            ("phase", head["phase"], self.phase in (None, head["phase"])),
            ("arm", head["arm"], not self.arms or head["arm"] in self.arms),
            ("prompt", head["prompt_id"], self.prompt in (None, head["prompt_id"])),
        )
        for name, value, right in wanted:
            self._seen.setdefault(name, {})[str(value)] = None
            if not right:
                return False
        low, high = self.rounds or (0, math.inf)
        self._seen.setdefault("round", {})[str(head["round"])] = None
        return bool(low <= head["round"] <= high)

    def nothing(self, place: str | Path) -> Refusal:
        """The refusal to raise where nothing was taken: names the first choice that left nothing."""
        chosen: dict[str, tuple[str | None, ...]] = {
            "phase": (self.phase,),
            "arm": self.arms,
            "prompt": (self.prompt,),
        }
        for name, values in chosen.items():
            there = self._seen.get(name, {})
            if not there:
                return Refusal(f"{place} holds no round yet.")
            named = [value for value in values if value is not None]
            if named and not any(value in there for value in named):
                return Refusal(f"{place} has no round of {name} {_listed(named)}: there are {_listed(there)}.")
        low, high = self.rounds or (0, math.inf)
        end = "the end" if high == math.inf else f"{high}"
        wanted = f"round {low}" if low == high else f"rounds {low} to {end}"
        last = max(map(int, self._seen.get("round", {"0": None})))
        return Refusal(f"{place} has no {wanted} of what is chosen: its last round is {last}.")


def _listed(values: Iterable[str]) -> str:
    names = list(values)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def sources(place: str | Path) -> list[Source]:
    """The dumps of a file, a sitting's folder, a cell's folder, a results folder or a folder of several.

    Raises:
        Refusal: there is nothing of that name, or no dump in it.
    """
    place = Path(place)
    if place.is_file():
        return [Source(place, _target(place))]
    if not place.is_dir():
        raise Refusal(f"{place} does not exist: a {NAME} or a results folder is needed.")
    if (place / NAME).is_file():
        return [Source(place / NAME, _target(place / NAME))]
    found = []
    for cell in find_cells(place):
        files = sorted(cell.folder.glob(f"sittings/*/{NAME}"), key=lambda file: int(file.parent.name))
        found += [Source(file, str(cell.settings.get("target", ""))) for file in files]
    if not found:
        raise Refusal(f"{place} holds no round dumps: a run with dump_rounds=true writes them.")
    return found


def _target(file: Path) -> str:
    """The target that the cell of a `cells/<id>/sittings/<k>/rounds.jsonl` names, if the file still lies there."""
    try:
        content = json.loads((file.resolve().parents[2] / "cell.json").read_text(encoding="utf-8"))
        return str(content["settings"]["target"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def lines(file: Path) -> Iterator[Line]:
    """A dump's lines, one in memory at a time; a last one without its end is passed over."""
    at = 0
    with file.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            if raw.endswith(b"\n") and raw.strip():
                yield Line(file, number, at, raw)
            at += len(raw)


def line_at(file: Path, number: int, at: int) -> Line:
    """The line that begins at a place found before."""
    with file.open("rb") as stream:
        stream.seek(at)
        return Line(file, number, at, stream.readline())
