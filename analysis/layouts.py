"""Cells side by side: the layout of the papers, the budget sweep, and a cell's categories.

- `paper`: temperatures × models × methods down, workloads across, speed-up and acceptance length in each; below a
  method with budgets the best of them, chosen on the workload's dev half where that was asked too.
- `budgets`: a table per model and temperature, an arm a row, workloads across; of a single workload its categories.
- `categories`: a table a cell, an arm a row, categories across.

Only cells of one engine, tp, device, dtype and load stand in one table, and none of synthetic acceptance with others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd

from analysis import published as others
from analysis.best import DEV, SAME_DATA, bests, partners
from analysis.columns import NOTHING, acceptance_length, lossless, milliseconds, named, order, rows_of, speedup
from analysis.load import load_both, load_runs
from analysis.notes import INTERVALS, SPEEDUPS, chance
from analysis.printing import Table, Title
from analysis.records import BASELINE, HIDDEN
from methods.base import Refusal

Layout = Literal["paper", "budgets", "categories"]
DRIFTED, UNFINISHED = "†", "‡"
_TOLD = 6  # arms of one reason that a note names
_NUMBERS = (
    *("temperature", "model", "drafter", "engine", "tp", "device", "dtype", "concurrency", "workload", "suite"),
    *("split", "arm", "method", "budget", "status", "reason", "n_prompts", "n_requests", "tpot_s"),
    *("speedup", "speedup_low", "speedup_high"),
    *("acceptance_length", "acceptance_length_low", "acceptance_length_high"),
)
_FIGURES = _NUMBERS[_NUMBERS.index("tpot_s") :]


class Setting(NamedTuple):
    """What the cells of one table share."""

    engine: str
    tp: int
    device: str
    dtype: str
    concurrency: int
    request_rate: float | None
    simulate_acceptance: float | None

    @classmethod
    def of(cls, row: Any) -> Setting:
        rates = (None if pd.isna(value) else value for value in (row.request_rate, row.simulate_acceptance))
        return cls(row.engine, row.tp, row.device, row.dtype, row.concurrency, *rates)

    def __str__(self) -> str:
        shared = f" · concurrency {self.concurrency}" if self.concurrency != 1 else ""
        shared += f" · {self.request_rate:g} requests/s" if self.request_rate else ""
        shared += f" · SYNTHETIC acceptance {self.simulate_acceptance:g}" if self.simulate_acceptance else ""
        return f"{self.engine} · tp {self.tp} · {self.device} · {self.dtype}{shared}"


@dataclass
class Grid:
    """A table as it fills: rows by their names and groups of columns, both in the order in which they first come."""

    names: tuple[str, ...]
    figures: tuple[str, ...]
    columns: Iterable[str] = ()
    rows: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = field(default_factory=dict)
    numbers: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.groups = dict.fromkeys(self.columns)

    def put(self, names: tuple[str, ...], group: str, cells: tuple[str, ...], numbers: dict[str, Any]) -> None:
        self.groups.setdefault(group)
        self.rows.setdefault(names, {})[group] = cells
        self.numbers.append({"row": names[-1], "column": group, **numbers})

    def table(self, heading: str, notes: Iterable[str]) -> Table:
        """Names that are the same in every row go to the heading, ones like those above are left empty."""
        kept = [n for n in range(len(self.names)) if n == len(self.names) - 1 or len({row[n] for row in self.rows}) > 1]
        same = [next(iter(self.rows))[n] for n in range(len(self.names)) if n not in kept]
        titles = [Title(self.names[n], text=True) for n in kept]
        titles += [Title(figure, group=group) for group in self.groups for figure in self.figures]
        empty = (NOTHING,) * len(self.figures)
        rows: list[tuple[str, ...]] = []
        above: tuple[str, ...] = ()
        for names, cells in self.rows.items():
            own = tuple(names[n] for n in kept)
            shown = ["" if own[: n + 1] == above[: n + 1] and n < len(own) - 1 else own[n] for n in range(len(own))]
            rows.append((*shown, *(cell for group in self.groups for cell in cells.get(group, empty))))
            above = own
        note = [*notes, *([f"{NOTHING}: not measured, or hidden."] if any(NOTHING in row for row in rows) else [])]
        return Table(" · ".join([*same, heading]), tuple(titles), tuple(rows), "\n".join(note), self._frame())

    def _frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.numbers)


def layout_tables(results: str | Path, layout: Layout, published: bool = False) -> list[Table]:
    """The tables of a layout.

    Raises:
        Refusal: the folder holds nothing to lay out.
    """
    if layout == "categories":
        whole, rows = map(rows_of, load_both(results, unfinished=True))
        parts = {(part[0].results, part[0].cell_id): part for part in _by(rows, _place)}
        return [_categories(cell, parts.get(_place(cell[0]), [])) for cell in _by(whole, _place)]
    rows = list(_methods(rows_of(load_runs(results, unfinished=True))))
    if not rows:
        raise Refusal(f"{results} has no timed request of a method beside AR: nothing can be laid out.")
    if layout == "paper":
        return [_paper(group, published) for group in _by(rows, Setting.of)]
    groups = list(_by(rows, lambda row: (Setting.of(row), row.model, row.temperature)))
    alone = any(len({row.workload for row in group}) == 1 for group in groups)
    split = rows_of(load_runs(results, by="category", unfinished=True)) if alone else []
    return [_budgets(group, split, published) for group in groups]


def _methods(rows: Iterable[Any]) -> Iterator[Any]:
    """The rows of cells that have timed more than AR, without AR's twin of the null test."""
    for cell in _by(rows, _place):
        kept = [row for row in cell if row.arm == BASELINE or row.method != BASELINE]
        if any(row.n_requests and row.arm != BASELINE for row in kept):
            yield from kept


