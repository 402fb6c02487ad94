"""Dumped rounds as data for the page: a few requests' draft trees, small enough to be carried along.

A wide tree goes in as the smaller tree that its first nodes are, with the accepted path in full; where nodes are left
out, the node above them says how many.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from analysis.records import Cell
from analysis.report.folder import Folder
from analysis.report.words import arm_name
from analysis.round_dumps import NAME, DumpedRound, Line, Source, line_at, lines, sources
from analysis.round_tree import Words, request_name, words_of
from methods.base import Refusal

ROUNDS = 60  # in the page
OF_REQUEST = 12  # of one request
NODES = 128  # of one tree, beside the accepted path
_SCANNED = 64 * 2**20  # bytes of a dump that are looked at for requests
_IMPOSSIBLE = -9999.0  # how the page, whose data has no infinity, is told of a probability of 0

_Request = tuple[str, int, str, str, int, int]


class Found(NamedTuple):
    """A request with rounds in a dump: which rounds, by their places in the file."""

    words: Words
    places: list[tuple[Path, int, int]]


@dataclass
class Rounds:
    """What goes into the page: `data` for its script, how many rounds and requests that is, and what was left out."""

    data: dict[str, Any] = field(default_factory=lambda: {"tokens": [], "requests": []})
    rounds: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return len(self.data["requests"])


def rounds(folder: Folder) -> Rounds:
    """The first rounds of the first requests with a draft, cells and arms in turn; empty where none were dumped.

    Prompts come one after the other with all their arms, so that the arms' trees can be compared.
    """
    made = Rounds()
    cells = [cell for cell in folder.cells.values() if any(cell.folder.glob(f"sittings/*/{NAME}"))]
    spelled: dict[int, int] = {}
    for number, cell in enumerate(cells):
        share = math.ceil((ROUNDS - made.rounds) / (len(cells) - number))
        if share <= 0:
            made.notes.append(f"Dumps of {len(cells) - number} more cells are not in the page.")
            break
        label = folder.labels.get((cell.results, cell.cell_id), f"cell {cell.cell_id}") if len(cells) > 1 else ""
        try:
            _add(made, cell, label, share, spelled)
        except Refusal as refusal:
            made.notes.append(str(refusal))
    return made


def _add(made: Rounds, cell: Cell, label: str, share: int, spelled: dict[int, int]) -> None:
    """One cell's requests, up to so many rounds. `spelled` knows which tokenizers have their words in the data."""
    left = share
    for request in _in_turn(_found(cell), [arm.name for arm in cell.arms]):
        if left <= 0:
            return
        shown = [line_at(*place).round() for place in request.places[: min(left, OF_REQUEST)]]
        if not any(one.nodes for one in shown):
            continue
        words = request.words
        index = spelled.setdefault(id(words), len(made.data["tokens"]))
        if index == len(made.data["tokens"]):
            made.data["tokens"].append({})
        made.data["requests"].append(_request(shown, words, label, index, len(request.places)))
        _spell(made.data["tokens"][index], shown, words)
        left -= len(shown)
        made.rounds += len(shown)


def _found(cell: Cell) -> dict[_Request, Found]:
    """The requests of a cell's dumps whose arms draft, in the order of the files, as far as these are looked at."""
    drafting = {arm.name for arm in cell.arms if arm.drafts}
    found: dict[_Request, Found] = {}
    for source in sources(cell.folder):
        for line in _first_lines(source):
            head = line.head()
            if head["arm"] in drafting:
                names = ("prompt_id", "turn", "arm", "phase", "repeat", "sitting")
                key = tuple(head[name] for name in names)
                request = found.setdefault(key, Found(words_of(None, source.target), []))
                request.places.append((line.file, line.number, line.at))
    return found


def _first_lines(source: Source) -> Iterator[Line]:
    for line in lines(source.file):
        if line.at > _SCANNED:
            return
        yield line


def _in_turn(found: dict[_Request, Found], arms: list[str]) -> Iterator[Found]:
    """Prompt by prompt as they come, arms in the order of tables."""
    prompts = {key[:2]: index for index, key in reversed(list(enumerate(found)))}
    for key in sorted(found, key=lambda key: (key[4], prompts[key[:2]], arms.index(key[2]))):
        yield found[key]


def _request(shown: list[DumpedRound], words: Words, label: str, tokens: int, whole: int) -> dict[str, Any]:
    first = shown[0]
    return {
        "name": " · ".join(filter(None, (label, first.prompt_id, arm_name(first.arm)))),
        "about": request_name(first),
        "tokens": tokens,
        "rounds": [_round(one, words) for one in shown],
        "whole": whole,
    }


def _round(one: DumpedRound, words: Words) -> dict[str, Any]:
    """A round with the rows that are shown numbered anew, in the order of the tree."""
    kept = sorted({*range(min(NODES + 1, len(one.tokens))), *one.path})
    place = {row: index for index, row in enumerate(kept)}
    hidden = [0] * len(one.tokens)
    for row in range(len(one.tokens) - 1, 0, -1):
        if row not in place:
            hidden[one.parents[row]] += 1 + hidden[row]
    return {
        "round": one.round,
        "at": one.root_at,
        "nodes": one.nodes,
        "rows": kept if kept[-1] >= len(kept) else None,
        "tokens": [one.tokens[row] for row in kept],
        "parents": [place[one.parents[row]] if row else 0 for row in kept],
        "logs": [_number(one.log_probs[row]) for row in kept],
        "path": [place[row] for row in one.path],
        "hidden": {place[row]: hidden[row] for row in kept if hidden[row]},
        "bonus": one.bonus,
        "gap": _number(one.oracle_gap),
        "linear": one.shadow_accepted,
        "text": words.decode(one.emitted),
    }


def _number(value: float | None) -> float | None:
    """A number that JSON has, with as many digits as are read."""
    if value is None or math.isnan(value):
        return None
    return round(max(min(value, -_IMPOSSIBLE), _IMPOSSIBLE), 4)


def _spell(spelling: dict[int, str], shown: list[DumpedRound], words: Words) -> None:
    """How each token that is in the data reads; nothing without a tokenizer."""
    if words.tokenizer is None:
        return
    for one in shown:
        kept = {*one.tokens[: NODES + 1], *(one.tokens[row] for row in one.path), one.bonus}
        for token in kept - spelling.keys():
            spelling[token] = _legible(words.token(token).plain.removesuffix(f" {token}"))


def _legible(quoted: str) -> str:
    """A token without the quotes, its outer blanks visible instead."""
    if not quoted.startswith('"'):
        return quoted
    text = quoted[1:-1].replace('\\"', '"')
    inner = text.strip(" ")
    before = len(text) - len(text.lstrip(" "))
    return "␣" * before + inner + "␣" * (len(text) - len(inner) - before if inner else 0)
