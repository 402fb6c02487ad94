"""Two cells, or two folders of them, side by side: what B changed over A, paired where the prompts are the same.

Cells are paired one to one, those with the most settings in common first, and all pairs of two folders must differ in
the same settings: a sweep before and after a change pairs cell by cell, a sweep at tp 1 with one at tp 2 workload by
workload.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from analysis import stats
from analysis.changed import Changes, changed
from analysis.columns import NOTHING, interval, milliseconds, named, number, rows_of
from analysis.load import load_runs
from analysis.notes import INTERVALS
from analysis.pairing import acceptance_difference, counted, matched, mean_by_prompt, ratio
from analysis.printing import Format, Table, Title, as_text, print_tables
from analysis.records import BASELINE, HIDDEN, Cell, find_cells
from methods.base import Refusal

_TITLES = (
    *(Title("arm", text=True), Title("prompts"), Title("A", "TPOT (ms)"), Title("B", "TPOT (ms)")),
    *(Title("B / A", "TPOT (ms)"), Title("A", "speed-up"), Title("B", "speed-up"), Title("B / A", "speed-up")),
    *(
        Title("A", "τ"),
        Title("B", "τ"),
        Title("B − A", "τ"),
        Title("other outputs"),
        Title("state", text=True, wraps=True),
    ),
)
_NAMES = 8  # cells or arms that a note names

Both = tuple[Cell, Cell, pd.DataFrame]  # a cell of A, one of B, and the requests they have in common


@dataclass(frozen=True)
class Pair:
    """A cell of A and one of B, with their rows of `load_runs` by arm and the requests they have in common."""

    first: Cell
    second: Cell
    rows: tuple[Mapping[str, Any], Mapping[str, Any]]
    requests: pd.DataFrame

    @property
    def name(self) -> str:
        return f"{_place(self.second)} over {_place(self.first)}"


def compare(a: str | Path, b: str | Path | None = None, format: Format = "terminal") -> str:
    """The comparison as text; see `compare_tables`."""
    return as_text(compare_tables(a, b), format)


def print_comparison(a: str | Path, b: str | Path | None = None, console: Console | None = None) -> None:
    print_tables(console, compare_tables(a, b))


def compare_tables(a: str | Path, b: str | Path | None = None) -> list[Table]:
    """A table for each pair of cells, then what changed between them.

    Args:
        a: a results folder or a cell's; without `b` a folder of just two cells, the first of which is A.
        b: another one.

    Raises:
        Refusal: no two cells asked the same arm the same prompt.
    """
    firsts, seconds = _sides(a, b)
    found, left = _pairs(firsts, seconds)
    if not found:
        raise Refusal(
            f"{a} and {b or a} cannot be compared: no arm was asked the same prompt (id, turn, rendered ids) in both."
        )
    rows_a = _rows(a)
    rows_b = rows_a if b is None else _rows(b)
    pairs = [
        Pair(one, other, (rows_a[one.results, one.cell_id], rows_b[other.results, other.cell_id]), both)
        for one, other, both in found
    ]
    tables = [_table(pair) for pair in pairs]
    if left:
        tables[-1] = _with_note(tables[-1], left)
    return tables + _changes(pairs)


def _sides(a: str | Path, b: str | Path | None) -> tuple[list[Cell], list[Cell]]:
    cells = find_cells(a)
    if b is not None:
        return cells, find_cells(b)
    if len(cells) != 2:
        raise Refusal(f"{a} holds {len(cells)} cells: two folders are compared, or two of its cells/<cell_id>.")
    return cells[:1], cells[1:]


def _pairs(firsts: Sequence[Cell], seconds: Sequence[Cell]) -> tuple[list[Both], list[str]]:
    """The pairs with the requests in common, in A's order, and the sentences on cells that found no partner."""
    apart = {
        (i, j): _differing(first.settings, second.settings)
        for i, first in enumerate(firsts)
        for j, second in enumerate(seconds)
    }
    requests: dict[tuple[str, int], pd.DataFrame] = {}
    found: dict[int, tuple[int, pd.DataFrame]] = {}
    taken: set[int] = set()
    between: frozenset[str] | None = None
    for (i, j), names in sorted(apart.items(), key=lambda one: len(one[1])):
        if "simulate_acceptance" in names:
            continue  # what was simulated is never held against what was measured
        if i in found or j in taken or names != (names if between is None else between):
            continue
        for key, cell in ((("a", i), firsts[i]), (("b", j), seconds[j])):
            if key not in requests:
                requests[key] = counted(cell)
        both = matched(requests["a", i], requests["b", j])
        if len(both):
            found[i], between = (j, both), names
            taken.add(j)
    pairs = [(firsts[i], seconds[j], both) for i, (j, both) in sorted(found.items())]
    return pairs, list(_alone(firsts, set(found), "A")) + list(_alone(seconds, taken, "B"))


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> frozenset[str]:
    if a.keys() != b.keys():
        return frozenset(name for name in {*a, *b} if a.get(name) != b.get(name))
    return frozenset(name for name, value in a.items() if value != b[name])


