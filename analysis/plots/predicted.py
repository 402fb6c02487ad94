"""Measured speed-ups against predicted ones: what the stages of a round say, and what the clock says. (What a replay
says is in `analysis.plots.advice`.)

From stages: tokens per round × t_AR / (draft + build + verify + commit), on the profiled prompts. A point below the
diagonal is slower than its stages add up to: time that no stage accounts for. Tables name residuals beyond the band.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis import stats, style
from analysis.plot_data import ARM, Source, title
from analysis.plots.base import Plot
from analysis.records import BASELINE

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

NAMED = 0.05  # a residual that tables name
STAGES = "stages"
_MARGIN = 1.12  # around the points
_CORNER = 9  # so many arms can be named above the diagonal
_FILLS: tuple[Any, ...] = ("full", "left", "bottom", "top")


def predicted_data(source: Source) -> pd.DataFrame:
    """One row per cell and arm: `predicted` and `measured` speed-up, `residual` (predicted / measured − 1), the
    `prediction` it is from and `n_profiled` requests."""
    runs = source.runs[source.runs["arm"] != BASELINE]
    renamed = {f"identity_{name}": name for name in ("predicted", "measured", "residual")}
    found = runs[[*ARM, "n_profiled", *renamed]].rename(columns=renamed).assign(prediction=STAGES)
    return found[found["predicted"].notna() & found["measured"].notna()]


def draw_predicted(table: pd.DataFrame) -> Figure:
    cells = list(table.groupby(stats.CELL, sort=False))
    looks = style.arm_looks(table)
    fills = dict(zip(style.kinds(table, with_budget=True), _FILLS, strict=False))
    arms = _arms(table, looks, fills)
    handles = _handles(table, [cell for _, cell in cells])
    corner = _corner_is_free(table, len(arms))
    handles = handles if corner else arms + handles
    width = style.COLUMN
    figure, ((axes,),) = style.panels(1, 1, (width, 3.2 + style.legend_height(handles, width)))
    for number, (_, cell) in enumerate(cells):
        for row in cell.to_dict("records"):
            colour = looks[row["arm"]]["color"]
            fill = "none" if row["status"] == "drifted" else fills.get(row["kind"], "full")
            marker = style.MARKERS[number % len(style.MARKERS)]
            axes.plot([row["predicted"]], [row["measured"]], marker=marker, color=colour, fillstyle=fill, markersize=4)
    values = pd.concat([table["predicted"], table["measured"]])
    ends = [values.min() / _MARGIN, values.max() * _MARGIN]
    axes.plot(ends, ends, color=style.GREY, linewidth=1.0, zorder=1)
    axes.fill_between(ends, [e / (1 + NAMED) for e in ends], [e / (1 - NAMED) for e in ends], color=style.PALE,
                      linewidth=0, zorder=0)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axes.set(xlabel="speed-up predicted from stages", ylabel="speed-up measured on the same prompts")
    style.plain_ticks(axes.xaxis)
    style.plain_ticks(axes.yaxis)
    figure.suptitle(title(table, width))
    if corner:
        axes.legend(handles=arms, loc="upper left", labelspacing=0.25, handletextpad=0.2, borderaxespad=0.1)
    style.legend_below(figure, handles)
    return figure


def _corner_is_free(table: pd.DataFrame, arms: int) -> bool:
    """Whether so many names fit above the diagonal without covering a point."""
    both = np.log(table[["predicted", "measured"]].to_numpy(dtype=np.float64))
    low, high = both.min() - math.log(_MARGIN), both.max() + math.log(_MARGIN)
    across, up = (both.T - low) / (high - low)
    return arms <= _CORNER and not ((across < 0.45) & (up > 0.93 - 0.055 * arms)).any()


def _arms(table: pd.DataFrame, looks: dict[str, dict[str, Any]], fills: dict[str, Any]) -> list[Artist]:
    """The arms by colour, kinds of tree by how they are filled: for the corner above the diagonal, where a point
    would be faster than its stages."""
    from matplotlib.lines import Line2D

    point: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 4}
    kinds = dict(zip(table["arm"], table["kind"], strict=True))
    return [
        Line2D([], [], **point, color=look["color"], label=look["label"], fillstyle=fills.get(kinds[arm], "full"))
        for arm, look in looks.items()
    ]


def _handles(table: pd.DataFrame, cells: list[pd.DataFrame]) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    made: list[Artist] = []
    if len(cells) > 1:
        point: dict[str, Any] = {"linestyle": "", "markersize": 4}
        marks = [style.MARKERS[number % len(style.MARKERS)] for number in range(len(cells))]
        made += [
            Line2D([], [], **point, color=style.GREY, marker=mark, label=cell["label"].iloc[0])
            for mark, cell in zip(marks, cells, strict=True)
        ]
    made.append(Patch(color=style.PALE, label=f"within {100 * NAMED:.0f} %"))
    return [*made, *([style.drifted_handle()] if (table["status"] == "drifted").any() else [])]


def caption(table: pd.DataFrame) -> str:
    beyond = int((table["residual"].abs() > NAMED).sum())
    return (
        "Speed-up measured on the profiled prompts against tokens per round × t_AR / stages; below the diagonal is "
        f"time that no stage accounts for. {beyond} of {len(table)} arms lie beyond 5 %."
    )


PREDICTED = Plot(
    "predicted",
    "measured speed-up against what the stages predict",
    predicted_data,
    draw_predicted,
    caption,
    "no arm was profiled beside a valid AR",
    most=7,
)
