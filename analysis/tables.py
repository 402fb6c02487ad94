"""The table a person reads: per cell a heading, per arm a row. One function makes it for the terminal, Markdown,
CSV and LaTeX.

The figures of an arm that is invalid or failed are not shown; its row says why.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from analysis.load import SPEED_FIGURES, load_runs
from analysis.records import BASELINE

Format = Literal["terminal", "markdown", "csv", "latex"]
By = Literal["category"]
NOTHING = "–"
_WIDTH = 120  # where the output is not a terminal
_HIDDEN = ("invalid", "failed")
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "·": r"$\cdot$",
    "τ": r"$\tau$",
    "×": r"$\times$",
}


@dataclass(frozen=True)
class Column:
    """A column as shown: its title and how a row of `load_runs` fills it. A `figure` goes blank with its arm."""

    title: str
    show: Callable[[Any], str]
    figure: bool = False
    text: bool = False


@dataclass(frozen=True)
class Table:
    """One cell's table as text: what it is of, the columns, the rows, and what to know when reading it."""

    heading: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def summary_tables(results: str | Path, by: By | None = None) -> list[Table]:
    """One table a cell of a results folder, finished or running."""
    return tables_of(load_runs(results, by=by, unfinished=True))


def tables_of(runs: pd.DataFrame) -> list[Table]:
    """One table a cell of a frame like `load_runs` gives, arms in its order."""
    several = runs["results"].nunique() > 1
    return [_table(cell, several) for _, cell in runs.groupby(["results", "cell_id"], sort=False)]


def _table(cell: pd.DataFrame, several: bool) -> Table:
    columns = (CATEGORY, *COLUMNS) if "category" in cell else COLUMNS
    rows = list(cell.itertuples())
    cells = tuple(tuple(_shown(column, row) for column in columns) for row in rows)
    return Table(_heading(rows[0], several), columns, cells, _note(cell))


def _shown(column: Column, row: Any) -> str:
    return NOTHING if column.figure and row.status in _HIDDEN else column.show(row)


def _heading(row: Any, several: bool) -> str:
    parts = [row.model, row.workload, row.engine, f"tp {row.tp}", row.device, row.dtype, f"T {row.temperature:g}"]
    parts += [f"concurrency {row.concurrency}"] if row.concurrency != 1 else []
    return " · ".join([*([row.results] if several else []), *parts, f"cell {row.cell_id}"])


def _note(cell: pd.DataFrame) -> str:
    prompts, requests = (int(cell.groupby("arm")[name].sum().max()) for name in ("n_prompts", "n_requests"))
    repeats = round(requests / max(prompts, 1))
    said = [f"{_count(prompts, 'prompt')}, {_count(repeats, 'repeat')}" if prompts else "no requests yet"]
    if cell["speedup_low"].notna().any():
        said.append("speed-up: geometric mean of per-prompt TPOT ratios [95 % bootstrap interval over prompts]")
    tolerance = cell["gap_tolerance"].max()
    if pd.notna(tolerance):
        said.append(f"near tie: within {tolerance:.2g} logits of the target's choice")
    if cell.loc[cell["n_requests"] > 0, "sittings"].nunique() > 1:
        said.append("arms were timed in different sittings: compare their speed-ups, not their times")
    return "; ".join(said) + "."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _number(value: float, decimals: int) -> str:
    return NOTHING if pd.isna(value) else f"{value:.{decimals}f}"


def _ms(seconds: float) -> str:
    """Milliseconds with three figures or so."""
    ms = seconds * 1e3
    return _number(ms, 0 if ms >= 1000 else 1 if ms >= 100 else 2)


def _speedup(row: Any) -> str:
    if row.arm == BASELINE or pd.isna(row.speedup):
        return _number(row.speedup, 2)
    return f"{row.speedup:.2f} [{_number(row.speedup_low, 2)}, {_number(row.speedup_high, 2)}]"


def _lossless(row: Any) -> str:
    """The gate's finding for an arm, or why there is none."""
    if row.status == "failed":
        return f"failed: {row.reason}" if pd.notna(row.reason) else "failed"
    if row.status == "invalid":
        broken = row.true_violations if pd.notna(row.true_violations) else 0
        return f"INVALID: {_count(broken, 'violation') if broken else row.reason}"
    if row.status == "pending" and not row.n_requests:
        return "unfinished"
    found = "not checked" if pd.isna(row.true_violations) else "yes"
    if pd.notna(row.near_ties) and row.near_ties:
        found += f", {_count(row.near_ties, 'near tie')}"
    return found + {"pending": "; unfinished", "drifted": "; drifted"}.get(row.status, "")


CATEGORY = Column("category", lambda row: NOTHING if pd.isna(row.category) else row.category, text=True)
COLUMNS = (
    Column("arm", lambda row: row.arm, text=True),
    Column("requests", lambda row: str(row.n_requests)),
    Column("output tokens", lambda row: str(row.n_output)),
    Column("tokens/s", lambda row: _number(row.tokens_per_s, 1), figure=True),
    Column("TTFT (ms)", lambda row: _ms(row.ttft_s), figure=True),
    Column("TPOT (ms)", lambda row: _ms(row.tpot_s), figure=True),
    Column("acceptance length", lambda row: _number(row.acceptance_length, 2), figure=True),
    Column("tokens per round", lambda row: _number(row.tokens_per_round, 2), figure=True),
    Column("speed-up over AR", _speedup, figure=True),
    Column("lossless", _lossless, text=True),
)


def table(results: str | Path, format: Format = "terminal", by: By | None = None) -> str:
    """The summary of a results folder as text. `csv` gives the numbers behind it, one row an arm, unrounded."""
    runs = load_runs(results, by=by, unfinished=True)
    if format == "csv":
        return _csv(runs)
    if format == "terminal":
        text = io.StringIO()
        _print(Console(file=text, width=_WIDTH, highlight=False), tables_of(runs))
        return text.getvalue()
    return "\n".join({"markdown": _markdown, "latex": _latex}[format](one) for one in tables_of(runs))


def print_summary(results_dir: str | Path, console: Console | None = None, by: By | None = None) -> None:
    """Print the summary of a results folder, as a run does at its end."""
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_WIDTH)
    _print(console, summary_tables(results_dir, by))


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


def _csv(runs: pd.DataFrame) -> str:
    """All columns of `load_runs`, the figures of invalid and failed arms left empty."""
    figures = list(SPEED_FIGURES)
    runs[figures] = runs[figures].mask(runs["status"].isin(_HIDDEN))
    return runs.to_csv(index=False, lineterminator="\n")
