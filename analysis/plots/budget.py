"""Acceptance length and speed-up over AR against node budget, with the interval and, if asked for, published numbers.

A line per cell, and per kind of tree where a cell has several. Arms without a budget stand at the left edge, a dashed
line carrying their height across; AR is the line at 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import stats, style
from analysis.plot_data import ARM, Source, title
from analysis.plots.base import Plot
from analysis.plots.published import draw_published, published_handles, sources, with_published
from analysis.published import PUBLISHED
from analysis.records import BASELINE

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = [
    *("n_requests", "n_prompts", "acceptance_length", "acceptance_length_low", "acceptance_length_high"),
    *("speedup", "speedup_low", "speedup_high"),
]
_GAP = 0.2  # from the smallest budget to the arms without one, as a part of the range of budgets
_WIDEST = 1.0  # times the highest point: intervals wider than that would cover the picture and are not drawn
_OFF_SCALE = 1.6  # how far above the highest speed-up the intervals of few prompts may stretch the axis


def budget_data(source: Source) -> pd.DataFrame:
    """One row per cell and arm, the baseline's too, from `load_runs`."""
    return source.runs[[*ARM, *FIGURES]]


class Scale(NamedTuple):
    """The horizontal axis: powers of two, with a place for every arm without a budget at its left."""

    budgets: list[float]
    places: dict[str, float]
    octaves: float

    @classmethod
    def of(cls, arms: pd.DataFrame) -> Scale:
        budgets = sorted(arms["budget"].dropna().unique())
        without = style.kinds(arms, with_budget=False)
        octaves = math.log2(budgets[-1] / budgets[0]) if len(budgets) > 1 else 1.0
        left = budgets[0] if budgets else 2.0
        places = {kind: left / 2 ** (_GAP * octaves * (len(without) - i)) for i, kind in enumerate(without)}
        return cls(budgets, places, octaves)

    def aside(self, number: int, cells: int) -> float:
        """A factor by which a cell's lone points stand beside those of other cells."""
        return float(2 ** (self.octaves * min(0.03, 0.12 / cells) * (number - (cells - 1) / 2)))

    def apply(self, axes: Axes) -> None:
        ends = [*self.places.values(), *self.budgets]
        margin, labelled = 2 ** (0.08 * self.octaves), self._spread()
        axes.set_xscale("log", base=2)
        axes.set_xlim(min(ends) / margin, max(ends) * margin)
        names = [*map(style.name, self.places), *(f"{budget:.0f}" for budget in labelled)]
        axes.set_xticks([*self.places.values(), *labelled], names)
        axes.set_xticks([b for b in self.budgets if b not in labelled], [], minor=True)

    def _spread(self) -> list[float]:
        """Budgets whose labels do not run into each other, powers of two first."""
        chosen: list[float] = []
        for budget in sorted(self.budgets, key=lambda b: (not math.log2(b).is_integer(), b)):
            if all(abs(math.log2(budget / other)) >= 0.12 * self.octaves for other in chosen):
                chosen.append(budget)
        return sorted(chosen)


def draw_budget(table: pd.DataFrame) -> Figure:
    measured, others = table[table["status"] != PUBLISHED], table[table["status"] == PUBLISHED]
    arms = measured[measured["arm"] != BASELINE]
    cells, kinds = list(arms.groupby(stats.CELL, sort=False)), style.kinds(arms, with_budget=True)
    scale = Scale.of(pd.concat([arms, others[others["budget"].notna()]]) if len(others) else arms)
    styles = {kind: style.TREE_STYLES[i % len(style.TREE_STYLES)] for i, kind in enumerate(kinds)}
    handles = _handles([cell for _, cell in cells], styles, drifted=bool((arms["status"] == "drifted").any()))
    handles += published_handles(others, scale.places)
    extra = style.legend_height(handles, style.PAGE)
    figure, ((left, right),) = style.panels(1, 2, (style.PAGE, 2.4 + extra))
    for axes, column in ((left, "acceptance_length"), (right, "speedup")):
        draw_published(axes, others, column, scale.places)
    for number, (_, cell) in enumerate(cells):
        _draw_cell((left, right), cell, number, len(cells), scale, styles, arms.max(numeric_only=True))
    trees = f"{style.name(kinds[0])} node budget" if len(kinds) == 1 else "node budget"
    for axes, label in ((left, "acceptance length τ"), (right, "speed-up over AR")):
        style.horizontal_grid(axes)
        scale.apply(axes)
        axes.axhline(1, color=style.GREY, linewidth=1.0, zorder=1)
        style.beside(axes, "AR", 1)
        axes.set(xlabel=trees if kinds else "", ylabel=label)
    height = max(2.0, _height(table, "acceptance_length"))
    left.set_ylim(1 - 0.03 * (height - 1), height)
    right.set_ylim(0, max(1.1, _height(table, "speedup")))
    if arms["speedup"].isna().all():
        right.text(0.5, 0.75, "no valid AR to compare with", ha="center", va="center", transform=right.transAxes)
    figure.suptitle(title(measured, style.PAGE))
    style.legend_below(figure, handles)
    return figure


