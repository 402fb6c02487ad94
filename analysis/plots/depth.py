"""How deep the rounds reach: by depth (of all rounds, and of those that got to the depth before), and as a histogram.

All are over uncut rounds. By depth there is a line an arm, budgets from light to dark; the histogram has a row an arm,
the mean marked in it, so that the rounds which take a whole block show as what they are, a peak at the end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis import stats, style
from analysis.plot_data import ARM, Source, title
from analysis.plots.base import Plot
from analysis.records import BASELINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 0.86  # of a row is the tallest bar
FEWEST = 20  # rounds that reached the depth before: a rate among fewer is not drawn
_RATES = {"marginal": "P(≥ d)", "conditional": "P(≥ d | ≥ d − 1)"}


def depth_data(source: Source) -> pd.DataFrame:
    """One row per cell, arm and depth, to the deepest of the cell; the columns of `load_acceptance`.

    1 + Σ marginal is the arm's acceptance length in `load_runs`.
    """
    arms = source.arms
    return arms[arms["arm"] != BASELINE].merge(source.acceptance, on=[*stats.CELL, "arm"], how="inner")


def histogram_data(source: Source) -> pd.DataFrame:
    """One row per cell, arm and number of accepted tokens from 0; the columns of `load_histogram`."""
    arms = source.runs[[*ARM, "acceptance_length"]]
    return arms[arms["arm"] != BASELINE].merge(source.histogram, on=[*stats.CELL, "arm"], how="inner")


def draw_depth(table: pd.DataFrame) -> Figure:
    """For one cell both rates side by side; for several the conditional rates below the marginal ones."""
    from matplotlib.lines import Line2D

    cells = list(table.groupby(stats.CELL, sort=False))
    looks = style.arm_looks(table)
    handles = [Line2D([], [], **look) for look in looks.values()]
    blocks, across = style.grid_of(len(cells))
    rows, columns = (1, 2) if len(cells) == 1 else (2 * blocks, across)
    height = 0.35 + (2.1 if columns == 2 else 1.55) * rows + style.legend_height(handles, style.PAGE)
    alike = False if len(cells) == 1 else "row"
    figure, grid = style.panels(rows, columns, (style.PAGE, height), sharex=True, sharey=alike)
    for number, (_, cell) in enumerate(cells):
        block, column = divmod(number, across)
        panels = grid[0] if len(cells) == 1 else grid[2 * block : 2 * block + 2, column]
        for axes, rate in zip(panels, _RATES, strict=True):
            _curves(axes, cell, rate, looks)
        if len(cells) > 1:
            panels[0].set_title(style.in_lines(cell["label"].iloc[0], style.PAGE / columns))
    _axes(grid[0] if len(cells) == 1 else grid[:, 0], table)
    style.finish(grid, *((2, "accepted tokens d") if len(cells) == 1 else (len(cells), "accepted tokens d", 2)))
    figure.suptitle(title(table, style.PAGE))
    style.legend_below(figure, handles)
    return figure


def _axes(firsts: Iterable[Axes], table: pd.DataFrame) -> None:
    """Marginal rates from 0 to 1, conditional ones from a little below the lowest, to tell them apart; from 0 as well
    where too few rounds are there to draw any."""
    shown = _shown(table)["conditional"]
    lowest = math.floor(10 * float(shown.min()) - 0.5) / 10 if len(shown) else 0.0
    for axes, rate in zip(firsts, itertools.cycle(_RATES), strict=False):
        axes.set_ylabel(_RATES[rate])
        axes.set_ylim(0 if rate == "marginal" or lowest < 0.3 else lowest, 1.02)
        axes.set_xticks(_depths(int(table["depth"].max())))


def _shown(line: pd.DataFrame) -> pd.DataFrame:
    """Where the conditional rate is among enough rounds to be drawn."""
    return line[line["rounds"] / line["conditional"] >= FEWEST]


def _curves(axes: Axes, cell: pd.DataFrame, rate: str, looks: dict[str, dict[str, Any]]) -> None:
    for arm, line in cell.groupby("arm", sort=False):
        shown = line if rate == "marginal" else _shown(line)
        face: dict[str, Any] = {"markerfacecolor": "white"} if line["status"].iloc[0] == "drifted" else {}
        if len(shown):  # without a point, what is not clipped would lie outside of the figure
            axes.plot(shown["depth"], shown[rate], **looks[str(arm)], **face, markersize=2.5, clip_on=False)
    style.horizontal_grid(axes)


def _depths(deepest: int) -> list[int]:
    return list(range(1, deepest + 1)) if deepest <= 8 else [1, *range(5, deepest + 1, 5)]


def draw_histogram(table: pd.DataFrame) -> Figure:
    cells = list(table.groupby(stats.CELL, sort=False))
    looks, arms = style.arm_looks(table), list(style.arm_looks(table))
    rows, columns = style.grid_of(len(cells))
    width = style.COLUMN if len(cells) == 1 else style.PAGE
    height = 0.6 + rows * (0.3 + 0.32 * len(arms))
    figure, grid = style.panels(rows, columns, (width, height), sharex=True, sharey=True)
    tallest = float(table["share"].max())
    for axes, (_, cell) in zip(grid.flat, cells, strict=False):
        _ridges(axes, cell, arms, looks, tallest)
        axes.set_title(style.in_lines(cell["label"].iloc[0], 0.8 * width / columns))
    grid[0, 0].set_yticks(np.arange(len(arms))[::-1] + 0.3, [looks[arm]["label"] for arm in arms])
    top = float(table.loc[table["arm"] == arms[0], "share"].max()) / tallest
    grid[0, 0].set_ylim(-0.12, len(arms) - 0.9 + max(_ROW * top, 0.6))
    _scale_bar(grid[0, 0], len(arms) - 1, tallest)
    style.finish(grid, len(cells), "drafted tokens accepted")
    figure.suptitle(title(table, width))
    return figure


def _ridges(axes: Axes, cell: pd.DataFrame, arms: list[str], looks: dict[str, dict[str, Any]], tallest: float) -> None:
    """A row an arm, all to one scale, with the mean number of accepted tokens as a mark and τ at the right."""
    for arm, bars in cell.groupby("arm", sort=False):
        base = len(arms) - 1 - arms.index(str(arm))
        colour = looks[str(arm)]["color"]
        drifted = bars["status"].iloc[0] == "drifted"
        heights = _ROW * bars["share"] / tallest
        axes.bar(bars["accepted"], heights, 0.86, bottom=base, color="white" if drifted else colour,
                 edgecolor=colour, linewidth=0.4)  # fmt: skip
        axes.axhline(base, color=style.GREY, linewidth=0.4, zorder=1)
        length = float(bars["acceptance_length"].iloc[0])
        axes.plot([length - 1], [base - 0.06], marker="^", markersize=3, color=style.INK, clip_on=False, zorder=5)
        axes.annotate(f"τ {length:.2f}", (1, base + 0.3), (3, 0), axes.get_yaxis_transform(), "offset points",
                      va="center", fontsize=style.SMALL, annotation_clip=False)  # fmt: skip
    deepest = int(cell["accepted"].max())
    axes.set_xticks([0, *_depths(deepest)] if deepest <= 8 else range(0, deepest + 1, 5))
    axes.set_xlim(-0.7, deepest + 0.7)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _scale_bar(axes: Axes, base: float, tallest: float) -> None:
    """How high a tenth or a fifth of all rounds is, between the peaks of the first row."""
    share = 0.1 if tallest < 0.4 else 0.2
    place = 0.62 * axes.get_xlim()[1]
    axes.plot([place, place], [base + 0.12, base + 0.12 + _ROW * share / tallest], color=style.INK, linewidth=0.8,
              solid_capstyle="butt", zorder=6)  # fmt: skip
    axes.annotate(
        f"{100 * share:.0f} %", (place, base + 0.12), (2, 0), textcoords="offset points", fontsize=style.SMALL
    )


def depth_caption(table: pd.DataFrame) -> str:
    return (
        "Share of rounds that accept at least d drafted tokens (marginal), and their share of those that accept d − 1 "
        f"(conditional; not drawn below {FEWEST} such rounds). 1 + the sum of an arm's marginal rates is its "
        "acceptance length." + style.drifted_note(table)
    )


def histogram_caption(table: pd.DataFrame) -> str:
    peak = 100 * float(table["share"].max())
    return (
        "Rounds by drafted tokens accepted, uncut rounds only; bars of all arms to one scale, the tallest is "
        f"{peak:.0f} %. Triangle: the mean; τ: acceptance length, the mean and the bonus." + style.drifted_note(table)
    )


ACCEPTANCE = Plot(
    "acceptance",
    "acceptance by depth, marginal and conditional",
    depth_data,
    draw_depth,
    depth_caption,
    "no arm that drafts has an uncut round",
    most=6,
)
HISTOGRAM = Plot(
    "histogram",
    "rounds by what they accepted",
    histogram_data,
    draw_histogram,
    histogram_caption,
    "no arm that drafts has an uncut round",
    most=6,
)
