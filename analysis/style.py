"""One look for every picture: sizes for print, letters that can be read there, colours that stay apart.

A picture is as wide as one column of a paper (3.3 inches) or as two (7), so that it goes in at its own size with
letters of 7 points or more. Cells and categories have the colours of Okabe and Ito (2008), which the colour-blind can
tell apart; budgets run from light to dark on one scale, and arms without a budget are dashed, so that a grey copy still
tells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.records import BASELINE

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

COLUMN, PAGE = 3.3, 7.0  # widths in inches
DOTS_PER_INCH = 300
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
MARKERS = "osD^vPX"
TREE_STYLES: tuple[Any, ...] = ("-", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))  # by kind of tree
UNBUDGETED = ("#D55E00", "#E69F00", "#CC79A7")
GREY, PALE, INK = "#777777", "#E4E4E4", "#222222"
SMALL = 7.0  # points: the smallest letters
RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "figure.titlesize": 8,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.5,
    "figure.constrained_layout.use": True,
    "savefig.dpi": DOTS_PER_INCH,
    "pdf.fonttype": 42,  # letters stay letters, as publishers ask
    "svg.hashsalt": "draft-tree-harness",  # the same data, the same file
}
NAMES = {BASELINE: "AR", "dflash": "DFlash", "ddtree": "DDTree", "jetspec": "JetSpec"}
_BUDGET_COLOURS, _PALEST = "YlGnBu", 0.33  # paler ones do not show on paper
_LETTER = 0.062  # inches, a letter of 7 points and its part of the space between words
BETWEEN = " · "


def name(kind: str) -> str:
    """How readers call an arm, or a kind of arm: `ddtree-chain` is "DDTree chain"."""
    method, _, more = kind.partition("-")
    return " ".join(filter(None, (NAMES.get(method, method), more.replace("-", " "))))


def arm_name(kind: str, budget: float) -> str:
    return name(kind) if math.isnan(budget) else f"{name(kind)} {budget:.0f}"


def kinds(arms: pd.DataFrame, with_budget: bool) -> list[str]:
    """The kinds of arm that have a budget, or those that have none, in the order of the table."""
    return list(dict.fromkeys(arms.loc[arms["budget"].notna() == with_budget, "kind"]))


def cell_look(number: int) -> dict[str, Any]:
    """A cell's colour and marker; when the colours are used up they come again with other markers."""
    turn, place = divmod(number, len(COLOURS))
    return {"color": COLOURS[place], "marker": MARKERS[(place + turn) % len(MARKERS)]}


