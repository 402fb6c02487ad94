"""Every budget's speed-up as its replayed rounds and the measured cost of its width predict it, beside what was timed;
and the cost curve behind it.

Both are for the prompts that the budget was not chosen on, where these are kept apart. A gap in the curve is a width
beyond those that were timed: nothing is extrapolated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import stats, style
from analysis.advise import advise, rows
from analysis.advise_subjects import CHAIN
from analysis.plot_data import ARM, SETTINGS, Source, kind_of, title
from analysis.plots.base import Plot
from analysis.records import BASELINE
from methods.base import Refusal
from methods.ddtree import DDTree

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TREES = DDTree.name
_MARGIN = 1.12
_TALLEST = 1.6  # times the highest point: intervals of few prompts may stretch the axis so far
_MARKS, _OTHER = {CHAIN: "*"}, "p"  # beside those of trees: their costs are no tree's
_APART = 0.18  # from the smallest budget to DFlash at its left, as a part of the range of budgets


def advice_data(source: Source) -> pd.DataFrame:
    """One row per subject and arm, as in `load_advice`, every budget among them; none without a replay and timed trees
    that belong together."""
    try:
        found = advise(source.cells.values())
    except Refusal:
        return pd.DataFrame()
    settings = {(row["results"], row["cell_id"]): row for row in source.runs.to_dict("records")}
    parts = []
    for advice in found:
        cell = settings.get(advice.subject.place)
        if cell is not None:
            same = {name: cell[name] for name in ("results", "cell_id", "label", *SETTINGS, "suite")}
            same |= {"n_prompts": len(advice.test.prompts), "apart": advice.subject.halves.apart}
            made = pd.DataFrame([{**same, **row} for row in rows(advice)])
            kinds = [kind_of(arm, budget) for arm, budget in zip(made["arm"], made["budget"], strict=True)]
            parts.append(made.assign(kind=kinds, workload=cell["suite"]))
    if not parts:
        return pd.DataFrame()
    table = pd.concat(parts, ignore_index=True)
    return table[[*ARM, *(name for name in table if name not in ARM)]]


def draw_advice(table: pd.DataFrame) -> Figure:
    subjects = [rows for _, rows in table.groupby(stats.CELL, sort=False)]
    handles = _handles(table, subjects)
    figure, ((left, right),) = style.panels(1, 2, (style.PAGE, 2.4 + style.legend_height(handles, style.PAGE)))
    ends = Ends.of(table)
    for number, subject in enumerate(subjects):
        _draw(left, right, subject, style.cell_look(number), ends.chain)
    for axes, lowest in ((left, 0.75 * ends.chain), (right, 0.8)):
        axes.set_xscale("log", base=2)
        axes.set_xlim(lowest, 1.3 * ends.width)
        style.horizontal_grid(axes)
    left.axhline(1, color=style.GREY, linewidth=1.0, zorder=1)
    style.beside(left, "AR", 1)
    places = [2.0**power for power in range(11) if 2**power <= ends.width]
    step = 2 if len(places) > 6 else 1
    budgets = [place for place in places if place >= ends.budget][::step]
    left.set_xticks([ends.chain, *budgets], ["DFlash", *(f"{place:.0f}" for place in budgets)])
    right.set_xticks(places[::step], [f"{place:.0f}" for place in places[::step]])
    left.set(xlabel="DDTree node budget", ylabel="speed-up over AR", ylim=(0, _height(table)))
    right.set(xlabel="rows of the verify pass", ylabel="a round's time over AR's", yscale="log")
    style.plain_ticks(right.yaxis)
    for axes in (left, right):
        axes.xaxis.set_minor_locator(_none())
    figure.suptitle(title(table, style.PAGE))
    style.legend_below(figure, handles)
    return figure


def _none() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


class Ends(NamedTuple):
    """The horizontal axis: the smallest budget that is drawn, DFlash at its left, and the largest width."""

    budget: float
    chain: float
    width: float

    @classmethod
    def of(cls, table: pd.DataFrame) -> Ends:
        known = table[table["speedup"].notna() | table["measured_speedup"].notna()]
        low, high = float(known["budget"].min()), float(max(known["budget"].max(), known["width"].max()))
        return cls(low, low / (2 * high / low) ** _APART, high)


def _height(table: pd.DataFrame) -> float:
    points = table[["speedup", "measured_speedup"]].to_numpy(dtype=np.float64)
    ends = table[["speedup_high", "measured_speedup_high"]].to_numpy(dtype=np.float64)
    highest = float(np.nanmax(points))
    return _MARGIN * max(1.0, min(float(np.nanmax([highest, *ends[~np.isnan(ends)]])), _TALLEST * highest))


def _draw(left: Axes, right: Axes, subject: pd.DataFrame, look: dict[str, Any], at: float) -> None:
    """One subject; `at` is where DFlash stands."""
    colour = look["color"]
    trees = subject[subject["kind"] == TREES].sort_values("budget")
    left.plot(trees["budget"], trees["speedup"], color=colour, zorder=3)
    left.fill_between(
        trees["budget"], trees["speedup_low"], trees["speedup_high"], color=colour, alpha=0.16, linewidth=0
    )
    chain = subject[subject["arm"] == CHAIN].assign(budget=at)
    for height in chain["speedup"].dropna():
        left.axhline(height, color=colour, linestyle="--", linewidth=0.8, alpha=0.7, zorder=2)
    taken = trees[trees["verdict"] == "take"]
    left.plot(taken["budget"], taken["speedup"], linestyle="", marker="o", markersize=9, fillstyle="none", color=colour)
    timed = pd.concat([chain, trees, subject[~subject["kind"].isin((TREES, CHAIN, BASELINE))]])
    timed = timed[timed["measured_speedup"].notna()]
    left.vlines(
        timed["budget"], timed["measured_speedup_low"], timed["measured_speedup_high"], color=colour, linewidth=1.0
    )
    costs = trees[trees["cost"].notna()]
    right.plot(costs["width"], costs["cost"], color=colour, zorder=3)
    known = pd.concat([subject[subject["arm"].isin((BASELINE, CHAIN))], costs[costs["cost_from"] == "measured"]])
    known = known[known["width"].notna() & known["cost"].notna()]
    for axes, points, x, y in ((left, timed, "budget", "measured_speedup"), (right, known, "width", "cost")):
        for (drifted, kind), some in points.groupby([points["status"] == "drifted", "kind"]):
            mark = _MARKS.get(str(kind), look["marker"] if kind in (TREES, BASELINE) else _OTHER)
            fill = "white" if drifted else colour
            axes.plot(some[x], some[y], linestyle="", marker=mark, color=colour, markerfacecolor=fill, zorder=5)


def _handles(table: pd.DataFrame, subjects: list[pd.DataFrame]) -> list[Artist]:
    from matplotlib.lines import Line2D

    grey: dict[str, Any] = {"color": style.GREY}
    made: list[Artist] = []
    if len(subjects) > 1:
        made += [Line2D([], [], **style.cell_look(i), label=one["label"].iloc[0]) for i, one in enumerate(subjects)]
    made += [Line2D([], [], **grey, label="predicted"), Line2D([], [], **grey, marker="o", linestyle="", label="timed")]
    made += [Line2D([], [], **grey, linestyle="--", linewidth=0.8, marker=_MARKS[CHAIN], label="DFlash")]
    others = [kind for kind in dict.fromkeys(table["kind"]) if kind not in (TREES, CHAIN, BASELINE)]
    made += [Line2D([], [], **grey, marker=_OTHER, linestyle="", label=style.name(kind)) for kind in others]
    if (table.loc[table["kind"] == TREES, "verdict"] == "take").any():
        made.append(
            Line2D([], [], **grey, marker="o", markersize=8, fillstyle="none", linestyle="", label="budget to take")
        )
    return [*made, *([style.drifted_handle()] if (table["status"] == "drifted").any() else [])]


def caption(table: pd.DataFrame) -> str:
    apart = table.loc[(table["arm"] != BASELINE) & table["difference"].notna(), "difference"]
    far = (
        ""
        if apart.empty
        else f" Predictions lie {_percent(apart.min())} to {_percent(apart.max())} from what was timed."
    )
    prompts = style.counts(table["n_prompts"])
    where = "which the budget was not chosen on" if table["apart"].all() else "some of which it was chosen on"
    return (
        f"Speed-up over AR for every budget, predicted from replayed rounds and the cost of a round, for {prompts} "
        f"prompts {where}; band and bars: 95 % intervals over prompts. Right: costs timed, and read off between."
        f"{far}{style.drifted_note(table)}"
    )


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:+.0f} %"


ADVICE = Plot(
    "advice",
    "every budget's predicted speed-up against what was timed",
    advice_data,
    draw_advice,
    caption,
    "no replay of the timed trees' texts",
    most=4,
)