def _draw_cell(
    panels: tuple[Axes, Axes],
    cell: pd.DataFrame,
    number: int,
    cells: int,
    scale: Scale,
    styles: dict[str, Any],
    highest: pd.Series[Any],
) -> None:
    look, aside = style.cell_look(number), scale.aside(number, cells)
    for kind, line in cell.groupby("kind", sort=False):
        at = line["budget"].fillna(scale.places.get(str(kind), math.nan)) * (aside if len(line) == 1 else 1)
        for axes, column in zip(panels, ("acceptance_length", "speedup"), strict=True):
            dashes, most = styles.get(str(kind), "--"), float(highest[column])
            _line(axes, line.assign(x=at), column, look, dashes, faint=cells > 4, most=most)


def _line(
    axes: Axes, line: pd.DataFrame, column: str, look: dict[str, Any], dashes: Any, faint: bool, most: float
) -> None:
    """One kind of arm of one cell: a curve over budgets, or a point with its height carried across."""
    line = line[line[column].notna()].sort_values("x")
    colour = look["color"]
    axes.plot(line["x"], line[column], **look, linestyle=dashes, zorder=4)
    drifted = line[line["status"] == "drifted"]
    axes.plot(drifted["x"], drifted[column], **look, linestyle="", markerfacecolor="white", zorder=5)
    if line["budget"].isna().all():
        for height in line[column]:
            axes.axhline(height, color=colour, linestyle=dashes, linewidth=0.8, alpha=0.4 if faint else 0.7, zorder=2)
    told = line[f"{column}_high"] - line[f"{column}_low"] <= _WIDEST * most
    ends = line[f"{column}_low"].where(told), line[f"{column}_high"].where(told)
    if len(line) == 1:
        axes.vlines(line["x"], *ends, color=colour, linewidth=1.0, zorder=3)
    else:
        axes.fill_between(line["x"], *ends, color=colour, alpha=0.08 if faint else 0.16, linewidth=0)


def _height(table: pd.DataFrame, column: str) -> float:
    """A height at which the curves still show, however wide their intervals; 2 where there is no curve."""
    highest = float(table[column].max())
    if math.isnan(highest):
        return 2.0
    return 1.04 * float(np.nanmax([highest, min(table[f"{column}_high"].max(), highest * _OFF_SCALE)]))


def _handles(cells: Sequence[pd.DataFrame], styles: dict[str, Any], drifted: bool) -> list[Artist]:
    """The legend's entries: cells by colour and kinds of tree by line, where there are several."""
    from matplotlib.lines import Line2D

    made: list[Artist] = []
    if len(cells) > 1:
        made += [Line2D([], [], **style.cell_look(i), label=cell["label"].iloc[0]) for i, cell in enumerate(cells)]
    if len(styles) > 1:
        made += [Line2D([], [], color=style.GREY, linestyle=d, label=style.name(kind)) for kind, d in styles.items()]
    return [*made, *([style.drifted_handle()] if drifted else [])]


def caption(table: pd.DataFrame) -> str:
    measured = table[table["status"] != PUBLISHED]
    return (
        "Acceptance length (pooled over rounds) and speed-up over AR (geometric mean over prompts) against node "
        f"budget, {style.counts(measured['n_prompts'])} prompts an arm; bands and bars: 95 % intervals over prompts, "
        "where they are narrower than the picture is high."
        f"{style.drifted_note(measured)}{sources(table)}"
    )


BUDGET = Plot(
    "budget",
    "acceptance length and speed-up against node budget",
    budget_data,
    draw_budget,
    caption,
    "no arm beside AR is finished and valid",
    most=7,
    overlay=with_published,
)