def _by(rows: Iterable[Any], key: Any) -> Iterator[list[Any]]:
    """Rows of one key together, in the order in which the keys first come."""
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    yield from groups.values()


def _paper(rows: Sequence[Any], published: bool) -> Table:
    dev = partners(rows)
    chosen_on = {row.workload for found in dev.values() for row in found}
    shown = [row for row in rows if row.split != "dev" or row.workload not in chosen_on]
    grid = Grid(("T", "model", "method"), ("speed-up", "τ"), sorted({row.workload for row in shown}))
    cell_names, models = _cell_names(shown), list(dict.fromkeys(row.model for row in shown))
    pairs = _pair_names(shown)
    overlay = others.Overlay()
    for block in _by(sorted(shown, key=lambda row: (row.temperature, models.index(row.model))), _block):
        temperature, model = f"T {block[0].temperature:g}", pairs[block[0].model, block[0].drafter]
        for row in sorted(block, key=order):
            names = (temperature, model, named(row) + cell_names[row.results, row.cell_id])
            grid.put(names, row.workload, _timed(row), _numbers(row))
        for best in bests(block, dev):
            name = best.label + cell_names[best.row.results, best.row.cell_id]
            ratio, length = _figures(best.row)
            ratio = f"{ratio} @{best.row.budget:.0f}"
            told = _numbers(best.row) | {"chosen": best.how}
            grid.put((temperature, model, name), best.row.workload, (ratio, length), told)
        if published:
            for number in overlay.beside(block):
                grid.put((temperature, model, number.label), number.workload, number.figures, number.numbers)
    return grid.table(str(Setting.of(rows[0])), [*_notes(shown, cell_names, grid), *overlay.notes(published)])


def _budgets(rows: Sequence[Any], split: Sequence[Any], published: bool) -> Table:
    cell_names, pairs, overlay = _cell_names(rows), _pair_names(rows), others.Overlay()
    single = len({row.workload for row in rows}) == 1
    here = set(map(_place, rows))
    parts = [row for row in split if single and (row.results, row.cell_id) in here and not pd.isna(row.category)]
    parts = parts if len({row.category for row in parts}) > 1 else []
    columns = *sorted({row.workload for row in rows}), *sorted({row.category for row in parts})
    grid = Grid(("model", "T", "arm"), ("TPOT (ms)", "speed-up", "τ"), columns)
    for row in sorted(rows, key=order):
        names = (
            pairs[row.model, row.drafter],
            f"T {row.temperature:g}",
            named(row) + cell_names[row.results, row.cell_id],
        )
        grid.put(names, row.workload, _with_time(row), _numbers(row))
        for part in parts:
            if (part.results, part.cell_id, named(part)) == (row.results, row.cell_id, named(row)):
                grid.put(names, part.category, _with_time(part), _numbers(part) | {"category": part.category})
    if published:
        for number in overlay.beside(rows):
            names = (pairs[rows[0].model, rows[0].drafter], f"T {rows[0].temperature:g}", number.label)
            grid.put(names, number.workload, (NOTHING, *number.figures), number.numbers)
    return grid.table(str(Setting.of(rows[0])), [*_notes(rows, cell_names, grid), *overlay.notes(published)])


def _categories(cell: Sequence[Any], split: Sequence[Any]) -> Table:
    here = [row for row in split if not pd.isna(row.category)]
    categories = sorted({row.category for row in here})
    here = here if len(categories) > 1 else []
    grid = Grid(("model", "workload", "arm"), ("speed-up", "τ"), ("all", *(categories if here else ())))
    parts: dict[str, list[Any]] = {}
    for row in here:
        parts.setdefault(named(row), []).append(row)
    for row in cell:
        names = (row.model, row.workload, named(row))
        grid.put(names, "all", _timed(row), _numbers(row))
        for part in parts.get(named(row), ()):
            grid.put(names, part.category, _timed(part), _numbers(part) | {"category": part.category})
    sizes: dict[str, int] = {}
    for part in (part for found in parts.values() for part in found):
        sizes[part.category] = max(sizes.get(part.category, 0), part.n_prompts)
    heading = f"{Setting.of(cell[0])} · T {cell[0].temperature:g} · cell {cell[0].cell_id}"
    return grid.table(heading, _notes(cell, {}, grid, sizes))


def _place(row: Any) -> tuple[str, str]:
    return row.results, row.cell_id


