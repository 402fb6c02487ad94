"""The tables as parts of the page: per cell the summary and the views behind it, then cells side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, get_args

import pandas as pd

from analysis import tables
from analysis.columns import View
from analysis.layouts import Layout
from analysis.printing import STRUCK, Table
from analysis.report.folder import Folder, Place
from methods.base import Refusal

CELLS = 40  # cells whose summary is shown
BESIDE = 60  # cells up to which they are set side by side
_UNFOLDED = 4  # summaries that stand open


class Row(NamedTuple):
    """A row's cells and its look: `bad` where a reason stands in the place of figures."""

    cells: tuple[str, ...]
    look: str = ""


class Grid(NamedTuple):
    """One table; `numbers` says which columns are figures."""

    heading: str
    columns: tuple[str, ...]
    numbers: tuple[bool, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


class Group(NamedTuple):
    """Tables under one title that can be folded; without a title they stand open."""

    title: str
    tables: tuple[Grid, ...]


def grid(table: Table) -> Grid:
    """A table of `analysis.tables` for the page."""
    rows = tuple(Row(row, "bad" if any(cell.startswith(STRUCK) for cell in row) else "") for row in table.rows)
    columns = tuple(getattr(column, "whole", column.title) for column in table.columns)
    numbers = tuple(not column.text for column in table.columns)
    return Grid(table.heading, columns, numbers, rows, tuple(filter(None, table.note.splitlines())))


def groups(folder: Folder) -> tuple[list[Group], list[str]]:
    """The page's tables, and what to know of those that are not in it."""
    places = list(folder.labels)
    made = list(_side_by_side(folder)) if 1 < len(places) <= BESIDE else []
    summaries = _of_cells(folder, places[:CELLS], None)
    title = f"Summary of {'every cell' if len(places) <= CELLS else f'the first {CELLS} cells'}"
    made.append(Group("" if len(summaries) <= _UNFOLDED else title, summaries))
    for view in get_args(View):
        found = _of_cells(folder, folder.chosen, view)
        said = "" if len(folder.chosen) == len(places) else f" of {len(folder.chosen)} cells"
        made.append(Group(f"{view.capitalize()}{said}", found))
    return [group for group in made if group.tables], list(_left_out(len(places), len(folder.chosen)))


def _left_out(cells: int, chosen: int) -> Iterator[str]:
    if chosen < cells:
        shown = f"summaries of the first {CELLS} cells and " if cells > CELLS else ""
        yield f"Of {cells} cells the page has {shown}the views of {chosen}; python -m analysis table has all."


def _of_cells(folder: Folder, places: Sequence[Place], view: View | None) -> tuple[Grid, ...]:
    runs = folder.runs
    chosen = set(places)
    runs = runs[[place in chosen for place in zip(runs["results"], runs["cell_id"], strict=True)]]
    if view == "acceptance":
        rates = {place: _rates(folder, place) for place in places}
        keys = zip(runs["results"], runs["cell_id"], runs["arm"], strict=True)
        marginal = [rates[results, cell].get(arm, ()) for results, cell, arm in keys]
        runs = runs.assign(marginal=pd.Series(marginal, index=runs.index, dtype="object"))
    return tuple(map(grid, tables.tables_of(runs, view)))


def _rates(folder: Folder, place: Place) -> dict[str, tuple[float, ...]]:
    rates = folder.acceptance(place).groupby("arm", sort=False)
    return {str(arm): tuple(rows["marginal"]) for arm, rows in rates}


def _side_by_side(folder: Folder) -> Iterator[Group]:
    for view in (*get_args(Layout), "scaling"):
        try:
            found = tuple(map(grid, tables.summary_tables(folder.path, view=view)))
        except Refusal:  # these cells have nothing that it sets side by side
            continue
        rows = sum(len(table.rows) for table in found)
        if rows > 1:
            yield Group(_TITLES.get(view, view.capitalize()), found)


_TITLES = {
    "paper": "Models × workloads",
    "budgets": "By budget",
    "categories": "By category",
    "scaling": "By tensor-parallel size",
}