def arm_looks(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Each arm's line, AR first, then arms without a budget, dashed, then budgets from light to dark."""
    from matplotlib import colormaps

    arms = table.drop_duplicates("arm")
    trees, others = kinds(arms, True), [kind for kind in kinds(arms, False) if kind != BASELINE]
    order = [BASELINE, *others, *trees]
    arms = arms.assign(place=arms["kind"].map(order.index)).sort_values(["place", "budget"], kind="stable")
    budgets = sorted(arms["budget"].dropna().unique())
    shades = colormaps[_BUDGET_COLOURS](np.linspace(_PALEST, 1, len(budgets)) if len(budgets) > 1 else [0.75])
    looks: dict[str, dict[str, Any]] = {}
    for arm, kind, budget in zip(arms["arm"], arms["kind"], arms["budget"], strict=True):
        look: dict[str, Any] = {"color": INK, "linestyle": "-", "marker": "^"}
        if not math.isnan(budget):
            style = TREE_STYLES[trees.index(kind) % len(TREE_STYLES)]
            look = {"color": tuple(shades[budgets.index(budget)]), "linestyle": style, "marker": "o"}
        elif kind in others:
            look = {"color": UNBUDGETED[others.index(kind) % len(UNBUDGETED)], "linestyle": "--", "marker": "s"}
        looks[str(arm)] = {**look, "label": arm_name(kind, budget)}
    return looks


def in_lines(text: str, width: float) -> str:
    """A title or label broken between its parts into lines that fit `width` inches in 8-point letters."""
    lines = [""]
    for part in text.split(BETWEEN):
        joined = f"{lines[-1]}{BETWEEN}{part}" if lines[-1] else part
        lines = [*lines[:-1], joined] if len(joined) <= 14 * width else [*lines, part]
    return "\n".join(lines)


def columns_of(labels: Sequence[str], width: float) -> tuple[int, int]:
    """Columns and rows of a legend across `width` inches, as few rows as fit and as even as they can be."""
    for rows in range(1, len(labels) + 1):
        columns = math.ceil(len(labels) / rows)
        longest = [max(map(len, labels[column::columns])) for column in range(columns)]
        if sum(0.5 + _LETTER * letters for letters in longest) <= width:
            return columns, rows
    return 1, len(labels)


def legend_below(figure: Figure, handles: Sequence[Artist]) -> None:
    """A legend under the panels, in the order of the handles from left to right and then down."""
    if not handles:
        return
    columns = columns_of(_labels(handles), figure.get_figwidth())[0]
    down = [handles[at] for column in range(columns) for at in range(column, len(handles), columns)]
    figure.legend(handles=down, loc="outside lower center", ncols=columns, columnspacing=1.4)


def legend_height(handles: Sequence[Artist], width: float) -> float:
    """Inches that `legend_below` takes."""
    return 0.05 + 0.155 * columns_of(_labels(handles), width)[1] if handles else 0.0


def _labels(handles: Sequence[Artist]) -> list[str]:
    return [str(handle.get_label()) for handle in handles]


def finish(grid: NDArray[Any], panels: int, across: str, lines: int = 1) -> None:
    """Take away the panels too many, and name the horizontal axis under the lowest panel of each column.

    `grid` are the axes [rows, columns], of which the first `panels` have something in them; `lines` rows of the grid
    are a row of panels.
    """
    rows, columns = len(grid) // lines, grid.shape[1]
    for number in range(rows * columns):
        row, column = divmod(number, columns)
        ours = grid[row * lines : (row + 1) * lines, column]
        if number >= panels:
            for axes in ours:
                axes.remove()
        elif number + columns >= panels:
            ours[-1].set_xlabel(across)
            ours[-1].tick_params(labelbottom=True)


def panels(rows: int, columns: int, size: tuple[float, float], **shared: Any) -> tuple[Figure, NDArray[Any]]:
    """A figure of so many inches, which no window and no registry holds, and its axes [rows, columns]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def grid_of(panels: int, most: int = 3) -> tuple[int, int]:
    """Rows and columns for so many panels, at most `most` in a row, with few places left empty."""
    columns = min(panels, most)
    fewer = max(2, columns - 1)
    columns = fewer if panels > most and -panels % fewer + 1 < -panels % columns else columns
    return math.ceil(panels / columns), columns


def horizontal_grid(axes: Axes) -> None:
    axes.grid(axis="y")


def beside(axes: Axes, text: str, height: float, colour: str = GREY) -> None:
    """A line's name at the right end of it, outside of the panel."""
    axes.annotate(
        text, (1, height), (2, 0), axes.get_yaxis_transform(), "offset points",
        va="center", color=colour, fontsize=SMALL, annotation_clip=False,
    )  # fmt: skip


def drifted_handle() -> Artist:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=GREY, marker="o", linestyle="", markerfacecolor="white", label="drifted")


def counts(numbers: pd.Series[Any]) -> str:
    """A number that holds for all, or from where to where they go."""
    low, high = numbers.min(), numbers.max()
    return f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"


def milliseconds(seconds: float) -> str:
    """A time as read in a sentence, with three figures."""
    ms = seconds * 1e3
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 10 else f"{ms:.2g} ms"


def plain_ticks(axis: Axis) -> None:
    """A logarithmic axis with plain numbers, as many as have room: at 1, 2, 5, 10, … or, on a short range, in even
    steps."""
    from matplotlib.axis import XAxis
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    box, figure = axis.axes.get_position(), axis.axes.get_figure(root=True)
    width, height = figure.get_size_inches() if figure else (COLUMN, COLUMN)
    room = box.width * width / 0.42 if isinstance(axis, XAxis) else box.height * height / 0.25
    most = max(2, min(6, int(room)))
    if high < 2.5 * low:
        ticks = [float(tick) for tick in MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(low, high)]
    else:
        decades = [10.0**k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
        for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), range(1, 10)):
            ticks = [step * decade for decade in decades for step in steps if low <= step * decade <= high]
            if len(ticks) >= min(3, most):
                break
    ticks = [tick for tick in ticks if low <= tick <= high]
    axis.set_major_locator(FixedLocator(ticks[:: math.ceil(len(ticks) / most)]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}" if value < 1e4 else f"{value:,.0f}"))


def drifted_note(table: pd.DataFrame, sign: str = "Hollow") -> str:
    return f" {sign}: drifted." if (table["status"] == "drifted").any() else ""
