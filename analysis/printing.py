"""A table as text, and its four forms: the terminal, Markdown, CSV and LaTeX.

Whatever the forms show comes from one `Table`; CSV alone has the numbers behind it, unrounded.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from textwrap import wrap
from typing import Literal

import pandas as pd
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

Format = Literal["terminal", "markdown", "csv", "latex"]
WIDTH = 120  # where the output is not a terminal
STRUCK = ("INVALID", "failed")  # how a cell begins that has a reason in the place of a figure
_BREAKABLE = 16  # columns of text may be broken into lines from this width
_NORMAL, _SMALL = 60, 82  # figures that a line of print takes, in its usual size and in small
_PAGE, _HEAD = 45, 5  # rows that a page of print takes below a caption, and how many the head of a table is worth
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "–": "--",
    "·": r"$\cdot$",
    "τ": r"$\tau$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "−": r"$-$",
    "→": r"$\to$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "…": r"\ldots{}",
}


@dataclass(frozen=True)
class Title:
    """What stands above a column. Neighbours of one `group` stand under its name together; text that `wraps` may be
    broken into lines."""

    title: str
    group: str = ""
    text: bool = False
    wraps: bool = False

    @property
    def whole(self) -> str:
        return f"{self.group} {self.title}".strip()


@dataclass(frozen=True)
class Table:
    """A table as text: what it is of, its columns, its rows, and what to know when reading it.

    The columns of text on the left that do not wrap name a row; a name that is the one above is left empty. `numbers`
    are what CSV has.
    """

    heading: str
    columns: tuple[Title, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str
    numbers: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False)

    @property
    def names(self) -> int:
        """How many columns, on the left, name the row."""
        return sum(1 for _ in takewhile(lambda column: column.text and not column.wraps, self.columns))

    def begins(self, row: int) -> bool:
        """Whether a group of rows begins here, after another one."""
        grouped = any(not cells[0] for cells in self.rows)
        return grouped and row > 0 and bool(self.rows[row][0])


def as_text(tables: Sequence[Table], format: Format) -> str:
    """The tables one below the other; CSV is one file, in which columns that a table does not have are empty."""
    if format == "csv":
        numbers = [table.numbers for table in tables if len(table.numbers)]
        return pd.concat(numbers, ignore_index=True).to_csv(index=False, lineterminator="\n") if numbers else ""
    if format == "terminal":
        text = io.StringIO()
        print_tables(Console(file=text, width=WIDTH, highlight=False), tables)
        return text.getvalue()
    return "\n".join(map({"markdown": _markdown, "latex": _latex}[format], tables))


def print_tables(console: Console | None, tables: Sequence[Table]) -> None:
    """Print tables on a console; where it is too narrow, their columns one part below the other."""
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=WIDTH)
    for table in tables:
        console.print(Text(table.heading, style="bold"))
        if table.rows:
            for part in _parts(table, console.width):
                console.print(_grid(table, part))
        console.print(Text(table.note, style="dim"))
        console.print()


def _parts(table: Table, width: float, measure: Callable[[str], float] = len) -> list[list[int]]:
    """Columns to print one below the other where a console is too narrow for all; each part names the rows again.
    Columns of one group stay together where there is room for a group."""
    widths = [_width(table, index, measure) for index in range(len(table.columns))]
    names = list(range(table.names))
    rest = range(len(names), len(widths))
    blocks = [list(block) for _, block in groupby(rest, lambda index: table.columns[index].group or index)]
    parts = [list(names)]
    for block in blocks:
        room = width + 2 - sum(widths[index] + 2 for index in names)
        pieces = [block] if sum(widths[index] + 2 for index in block) <= room else [[index] for index in block]
        for piece in pieces:
            if sum(widths[index] + 2 for index in (*parts[-1], *piece)) > width + 2 and len(parts[-1]) > len(names):
                parts.append(list(names))
            parts[-1] += piece
    return parts


def _width(table: Table, index: int, measure: Callable[[str], float] = len) -> float:
    """The least width a column needs."""
    column = table.columns[index]
    words = (column.group, column.title) if column.group else column.title.split()
    title = max(map(measure, words), default=0)
    cells = max(measure(row[index]) for row in table.rows)
    return max(title, min(cells, _BREAKABLE) if column.wraps else cells)


def _grid(table: Table, part: list[int]) -> RichTable:
    grid = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grouped, above = any(table.columns[index].group for index in part), ""
    for index in part:
        column = table.columns[index]
        side: Literal["left", "right"] = "left" if column.text else "right"
        width = None if column.wraps else int(_width(table, index))
        title, over = column.title, "" if column.group == above else column.group
        if grouped and (over or column.group or len(title.split()) == 1 or len(title) <= (width or 0)):
            title = f"{over}\n{title}"
        above = column.group
        grid.add_column(title, justify=side, width=width, overflow="fold")
    for number, row in enumerate(table.rows):
        if table.begins(number):
            grid.add_row()
        struck = row[-1].startswith(STRUCK)
        cells = (Text(row[index], style="red" if row[index].startswith(STRUCK) else "") for index in part)
        grid.add_row(*cells, style="red" if struck else None)
    return grid


def _markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    titles = line([column.whole for column in table.columns])
    rule = line(["---" if column.text else "---:" for column in table.columns])
    grid = [titles, rule, *map(line, table.rows), ""] if table.rows else []
    return "\n".join([f"**{table.heading}**", "", *grid, table.note, ""])


def _latex(table: Table) -> str:
    """A `booktabs` table; the heading and the note make the caption. What is too wide for a page's text comes in parts
    that name the rows again, as many below one caption as a page is high."""
    lines = [r"\begin{table}", rf"\caption{{{_tex(table.heading)}. {_tex(table.note)}}}"]
    if table.rows:
        widths = [_width(table, index, _set) for index in range(len(table.columns))]
        parts = _parts(table, _SMALL, _set)
        crowded = max(sum(widths[index] + 2 for index in part) for part in parts) > _NORMAL
        small = r"\scriptsize\setlength{\tabcolsep}{3pt}" if crowded else r"\normalsize"
        lines.append(small)
        height = 0
        for part in parts:
            if height and height + len(table.rows) > _PAGE:
                lines, height = [*lines, r"\end{table}", r"\begin{table}", small], 0
            lines += [r"\par\medskip"] if height else []
            lines += _tabular(table, part)
            height += len(table.rows) + _HEAD
    return "\n".join([*lines, r"\end{table}", ""])


def _tabular(table: Table, part: Sequence[int]) -> list[str]:
    columns = [table.columns[index] for index in part]
    longest = [max(len(row[index]) for row in table.rows) for index in part]
    wide = [column.wraps and length > _BREAKABLE for column, length in zip(columns, longest, strict=True)]
    sides = ["l" if column.text else "r" for column in columns]
    spec = "".join(r"p{0.22\textwidth}" if w else side for side, w in zip(sides, wide, strict=True))
    titles = [
        _stacked(table.columns[index], side, int(_width(table, index))) for index, side in zip(part, sides, strict=True)
    ]
    lines = [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", *_spanning(columns)]
    lines += [" & ".join(titles) + r" \\", r"\midrule"]
    for number, cells in enumerate(table.rows):
        lines += [r"\addlinespace"] if table.begins(number) else []
        lines.append(_row([cells[index] for index in part]))
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _spanning(columns: Sequence[Title]) -> list[str]:
    """The line of the groups' names, each over its columns, with a rule below it."""
    if not any(column.group for column in columns):
        return []
    cells, rules, at = [], [], 1
    for group, members in groupby(columns, lambda column: column.group):
        last = at + sum(1 for _ in members) - 1
        if group:
            cells.append(rf"\multicolumn{{{last - at + 1}}}{{c}}{{{_tex(group)}}}")
            rules.append(rf"\cmidrule(lr){{{at}-{last}}}")
        else:
            cells += [""] * (last - at + 1)
        at = last + 1
    return [" & ".join(cells) + r" \\", " ".join(rules)]


def _set(text: str) -> float:
    """How wide print sets a text, in figures; marks and blanks take about half of one."""
    return sum(0.55 if sign in " .,:;[]()/@|'ijlft" else 1.0 for sign in text)


def _stacked(column: Title, side: str, width: int) -> str:
    """A title in as many lines as its column's width asks for."""
    lines = wrap(column.title, width, break_long_words=False, break_on_hyphens=False)
    stack = r"\\".join(map(_tex, lines))
    return rf"\shortstack[{side}]{{{stack}}}" if len(lines) > 1 else stack


def _row(cells: Sequence[str]) -> str:
    """A line of a `tabular`. What begins with a bracket or a star would be read as an option of the line before."""
    escaped = [_tex(cell) for cell in cells]
    return " & ".join("{}" + cell if cell[:1] in ("[", "*") else cell for cell in escaped) + r" \\"


def _tex(text: str) -> str:
    """Text with what LaTeX takes for commands escaped; what its usual fonts have no sign for becomes a `?`."""
    return "".join(_LATEX.get(sign, sign if ord(sign) < 0x180 else "?") for sign in text)