def _rows(path: str | Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The measured rows of `load_runs`, by cell and arm."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows_of(load_runs(path, unfinished=True)):
        if named(row) == row.arm:
            found.setdefault((row.results, row.cell_id), {})[row.arm] = row
    return found


def _place(cell: Cell) -> str:
    return f"{cell.results}/{cell.cell_id}"


def _alone(cells: Sequence[Cell], paired: set[int], side: str) -> Iterator[str]:
    names = [cell.cell_id for index, cell in enumerate(cells) if index not in paired]
    if names:
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        yield f"Cells only in {side}, or differing in more: {', '.join(names[:_NAMES])}{more}."


def _with_note(table: Table, lines: Sequence[str]) -> Table:
    return Table(table.heading, table.columns, table.rows, "\n".join([table.note, *lines]), table.numbers)


def _table(pair: Pair) -> Table:
    by_arm = {str(arm): found for arm, found in pair.requests.groupby("arm", sort=False)}
    arms = [arm.name for arm in pair.first.arms if arm.name in by_arm and all(arm.name in rows for rows in pair.rows)]
    differing, _ = changed(pair.first, pair.second)
    told = "; ".join(f"{name}: {first} → {second}" for name, first, second in differing)
    shown, numbers = [], []
    for arm in arms:
        a, b = (rows[arm] for rows in pair.rows)
        figures = _compared(by_arm[arm], arm)
        visible = not {a.status, b.status} & set(HIDDEN)
        shown.append(_cells(arm, figures, _state(a, b), visible))
        figures = figures if visible else dict.fromkeys(figures)
        places = {"results_a": a.results, "cell_a": a.cell_id, "results_b": b.results, "cell_b": b.cell_id}
        numbers.append({**places, "arm": arm, "status_a": a.status, "status_b": b.status, **figures, "changed": told})
    return Table(_heading(pair), _TITLES, tuple(shown), "\n".join(_notes(pair, by_arm)), pd.DataFrame(numbers))


def _compared(requests: pd.DataFrame, arm: str) -> dict[str, Any]:
    """One arm's figures on both sides, over the prompts that both asked, and their ratios with intervals."""
    found: dict[str, Any] = {"n_prompts": requests["prompt_id"].nunique()}
    for side in "ab":
        logs = mean_by_prompt(requests, requests[f"log_speedup_{side}"].to_numpy(dtype=np.float64))
        taken, rounds = requests[f"accepted_uncut_sum_{side}"].sum(), requests[f"uncut_rounds_{side}"].sum()
        found[f"tpot_{side}_s"] = requests[f"tpot_s_{side}"].mean()
        found[f"speedup_{side}"] = float(np.exp(logs.mean())) if len(logs) else math.nan
        found[f"acceptance_length_{side}"] = 1 + taken / rounds if rounds else math.nan
    whole = ratio(requests, "log_speedup") if arm != BASELINE else stats.Interval(math.nan, math.nan, math.nan, 0)
    for name, one in (
        ("tpot_ratio", ratio(requests)),
        ("speedup_ratio", whole),
        ("acceptance_length_difference", acceptance_difference(requests)),
    ):
        found |= dict(zip((name, f"{name}_low", f"{name}_high"), one[:3], strict=True))
    return found | {"n_answers": int(requests["answers"].sum()), "n_differing": int(requests["differing"].sum())}


def _cells(arm: str, figures: Mapping[str, Any], state: str, visible: bool) -> tuple[str, ...]:
    if not visible:
        return arm, str(figures["n_prompts"]), *(NOTHING,) * 10, state

    def whole(name: str, decimals: int) -> str:
        point, low, high = (figures[f"{name}{end}"] for end in ("", "_low", "_high"))
        return interval(point, low, high, decimals)

    return (
        *(arm, str(figures["n_prompts"]), milliseconds(figures["tpot_a_s"]), milliseconds(figures["tpot_b_s"])),
        whole("tpot_ratio", 3),
        *(number(figures["speedup_a"], 2), number(figures["speedup_b"], 2), whole("speedup_ratio", 3)),
        *(number(figures["acceptance_length_a"], 2), number(figures["acceptance_length_b"], 2)),
        whole("acceptance_length_difference", 2),
        *(f"{figures['n_differing']} of {figures['n_answers']}" if figures["n_answers"] else NOTHING, state),
    )


def _state(a: Any, b: Any) -> str:
    """What speaks against an arm, and on which side."""
    words = {"invalid": "INVALID", "failed": "failed", "drifted": "drifted", "pending": "unfinished"}
    sides: dict[str, list[str]] = {}
    for side, row in (("A", a), ("B", b)):
        if row.status in words:
            sides.setdefault(words[row.status], []).append(side)
    told = sorted(sides.items(), key=lambda one: list(words.values()).index(one[0]))
    return "; ".join(f"{word} in {' and '.join(found)}" for word, found in told) or "complete"


def _heading(pair: Pair) -> str:
    """What both cells have in common, then which is which."""
    sides = []
    for rows in pair.rows:
        row = next(iter(rows.values()))
        sides.append(
            (row.model, row.workload, row.engine, f"tp {row.tp}", row.device, row.dtype, f"T {row.temperature:g}")
        )
    same = [first for first, second in zip(*sides, strict=True) if first == second]
    return " · ".join([*same, f"B {_place(pair.second)} over A {_place(pair.first)}"])


def _notes(pair: Pair, by_arm: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    yield (
        f"Over the prompts both asked (same id, turn, rendered ids). B / A: geometric mean over prompts {INTERVALS}; "
        "TPOT below 1: B is faster; speed-up: each over its own AR; τ: acceptance length, pooled; other outputs: "
        "requests that both answered and whose tokens differ."
    )
    yield (
        "A and B were not interleaved: what the machine did in between is part of the ratio of TPOTs, hardly of that "
        "of the speed-ups."
    )
    asked = [max(row.n_prompts for row in rows.values()) for rows in pair.rows]
    paired = max(found["prompt_id"].nunique() for found in by_arm.values())
    if max(asked) > paired:
        yield f"{paired} prompts are in both, of {asked[0]} in A and {asked[1]} in B."
    if pair.first.settings.get("max_new_tokens") != pair.second.settings.get("max_new_tokens"):
        yield "max_new_tokens is not the same: an output that goes on longer counts as another."
    verified = [next(iter(rows.values())).verify for rows in pair.rows]
    if len(set(verified)) > 1:
        yield f"Drafts are verified in unlike ways ({' and '.join(verified)}): τ is not of the same thing."
    for side, rows, others in (("A", *pair.rows), ("B", *reversed(pair.rows))):
        alone = [arm for arm in rows if arm not in others]
        if alone:
            yield f"Only in {side}: {', '.join(alone)}."


def _changes(pairs: Sequence[Pair]) -> list[Table]:
    """What changed, once for all pairs of which it is the same."""
    groups: dict[Changes, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(changed(pair.first, pair.second), []).append(pair)
    return [_changes_table(found, alike, len(groups) > 1) for found, alike in groups.items()]


def _changes_table(found: Changes, pairs: Sequence[Pair], several: bool) -> Table:
    titles = (Title("what", text=True), *(Title(side, text=True, wraps=True) for side in "AB"))
    of = f" ({', '.join(pair.name for pair in pairs)})" if several else ""
    said = "Settings, arms, engine, machine, versions and code, as recorded; times and loads left out."
    note = [said if found.differing else "Nothing that is recorded but the numbers."]
    note += [f"Recorded on one side only: {', '.join(found.one_sided)}."] if found.one_sided else []
    return Table(f"What changed{of}", titles, found.differing, "\n".join(note))
