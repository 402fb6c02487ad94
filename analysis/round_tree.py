"""One round as a picture: the draft tree in branches, the accepted path and the bonus marked.

    ● " answer" 842            root
    ├─● " is" 318     −0.11    −0.11
    │ ├─● " 4" 219    −1.40    −1.51
    │ │ └─★ "2" 220            bonus
    │ └─○ " the" 279  −0.52    −0.63   … 3 more below
    └─○ " was" 401    −2.96    −2.96

Siblings stand as the tree has them, the drafter's first choice first. A wide tree is shown as the smaller tree that
its first rows are, with the accepted path in full; each row says how many of the nodes below it are left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table
from rich.text import Text

from analysis.columns import NOTHING, count
from analysis.round_dumps import DumpedRound
from analysis.show import tokenizer_of
from methods.base import Refusal

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SHOWN = 20  # nodes of a wide tree that are shown beside the accepted path
INSPECTED = "profile"  # the phase whose rounds a run dumps
_LONGEST = 28  # characters of one token
_PARTIAL = "\ufffd"  # what a token that is part of a character decodes to
ACCEPTED = "bold green"
BONUS = "bold magenta"
ONLY = "bold yellow"


class Words:
    """Token ids as a person reads them: the text in quotes and the id, or the id alone without a tokenizer.

    A token that is part of a character has no text: its spelling in the vocabulary stands in ‹›.
    """

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self.tokenizer = tokenizer

    def token(self, token: int, style: str = "") -> Text:
        if self.tokenizer is None:
            return Text(str(token), style)
        text = self.tokenizer.decode([token], skip_special_tokens=False)
        shown = quoted(text, _LONGEST)
        if _PARTIAL in text or not text:
            spelling = self.tokenizer.id_to_token(token)
            if spelling is None:  # padded vocabularies have ids without a token
                return Text(str(token), style)
            shown = f"‹{quoted(spelling, _LONGEST)[1:-1]}›"
        return Text.assemble((shown, style), (f" {token}", "dim"))

    def decode(self, tokens: Sequence[int]) -> str:
        """Tokens that follow each other as text, or their ids."""
        if self.tokenizer is None:
            return " ".join(map(str, tokens))
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=False))

    def passage(self, tokens: Sequence[int], longest: int) -> str:
        """Tokens that follow each other; the end of them where they are too long."""
        if self.tokenizer is None:
            kept = tokens[-(longest // 6) :]
            return ("… " if len(kept) < len(tokens) else "") + self.decode(kept)
        text = self.decode(tokens)
        return quoted(text if len(text) <= longest else "…" + text[-longest:])


def quoted(text: str, longest: int | None = None) -> str:
    """Text in quotes on one line, whatever is in it, shortened at its end."""
    if longest is not None and len(text) > longest:
        text = text[: longest - 1] + "…"
    return "".join(c if c.isprintable() else _escaped(c) for c in json.dumps(text, ensure_ascii=False))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def words_of(tokenizer: str | Path | None, target: str) -> Words:
    """The words of the tokenizer asked for, else of the target's own where it is on this machine.

    Raises:
        Refusal: there is no `tokenizer.json` where one was asked for, or it cannot be read.
    """
    return _target_words(target) if tokenizer is None else _asked_words(Path(tokenizer))


@lru_cache(maxsize=8)
def _target_words(target: str) -> Words:
    return Words(tokenizer_of(target) if target else None)


@lru_cache(maxsize=8)
def _asked_words(place: Path) -> Words:
    from tokenizers import Tokenizer

    file = place.expanduser()
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise Refusal(f"--tokenizer {place} is not accepted: a folder with a tokenizer.json is.")
    try:
        return Words(Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises plain exceptions
        raise Refusal(f"--tokenizer {place} is not accepted: {file} cannot be read ({error}).") from None


class Branch(NamedTuple):
    """One line of a picture: the row it is for (None for the bonus), its branches, and how many nodes below it are
    left out."""

    row: int | None
    stem: str
    hidden: int


def branches(one: DumpedRound, shown: int | None = SHOWN, also: Collection[int] = ()) -> list[Branch]:
    """The lines of a tree's picture, the bonus below the last accepted row.

    Args:
        one: the round.
        shown: how many of the first nodes are in it beside the accepted path, None for all.
        also: further rows that must be in it, with their ancestors.
    """
    kept, hidden = _kept(one, shown, also)
    children = one.children()
    found: list[Branch] = []
    ahead: list[tuple[int | None, str, str]] = [(0, "", "")]  # a row, its stem, the stem its children continue
    while ahead:
        row, stem, onward = ahead.pop()
        found.append(Branch(row, stem, 0 if row is None else hidden[row]))
        if row is None:
            continue
        below: list[int | None] = [child for child in children[row] if child in kept]
        if row == one.path[-1]:
            below.append(None)
        for place, child in enumerate(reversed(below)):
            last = place == 0
            ahead.append((child, onward + ("└─" if last else "├─"), onward + ("  " if last else "│ ")))
    return found


def _kept(one: DumpedRound, shown: int | None, also: Collection[int]) -> tuple[set[int], list[int]]:
    """The rows to show, and for each how many nodes below it are not."""
    kept = set(range(len(one.tokens))) if shown is None else {*range(min(shown + 1, len(one.tokens))), *one.path}
    for row in also:
        while row not in kept:
            kept.add(row)
            row = one.parents[row]
    hidden = [0] * len(one.tokens)
    for row in range(len(one.tokens) - 1, 0, -1):  # children before their parents
        if row not in kept:
            hidden[one.parents[row]] += 1 + hidden[row]
            hidden[row] = 0
    return kept, hidden


def picture(
    one: DumpedRound,
    words: Words,
    *,
    shown: int | None = SHOWN,
    only: Collection[int] = (),
    also: Collection[int] = (),
) -> Table:
    """A round's tree with each node's own log-prob and its path's.

    Args:
        one: the round.
        words: how tokens read.
        shown: see `branches`.
        only: rows to mark as in this tree only.
        also: see `branches`.
    """
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    grid.add_column("draft tree", no_wrap=True, overflow="ellipsis")
    grid.add_column("log-prob", justify="right", no_wrap=True)
    grid.add_column("of path", justify="right", no_wrap=True)
    grid.add_column("", no_wrap=True)
    scores, path, marked = one.path_log_probs(), set(one.path), set(only)
    for branch in branches(one, shown, also):
        label = Text(branch.stem, "dim")
        if branch.row is None:
            label.append("★ ", BONUS).append_text(words.token(one.bonus, BONUS))
            grid.add_row(label, "", "", Text("bonus, the target's own", BONUS))
            continue
        row = branch.row
        style = ACCEPTED if row in path else ONLY if row in marked else ""
        label.append("● " if row in path else "○ ", style).append_text(words.token(one.tokens[row], style))
        own, total = ("", "") if row == 0 else (log_prob(one.log_probs[row]), log_prob(scores[row]))
        grid.add_row(label, own, total, _remark(row, row in path, row in marked, branch.hidden))
    return grid


def _remark(row: int, accepted: bool, only: bool, hidden: int) -> Text:
    said = [("root", "dim")] if row == 0 else [("accepted", "green")] if accepted else []
    said += [("only here", ONLY)] if only else []
    said += [(f"… {count(hidden, 'more node')} below", "dim")] if hidden else []
    parts = [part for one in said for part in ((", ", "dim"), one)][1:]
    return Text.assemble(*parts)


def log_prob(value: float) -> str:
    if math.isnan(value):
        return NOTHING
    return "−∞" if value == -math.inf else f"{value:.2f}".replace("-", "−")


def request_name(one: DumpedRound, *, arm: bool = True) -> str:
    """Which request a round belongs to; a repeat, a later turn and an unusual phase are named."""
    said = [*([one.arm] if arm else []), one.prompt_id]
    said += [f"turn {one.turn}"] if one.turn else []
    said += [f"repeat {one.repeat}"] if one.repeat else []
    said += [one.phase] if one.phase != INSPECTED else []
    return " · ".join(said)


def facts(one: DumpedRound) -> str:
    """What to know of a round beside its picture."""
    said = [
        f"root at position {one.root_at}",
        f"{count(one.nodes, 'node')} to depth {max(one.depths)}",
        f"accepted {one.accepted}",
    ]
    if one.path != tuple(range(len(one.path))):
        said.append("rows " + " ".join(map(str, one.path)))
    if one.shadow_accepted is not None:
        said.append(f"linear draft {one.shadow_accepted}")
    if one.oracle_gap is not None:
        said.append(f"oracle gap {gap(one.oracle_gap)}")
    return ", ".join(said)


def gap(value: float) -> str:
    return NOTHING if math.isnan(value) else "∞" if value == math.inf else f"{value:.2g}"
