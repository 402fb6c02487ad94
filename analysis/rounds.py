"""Round dumps as a person reads them: `python -m analysis rounds FILE-or-RESULTS`.

Prints the draft trees of the chosen rounds and, per arm, what those rounds have in common. Rounds pass through one
by one, so that a dump of any size can be read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.columns import count, number
from analysis.round_dumps import DumpedRound, Selection, lines, sources
from analysis.round_tree import SHOWN, Words, facts, gap, picture, quoted, request_name, words_of

UNASKED = 3  # how many trees are printed where no round is asked for
_DEPTHS = 16  # columns of depths side by side
_ACCEPTED = "accepted: drafted tokens a round, before a cut (the tables leave cut rounds out)"
_FIRST = "first choice: of the rounds that accepted anything, those that took the drafter's first choice at every depth"
_APART = "rows apart: rounds whose accepted rows do not stand side by side, so that keys and values have to move"
_SHADOW = (
    "linear draft: what the drafter's first choices alone would have accepted in these very rounds; it is not DFlash's "
    "own acceptance, whose rounds start elsewhere; after the end of an output nothing counts"
)


@dataclass
class Totals:
    """What the rounds of an arm add up to."""

    rounds: int = 0
    requests: set[tuple[int, str, int, int]] = field(default_factory=set)
    nodes: int = 0
    accepted: int = 0
    nodes_at: Counter[int] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)
    first_choice: int = 0
    apart: int = 0
    shadow_rounds: int = 0
    shadow: int = 0
    accepted_beside_shadow: int = 0
    oracle_rounds: int = 0
    largest: tuple[float, str] | None = None

    def add(self, one: DumpedRound) -> None:
        self.rounds += 1
        self.requests.add((one.sitting, one.prompt_id, one.turn, one.repeat))
        self.nodes += one.nodes
        self.accepted += one.accepted
        self.nodes_at.update(one.depths[1:])
        self.accepted_at.update(range(1, one.accepted + 1))
        self.first_choice += one.accepted > 0 and follows_first_choices(one)
        self.apart += one.path != tuple(range(len(one.path)))
        if one.shadow_accepted is not None:
            self.shadow_rounds += 1
            self.shadow += one.shadow_accepted
            self.accepted_beside_shadow += one.accepted
        if one.oracle_gap is not None:
            self.oracle_rounds += 1
            found = math.inf if math.isnan(one.oracle_gap) else one.oracle_gap
            if self.largest is None or found > self.largest[0]:
                self.largest = found, f"{request_name(one, arm=False)}, round {one.round}"

    @property
    def deepest(self) -> int:
        return max(self.nodes_at, default=0)


def follows_first_choices(one: DumpedRound) -> bool:
    """Whether each accepted row is the first child of the one before it."""
    children = one.children()
    return all(children[parent][0] == row for parent, row in pairwise(one.path))


def show_rounds(
    console: Console,
    place: str | Path,
    selection: Selection,
    *,
    tokenizer: str | Path | None = None,
    full: bool = False,
) -> None:
    """Print the trees of the rounds that `selection` takes, then what they add up to.

    Args:
        console: where to.
        place: a `rounds.jsonl`, or a folder with some in it.
        selection: which rounds; where it names none, the first few with a draft are printed and all are added up.
        tokenizer: a folder with a tokenizer.json instead of the target's own.
        full: print every node of a wide tree.

    Raises:
        Refusal: no dump, a damaged line, or nothing that was chosen; what there is is named.
    """
    found = sources(place)
    totals: dict[tuple[str, str], Totals] = {}
    several = len({source.cell for source in found}) > 1
    taken = printed = 0
    for source in found:
        words = words_of(tokenizer, source.target)
        for one in _chosen(source.file, selection):
            cell = f"cell {one.cell_id}"
            totals.setdefault((cell, one.arm), Totals()).add(one)
            taken += 1
            asked = selection.rounds is not None
            if asked or (printed < UNASKED and (one.nodes or selection.arms)):
                printed += 1
                _print_round(console, one, words, cell if several else "", full)
    if not taken:
        raise selection.nothing(place)
    if printed < taken:
        hint = "choose with --prompt, --arm and --round or --rounds"
        console.print(Text(f"… {count(taken - printed, 'more round')}: {hint}.\n", "dim"))
    for cell in dict.fromkeys(cell for cell, _ in totals):
        of_cell = {arm: total for (one, arm), total in totals.items() if one == cell}
        _print_summary(console, of_cell, cell if several else "")


def _chosen(file: Path, selection: Selection) -> Iterator[DumpedRound]:
    for line in lines(file):
        if selection.takes(line.head()):
            yield line.round()


def _print_round(console: Console, one: DumpedRound, words: Words, cell: str, full: bool) -> None:
    title = " · ".join([*([cell] if cell else []), request_name(one), f"round {one.round}"])
    console.print(Text(title, "bold"))
    console.print(Text(facts(one), "dim"))
    console.print(picture(one, words, shown=None if full else SHOWN))
    if words.tokenizer is not None:
        console.print(Text.assemble(("emits ", "dim"), quoted(words.decode(one.emitted))))
    console.print()


def _print_summary(console: Console, totals: Mapping[str, Totals], cell: str) -> None:
    rounds = sum(total.rounds for total in totals.values())
    said = [*([cell] if cell else []), f"{count(rounds, 'round')} of {count(len(totals), 'arm')}"]
    console.print(Text(" · ".join(said), "bold"))
    console.print(_figures(totals))
    console.print()
    for table in _by_depth(totals):
        console.print(table)
        console.print()
    for arm, total in totals.items():
        if total.largest is not None:
            value, where = total.largest
            looked = count(total.oracle_rounds, "round")
            console.print(Text(f"{arm}: the oracle looked at {looked}; its largest gap, {gap(value)}, is in {where}"))
    notes = [_ACCEPTED, _FIRST, _APART, *([_SHADOW] if _has_shadow(totals) else [])]
    console.print(Text("\n".join(notes), "dim"))


def _has_shadow(totals: Mapping[str, Totals]) -> bool:
    return any(total.shadow_rounds for total in totals.values())


def _figures(totals: Mapping[str, Totals]) -> Table:
    shadow = _has_shadow(totals)
    grid = _grid("arm", "requests", "rounds", "nodes a round", "accepted", *(["linear draft"] if shadow else []))
    grid.add_column("first choice", justify="right")
    grid.add_column("rows apart", justify="right")
    for arm, total in totals.items():
        accepted_any = total.accepted_at[1]
        cells = [arm, str(len(total.requests)), str(total.rounds), number(total.nodes / total.rounds, 1)]
        cells.append(number(total.accepted / total.rounds, 2))
        if shadow:
            cells.append(_beside(total))
        cells += [_share(total.first_choice, accepted_any), _share(total.apart, total.rounds)]
        grid.add_row(*map(Text, cells))
    return grid


def _beside(total: Totals) -> str:
    """The linear draft's mean; where it was followed in some of the rounds only, the tree's in the same ones too."""
    if not total.shadow_rounds:
        return number(math.nan, 2)
    mean = number(total.shadow / total.shadow_rounds, 2)
    if total.shadow_rounds == total.rounds:
        return mean
    return f"{mean} (tree {number(total.accepted_beside_shadow / total.shadow_rounds, 2)})"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else number(math.nan, 0)


def _by_depth(totals: Mapping[str, Totals]) -> Iterator[Table]:
    """How wide the trees are and how far the rounds get, depth by depth."""
    deepest = max(total.deepest for total in totals.values())
    for start in range(1, deepest + 1, _DEPTHS):
        depths = range(start, min(start + _DEPTHS, deepest + 1))
        grid = _grid("arm", "", *(str(depth) for depth in depths))
        grid.columns[1].header, grid.columns[1].justify = "at depth", "left"
        for arm, total in totals.items():
            if not total.nodes:
                continue
            nodes = [_mean(total.nodes_at[depth], total.rounds) for depth in depths]
            accepted = [_share(total.accepted_at[depth], total.rounds).removesuffix(" %") for depth in depths]
            grid.add_row(Text(arm), "nodes, mean", *nodes)
            grid.add_row("", "accepted, %", *accepted)
        yield grid


def _mean(part: int, whole: int) -> str:
    mean = part / whole
    return number(mean, 0 if mean >= 100 else 1)


def _grid(first: str, *titles: str) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column(first, no_wrap=True)
    for title in titles:
        grid.add_column(title, justify="right", no_wrap=True)
    return grid
