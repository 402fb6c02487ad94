"""The table a person reads: per cell a heading, per arm a row. One function makes it for the terminal, Markdown,
CSV and LaTeX.

The figures of an arm that is invalid or failed are not shown; its row says why.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from analysis.acceptance import load_acceptance
from analysis.columns import HIDDEN, NOTHING, NUMBERS, Column, View, columns_of
from analysis.figures import SPEED_FIGURES
from analysis.load import load_runs
from analysis.notes import note

Format = Literal["terminal", "markdown", "csv", "latex"]
By = Literal["category"]
_FACTORS = (
    *("cell_id", "arm", "method", "budget", "engine", "tp", "model", "device", "dtype", "workload", "temperature"),
    *("concurrency", "status"),
)
_WIDTH = 120  # where the output is not a terminal
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "·": r"$\cdot$",
    "τ": r"$\tau$",
    "×": r"$\times$",
    "±": r"$\pm$",
}


@dataclass(frozen=True)
class Table:
    """One cell's table as text: what it is of, the columns, the rows, and what to know when reading it."""

    heading: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def summary_tables(results: str | Path, by: By | None = None, view: View | None = None) -> list[Table]:
    """One table a cell of a results folder, finished or running."""
    runs = load_runs(results, by=by, unfinished=True)
    if view == "acceptance":
        keys = _keys(by)
        rates = load_acceptance(results, by=by).groupby(keys, sort=False)["marginal"].agg(tuple)
        runs["marginal"] = [rates.get(key, ()) for key in runs[keys].itertuples(index=False, name=None)]
    return tables_of(runs, view)


def _keys(by: By | None) -> list[str]:
    return ["results", "cell_id", "arm", *([by] if by else [])]


def tables_of(runs: pd.DataFrame, view: View | None = None) -> list[Table]:
    """One table a cell of a frame like `load_runs` gives, arms in its order."""
    several = runs["results"].nunique() > 1
    return [_table(cell, several, view) for _, cell in runs.groupby(["results", "cell_id"], sort=False)]


def _table(cell: pd.DataFrame, several: bool, view: View | None) -> Table:
    columns, rows = columns_of(cell, view), list(cell.itertuples())
    cells = tuple(tuple(_shown(column, row) for column in columns) for row in rows)
    return Table(_heading(rows[0], several), columns, cells, note(cell, view))


def _shown(column: Column, row: Any) -> str:
    return NOTHING if column.figure and row.status in HIDDEN else column.show(row)


def _heading(row: Any, several: bool) -> str:
    parts = [row.model, row.workload, row.engine, f"tp {row.tp}", row.device, row.dtype, f"T {row.temperature:g}"]
    parts += [f"concurrency {row.concurrency}"] if row.concurrency != 1 else []
    return " · ".join([*([row.results] if several else []), *parts, f"cell {row.cell_id}"])


def table(results: str | Path, format: Format = "terminal", by: By | None = None, view: View | None = None) -> str:
    """The summary of a results folder as text, or one of the views behind it.

    `csv` gives the numbers unrounded, one row an arm (and depth, for `acceptance`): all that `load_runs` has, or the
    view's. A view is `stages` (where a round's time goes), `latency` or `acceptance` (how deep rounds reach).
    """
    if format == "csv":
        return _csv(results, by, view)
    tables = summary_tables(results, by, view)
    if format == "terminal":
        text = io.StringIO()
        _print(Console(file=text, width=_WIDTH, highlight=False), tables)
        return text.getvalue()
    return "\n".join({"markdown": _markdown, "latex": _latex}[format](one) for one in tables)


def print_summary(
    results_dir: str | Path, console: Console | None = None, by: By | None = None, view: View | None = None
) -> None:
    """Print the summary of a results folder, as a run does at its end."""
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_WIDTH)
    _print(console, summary_tables(results_dir, by, view))


def _print(console: Console, tables: list[Table]) -> None:
    if not tables:
        console.print("No arm has begun yet.")
    for one in tables:
        console.print(Text(one.heading, style="bold"))
        for part in _parts(one, console.width):
            console.print(_grid(one, part))
        console.print(Text(one.note, style="dim"))
        console.print()


def _parts(one: Table, width: int) -> list[list[int]]:
    """Columns to print one below the other where a console is too narrow for all; each part names the arms again."""
    widths = [_width(one, index) for index in range(len(one.columns))]
    names = [index for index, column in enumerate(one.columns) if column.text and index != len(widths) - 1]
    parts = [list(names)]
    for index in range(len(names), len(widths)):
        if sum(widths[i] + 2 for i in (*parts[-1], index)) > width + 2 and len(parts[-1]) > len(names):
            parts.append(list(names))
        parts[-1].append(index)
    return parts


def _width(one: Table, index: int) -> int:
    """The least width a column needs; the last one's cells may be broken into lines."""
    title = max(map(len, one.columns[index].title.split()))
    cells = max(len(row[index]) for row in one.rows)
    return max(title, min(cells, 16) if index == len(one.columns) - 1 else cells)


def _grid(one: Table, part: list[int]) -> RichTable:
    grid = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index in part:
        column = one.columns[index]
        side: Literal["left", "right"] = "left" if column.text else "right"
        last = index == len(one.columns) - 1
        grid.add_column(column.title, justify=side, width=None if last else _width(one, index))
    for row in one.rows:
        style = "red" if row[-1].startswith(("INVALID", "failed")) else None
        grid.add_row(*(Text(row[index]) for index in part), style=style)
    return grid


def _markdown(one: Table) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    titles = line(tuple(column.title for column in one.columns))
    rule = line(tuple("---" if column.text else "---:" for column in one.columns))
    return "\n".join([f"**{one.heading}**", "", titles, rule, *map(line, one.rows), "", one.note, ""])


def _latex(one: Table) -> str:
    """A `booktabs` table; the heading and the note make the caption."""
    spec = "".join("l" if column.text else "r" for column in one.columns)
    titles = tuple(column.title for column in one.columns)
    body = [" & ".join(map(_tex, cells)) + r" \\" for cells in (titles, *one.rows)]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_tex(one.heading)}. {_tex(one.note)}}}",
            rf"\begin{{tabular}}{{{spec}}}",
            r"\toprule",
            body[0],
            r"\midrule",
            *body[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _csv(results: str | Path, by: By | None, view: View | None) -> str:
    """The figures of invalid and failed arms are left empty."""
    runs = load_runs(results, by=by, unfinished=True)
    if view is not None:
        runs = runs[[*_FACTORS, *([by] if by else []), *NUMBERS[view], "results"]]
    figures = [name for name in SPEED_FIGURES if name in runs]
    if view == "acceptance":
        runs = runs.merge(load_acceptance(results, by=by), on=_keys(by), how="left")
        figures += ["rounds", "marginal", "conditional"]
    runs[figures] = runs[figures].mask(runs["status"].isin(HIDDEN))
    return runs.to_csv(index=False, lineterminator="\n")