def _block(row: Any) -> tuple[Any, ...]:
    return row.temperature, row.model, row.drafter


def _cell_names(rows: Sequence[Any]) -> dict[tuple[str, str], str]:
    """What is added to the rows of cells that would else stand in the same place: which cell they are of."""
    several = len({row.results for row in rows}) > 1
    rivals: dict[tuple[Any, ...], dict[tuple[str, str], None]] = {}
    for row in rows:
        rivals.setdefault((*_block(row), row.workload), {})[row.results, row.cell_id] = None
    named_apart = {place for places in rivals.values() if len(places) > 1 for place in places}
    places = set(map(_place, rows))
    return {
        (results, cell): f" ({f'{results}/' if several else ''}{cell[:6]})" if (results, cell) in named_apart else ""
        for results, cell in places
    }


def _pair_names(rows: Sequence[Any]) -> dict[tuple[str, str], str]:
    """The models' names, with the drafter where a model has several."""
    drafters: dict[str, set[str]] = {}
    for row in rows:
        drafters.setdefault(row.model, set()).add(row.drafter)
    return {
        (row.model, row.drafter): f"{row.model} + {Path(row.drafter).name}"
        if len(drafters[row.model]) > 1
        else row.model
        for row in rows
    }


def _figures(row: Any) -> tuple[str, str]:
    """The speed-up, marked, and the acceptance length; a reason in their place where an arm has none to show."""
    if row.status in HIDDEN:
        return "INVALID" if row.status == "invalid" else "failed", NOTHING
    mark = {"drifted": DRIFTED, "pending": UNFINISHED}.get(row.status, "") if row.n_requests else ""
    return f"{speedup(row)}{mark}", acceptance_length(row)


def _timed(row: Any) -> tuple[str, str]:
    """The figures, of AR with its TPOT: what the others are faster than."""
    ratio, length = _figures(row)
    shown = row.arm == BASELINE and row.status not in HIDDEN and row.n_requests
    return f"{ratio} ({milliseconds(row.tpot_s)} ms)" if shown else ratio, length


def _with_time(row: Any) -> tuple[str, str, str]:
    return NOTHING if row.status in HIDDEN else milliseconds(row.tpot_s), *_figures(row)


def _numbers(row: Any) -> dict[str, Any]:
    """The numbers of a cell of the grid, unrounded; none of an arm whose figures are not shown."""
    found = {name: getattr(row, name) for name in _NUMBERS}
    return found | (dict.fromkeys(_FIGURES) if row.status in HIDDEN else {}) | {"cell_id": row.cell_id}


def _notes(
    rows: Sequence[Any], cell_names: dict[tuple[str, str], str], grid: Grid, sizes: dict[str, int] | None = None
) -> Iterator[str]:
    """How the figures were made, of how many prompts, what the marks mean and what is left out."""
    visible = [row for row in rows if row.status not in HIDDEN]
    yield (
        f"{SPEEDUPS[0].upper()}{SPEEDUPS[1:]}, over AR in the same cell (with AR's TPOT); τ: acceptance length, "
        f"pooled over uncut rounds {INTERVALS}."
    )
    yield _prompts(rows, sizes)
    methods = {names[-1] for names in grid.rows}
    if any(DEV in name for name in methods):
        yield f"{DEV}: the budget (@) that was fastest on the workload's dev half, with its figures on the other half."
    if any(SAME_DATA in name for name in methods):
        yield (
            f"{SAME_DATA}: best of the same data, the budget (@) that is fastest by the very figure shown, as in the "
            "DDTree paper; that flatters, and the interval does not know of the choice."
        )
    if any(cell_names.values()):
        yield "Rows that name a cell: more than one has these settings; they differ in others (seed, sampling, limits)."
    if any(row.status == "drifted" for row in rows):
        yield f"{DRIFTED}: the machine moved meanwhile (drifted)."
    if any(row.status == "pending" and row.n_requests for row in rows):
        yield f"{UNFINISHED}: not finished; figures so far."
    yield from _hidden(rows)
    yield from chance(visible)


def _prompts(rows: Sequence[Any], sizes: dict[str, int] | None) -> str:
    counts: dict[str, list[int]] = {}
    for cell in _by(rows, _place):
        counts.setdefault(cell[0].workload, []).append(max(row.n_prompts for row in cell))
    said = [f"{name} {_range(found)}" for name, found in sorted(counts.items())]
    said += [f"{name} {size}" for name, size in (sizes or {}).items()]
    return f"Prompts: {', '.join(said)}; at most {_range([row.max_new_tokens for row in rows])} new tokens."


def _range(values: Sequence[int]) -> str:
    return f"{min(values)}" if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _hidden(rows: Sequence[Any]) -> Iterator[str]:
    """The arms without figures, by their reasons."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.status in HIDDEN:
            arm = f"{row.arm} on {row.workload}, T {row.temperature:g}"
            reasons.setdefault(lossless(row), []).append(arm)
    for reason, arms in reasons.items():
        further = f" and {len(arms) - _TOLD} more" if len(arms) > _TOLD else ""
        yield f"{reason} ({'; '.join(arms[:_TOLD])}{further})."
