"""The tables a person reads, each from one function for the terminal, Markdown, CSV and LaTeX.

Without a view there is a table a cell, an arm a row; `stages`, `latency`, `load`, `acceptance` and `accuracy` show what
is behind it. `paper`, `budgets`, `categories` and `scaling` set cells side by side. The figures of an arm that is
invalid or failed are not shown; its row says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

import pandas as pd
from rich.console import Console

from analysis.acceptance import load_acceptance
from analysis.columns import NOTHING, NUMBERS, Column, View, columns_of, rows_of
from analysis.figures import SPEED_FIGURES
from analysis.layouts import Layout, layout_tables
from analysis.load import load_runs
from analysis.load_figures import LOAD_FIGURES
from analysis.load_window import Slos
from analysis.notes import note
from analysis.printing import Format, Table, as_text, print_tables
from analysis.records import HIDDEN
from analysis.scaling import scaling_tables
from methods.base import Refusal

By = Literal["category"]
AnyView = View | Layout | Literal["scaling"]
_FACTORS = (
    *("cell_id", "arm", "method", "budget", "engine", "tp", "model", "device", "dtype", "workload", "temperature"),
    *("concurrency", "status"),
)


def table(
    results: str | Path,
    format: Format = "terminal",
    by: By | None = None,
    view: AnyView | None = None,
    published: bool = False,
    slos: Slos | None = None,
) -> str:
    """The tables of a results folder, finished or running, as text.

    Args:
        results: a results folder, or one above several, or a cell's.
        format: `csv` gives the numbers unrounded, one row an arm (and depth, for `acceptance`): all that `load_runs`
            has, or the view's.
        by: a row per arm and category, in the views that have a table a cell.
        view: see above.
        published: what others have published beside it, in `paper` and `budgets`.
        slos: what a request has to keep to, to count for goodput, in `load`.
    """
    if format == "csv" and _of_cells(view):
        _check(by, view, published)
        return _csv(results, by, cast("View | None", view), slos)
    text = as_text(summary_tables(results, by, view, published, slos), format)
    return text or ("No arm has begun yet.\n" if format == "terminal" else "")


def print_summary(
    results_dir: str | Path,
    console: Console | None = None,
    by: By | None = None,
    view: AnyView | None = None,
    published: bool = False,
    slos: Slos | None = None,
) -> None:
    """Print tables of a results folder, as a run does with the plain one at its end."""
    tables = summary_tables(results_dir, by, view, published, slos)
    if tables:
        print_tables(console, tables)
    else:
        (console or Console()).print("No arm has begun yet.")


def summary_tables(
    results: str | Path,
    by: By | None = None,
    view: AnyView | None = None,
    published: bool = False,
    slos: Slos | None = None,
) -> list[Table]:
    """The tables of a results folder, before they are given a form."""
    _check(by, view, published)
    if view == "scaling":
        return scaling_tables(results)
    if view in get_args(Layout):
        return layout_tables(results, cast(Layout, view), published)
    of_cells = cast("View | None", view)
    runs = load_runs(results, by=by, unfinished=True, slos=slos)
    if view == "acceptance":
        keys = _keys(by)
        rates = load_acceptance(results, by=by).groupby(keys, sort=False)["marginal"].agg(tuple)
        runs["marginal"] = [rates.get(key, ()) for key in runs[keys].itertuples(index=False, name=None)]
    return tables_of(runs, of_cells)


def tables_of(runs: pd.DataFrame, view: View | None = None) -> list[Table]:
    """One table a cell of a frame like `load_runs` gives, arms in its order; cells that differ in a number by that."""
    several = runs["results"].nunique() > 1
    cells: dict[tuple[str, str], list[Any]] = {}
    for row in rows_of(runs):
        cells.setdefault((row.results, row.cell_id), []).append(row)
    return [_table(rows, several, view) for rows in sorted(cells.values(), key=lambda rows: _place(rows[0]))]


def _place(row: Any) -> tuple[Any, ...]:
    """Where a cell's table stands among the others."""
    rate = 0.0 if pd.isna(row.request_rate) else row.request_rate
    where = (row.results, row.model, row.workload, row.engine, row.device, row.dtype)
    return *where, row.tp, row.temperature, row.concurrency, rate, row.cell_id


def _of_cells(view: AnyView | None) -> bool:
    """Whether a view has a table a cell."""
    return view is None or view in get_args(View)


def _check(by: By | None, view: AnyView | None, published: bool) -> None:
    if by and not _of_cells(view):
        raise Refusal(f"by={by} is not accepted with {view}: the summary, stages, latency, acceptance, accuracy are.")
    if published and view not in ("paper", "budgets"):
        raise Refusal(f"published numbers stand beside paper and budgets, not beside {view or 'the summary'}.")


def _keys(by: By | None) -> list[str]:
    return ["results", "cell_id", "arm", *([by] if by else [])]


def _table(cell: Sequence[Any], several: bool, view: View | None) -> Table:
    columns = columns_of(cell, view)
    cells = tuple(tuple(_shown(column, row) for column in columns) for row in cell)
    return Table(_heading(cell[0], several), columns, cells, note(cell, view, columns, cells))


def _shown(column: Column, row: Any) -> str:
    return NOTHING if column.figure and row.status in HIDDEN else column.show(row)


def _heading(row: Any, several: bool) -> str:
    parts = [row.model, row.workload, row.engine, f"tp {row.tp}", row.device, row.dtype, f"T {row.temperature:g}"]
    parts += [f"concurrency {row.concurrency}"] if row.concurrency != 1 else []
    parts += [f"{row.request_rate:g} requests/s"] if pd.notna(row.request_rate) else []
    parts += ["eager"] if row.graphs == "eager" else []
    parts += [f"{row.verify} sampling"] if row.verify == "rejection" else []
    parts += [f"SYNTHETIC acceptance {row.simulate_acceptance:g}"] if pd.notna(row.simulate_acceptance) else []
    return " · ".join([*([row.results] if several else []), *parts, f"cell {row.cell_id}"])


def _csv(results: str | Path, by: By | None, view: View | None, slos: Slos | None) -> str:
    """The figures of invalid and failed arms are left empty."""
    runs = load_runs(results, by=by, unfinished=True, slos=slos)
    if view is not None:
        source = ["source"] if "source" in runs else []
        runs = runs[[*_FACTORS, *([by] if by else []), *NUMBERS[view], *source, "results"]]
    figures = [name for name in (*SPEED_FIGURES, *LOAD_FIGURES) if name in runs]
    if view == "acceptance":
        runs = runs.merge(load_acceptance(results, by=by), on=_keys(by), how="left")
        figures += ["rounds", "marginal", "conditional"]
    runs[figures] = runs[figures].mask(runs["status"].isin(HIDDEN))
    return runs.to_csv(index=False, lineterminator="\n")
