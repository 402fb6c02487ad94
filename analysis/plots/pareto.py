"""What a reader gets against what a GPU gives: tokens/s per user and tokens/s per GPU, one point per cell and arm.

Up and to the right is better; the frontier joins the points that no other beats in both. Comparable are cells of one
model, drafter, workload and sampling, which may differ in engine, tp, concurrency, dtype and device; every such group
of cells has its panel. A thin line joins the concurrencies of one arm at one tp.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import stats, style
from analysis.loaders import frontier
from analysis.plot_data import ARM, Source, panels_of, title
from analysis.plots.base import Plot

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMPARED = ("engine", "tp", "concurrency", "dtype", "device")
X, Y = "tokens_per_s_per_user", "tokens_per_s_per_gpu"
_POINT = [*stats.CELL, "arm"]
_FRAMED: dict[str, Any] = {"markeredgecolor": style.INK, "markeredgewidth": 0.8, "markersize": 5}
_TP_MARKERS = "os^DvPX"


def pareto_data(source: Source) -> pd.DataFrame:
    """One row per cell and arm, of panels with two cells at least, and whether it is `on_frontier` there."""
    runs = source.runs[[*ARM, "n_requests", X, Y]]
    runs = runs[(runs[X] > 0) & (runs[Y] > 0)]
    if runs.empty:
        return runs.assign(on_frontier=[])
    panel = pd.Series(panels_of(runs, COMPARED), index=runs.index, dtype="str")
    runs = runs[runs.groupby(panel)["cell_id"].transform("nunique") > 1]
    best = [frontier(points, X, Y)[_POINT] for _, points in runs.groupby(panel[runs.index])]
    if not best:
        return runs.assign(on_frontier=[])
    found = pd.MultiIndex.from_frame(pd.concat(best))
    return runs.assign(on_frontier=pd.MultiIndex.from_frame(runs[_POINT]).isin(found))


def draw_pareto(table: pd.DataFrame) -> Figure:
    table = table.assign(panel=panels_of(table, COMPARED))
    panels, looks = list(table.groupby("panel", sort=False)), style.arm_looks(table)
    rows, columns = style.grid_of(len(panels))
    handles = _handles(table, looks)
    width = style.PAGE
    extra = style.legend_height(handles, width)
    size = (width, 0.5 + (3.0 if columns == 1 else 2.4 if columns == 2 else 1.9) * rows + extra)
    figure, grid = style.panels(rows, columns, size)
    for axes, (label, points) in zip(grid.flat, panels, strict=False):
        _points(axes, points, looks, sorted(table["tp"].unique()))
        axes.set_title(style.in_lines(str(label), 0.8 * width / columns))
    style.finish(grid, len(panels), "tokens/s per user")
    figure.supylabel("tokens/s per GPU" if (table["device"] == "cuda").all() else "tokens/s per rank", fontsize=8)
    figure.suptitle(title(table, width))
    style.legend_below(figure, handles)
    return figure


def _points(axes: Axes, points: pd.DataFrame, looks: dict[str, dict[str, Any]], sizes: list[int]) -> None:
    best = points[points["on_frontier"]].sort_values(X)
    axes.plot(best[X], best[Y], color=style.INK, linewidth=3.2, alpha=0.16, zorder=1, solid_joinstyle="round")
    same = ["arm", "engine", "tp", "dtype", "device"]
    for (arm, *_), line in points.groupby(same, sort=False):
        look = looks[str(arm)] | {"marker": _TP_MARKERS[sizes.index(line["tp"].iloc[0]) % len(_TP_MARKERS)]}
        line = line.sort_values("concurrency")
        axes.plot(line[X], line[Y], color=look["color"], linewidth=0.5, alpha=0.4, zorder=2)
        for point in line.to_dict("records"):
            ours = look | {"linestyle": "", "zorder": 4 if point["on_frontier"] else 3}
            ours |= _FRAMED if point["on_frontier"] else {}
            ours |= {"markerfacecolor": "white"} if point["status"] == "drifted" else {}
            axes.plot([point[X]], [point[Y]], **ours)
    axes.grid(True)
    axes.set(xscale="log", yscale="log")
    _name_frontier(axes, best, several=points["concurrency"].nunique() > 1)
    style.plain_ticks(axes.xaxis)
    style.plain_ticks(axes.yaxis)


def _name_frontier(axes: Axes, best: pd.DataFrame, several: bool) -> None:
    """The arms on the frontier by name, beyond it, where nothing is; of points close together the upper one's."""
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.22)
    bottom, top = map(math.log, axes.get_ylim())
    last = math.inf
    for row in best.sort_values(Y, ascending=False).to_dict("records"):
        height = (math.log(row[Y]) - bottom) / (top - bottom)
        if last - height > 0.055:
            said = style.arm_name(row["kind"], row["budget"]) + (f", c {row['concurrency']}" if several else "")
            axes.annotate(said, (row[X], row[Y]), (5, 1), textcoords="offset points", fontsize=style.SMALL)
            last = height


def _handles(table: pd.DataFrame, looks: dict[str, dict[str, Any]]) -> list[Artist]:
    from matplotlib.lines import Line2D

    made: list[Artist] = [
        Line2D([], [], color=look["color"], marker="o", linestyle="", label=look["label"]) for look in looks.values()
    ]
    sizes = sorted(table["tp"].unique())
    if len(sizes) > 1:
        marks = zip(sizes, _TP_MARKERS, strict=False)
        made += [Line2D([], [], color=style.GREY, marker=mark, linestyle="", label=f"tp {tp}") for tp, mark in marks]
    made.append(Line2D([], [], color=style.INK, linewidth=3.2, alpha=0.16, label="frontier"))
    return [*made, *([style.drifted_handle()] if (table["status"] == "drifted").any() else [])]


def caption(table: pd.DataFrame) -> str:
    best = table[table["on_frontier"]]
    named = ", ".join(dict.fromkeys(style.arm_name(k, b) for k, b in zip(best["kind"], best["budget"], strict=True)))
    return (
        "Tokens/s of one reader after the first token against tokens/s of one GPU (or rank), all slots busy, prefill "
        f"included; a thin line joins the concurrencies (c) of an arm at one tp. Frontier: {named}."
        + style.drifted_note(table)
    )


PARETO = Plot(
    "pareto",
    "tokens/s per user against tokens/s per GPU, with the frontier",
    pareto_data,
    draw_pareto,
    caption,
    "no two cells differ in engine, tp, concurrency, dtype or device alone",
    most=36,
    compared=COMPARED,
)
