"""What more GPUs bring: seconds per token and parallel efficiency by tensor-parallel size, a line an arm.

Cells that are equal but for tp are one pair of panels. Efficiency is that of `python -m analysis table --scaling`: the
smallest tp's time over the time here, paired prompt for prompt, over how many times as many ranks there are; 100 %
where two are twice as fast as one. Sizes ran in processes of their own: what the machine did in between is part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import style
from analysis.pairing import counted, matched, ratio
from analysis.plot_data import ARM, Source, panels_of, title
from analysis.plots.base import Plot
from analysis.records import BASELINE

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = ["n_requests", "tpot_s", "n_paired_prompts", "efficiency", "efficiency_low", "efficiency_high"]


def scaling_data(source: Source) -> pd.DataFrame:
    """One row per cell and arm that ran at two tp or more: `tpot_s` from `load_runs`, `efficiency` with its 95 %
    interval (1 at the smallest tp, where there is none) and the number of prompts it is from."""
    runs = source.runs[[*ARM, "n_requests", "tpot_s"]]
    runs = runs[runs["tpot_s"] > 0]
    panels = pd.Series(panels_of(runs, ["tp"]), index=runs.index, dtype="str")
    found = [_of_one(source, rows) for _, rows in runs.groupby(panels, sort=False) if rows["tp"].nunique() > 1]
    return pd.concat(found, ignore_index=True) if found else runs.iloc[:0]


def _of_one(source: Source, runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of cells that are equal but for tp, of each tp the first cell."""
    runs = runs.sort_values("tp", kind="stable")
    cells = runs.drop_duplicates("tp")
    places = dict(zip(cells["tp"], zip(cells["results"], cells["cell_id"], strict=True), strict=True))
    base, first, efficiency = min(places), counted(source.cells[places[min(places)]]), {}
    for tp, place in places.items():
        for arm, pairs in matched(counted(source.cells[place]), first).groupby("arm", sort=False) if tp != base else ():
            efficiency[place, arm] = ratio(pairs)
    rows = []
    for row in runs.to_dict("records"):
        place = row["results"], row["cell_id"]
        gain = efficiency.get((place, row["arm"]))
        share = base / row["tp"]
        if place == places[base]:
            rows.append({**row, "n_paired_prompts": 0, "efficiency": 1.0})
        elif gain is not None:
            low, high = gain.low * share, gain.high * share
            rows.append({**row, "n_paired_prompts": gain.n, "efficiency": gain.point * share})
            rows[-1] |= {"efficiency_low": low, "efficiency_high": high}
    table = pd.DataFrame(rows, columns=[*ARM, *FIGURES])
    return table[table.groupby("arm")["tp"].transform("nunique") > 1]


def draw_scaling(table: pd.DataFrame) -> Figure:
    from matplotlib.lines import Line2D

    table = table.assign(panel=panels_of(table, ["tp"]))
    panels, looks = list(table.groupby("panel", sort=False)), style.arm_looks(table)
    handles: list[Artist] = [Line2D([], [], **look) for look in looks.values()]
    if (table["status"] == "drifted").any():
        handles.append(style.drifted_handle())
    extra = style.legend_height(handles, style.PAGE)
    rows = len(panels)
    size = (style.PAGE, 0.5 + (2.0 if rows == 1 else 1.75) * rows + extra)
    figure, grid = style.panels(rows, 2, size, sharex=True)
    for (left, right), (label, cells) in zip(grid, panels, strict=True):
        _lines(left, cells.assign(shown=cells["tpot_s"] * 1e3), looks)
        _lines(right, cells.assign(shown=cells["efficiency"] * 100, tp=_beside(cells, looks)), looks)
        shades = [looks[arm]["color"] for arm in cells["arm"]]
        ends = 100 * cells["efficiency_low"], 100 * cells["efficiency_high"]
        right.vlines(_beside(cells, looks), *ends, colors=shades, linewidth=0.8, zorder=3)
        left.set(ylabel="TPOT (ms)", yscale="log")
        style.plain_ticks(left.yaxis)
        right.axhline(100, color=style.GREY, linewidth=1.0, zorder=1)
        right.set(ylabel="efficiency (%)")
        right.set_ylim(0, max(110.0, 105 * float(cells["efficiency"].max())))
        if label:
            left.set_title(style.in_lines(str(label), style.PAGE / 2), loc="left")
    sizes = sorted(table["tp"].unique())
    grid[0, 0].set_xscale("log", base=2)
    grid[0, 0].set_xticks(sizes, [str(size) for size in sizes])
    grid[0, 0].set_xlim(sizes[0] / 1.15, sizes[-1] * 1.15)
    ranks = "GPUs" if (table["device"] == "cuda").all() else "ranks"
    for axes in grid[-1]:
        axes.set_xlabel(f"tensor-parallel size ({ranks})")
    figure.align_ylabels()
    figure.suptitle(title(table, style.PAGE))
    style.legend_below(figure, handles)
    return figure


def _beside(cells: pd.DataFrame, looks: dict[str, dict[str, Any]]) -> pd.Series[float]:
    """Where each arm stands: a little aside of the others at its size, so that intervals do not cover each other."""
    place = cells["arm"].map(list(looks).index) - (len(looks) - 1) / 2
    return cells["tp"] * 2.0 ** (0.02 * place)


def _lines(axes: Axes, cells: pd.DataFrame, looks: dict[str, dict[str, Any]]) -> None:
    for arm, line in cells.groupby("arm", sort=False):
        look, line = looks[str(arm)], line.sort_values("tp")
        axes.plot(line["tp"], line["shown"], **look, zorder=5 if arm == BASELINE else 4)
        drifted = line[line["status"] == "drifted"]
        axes.plot(drifted["tp"], drifted["shown"], **look | {"linestyle": ""}, markerfacecolor="white", zorder=6)
    style.horizontal_grid(axes)


def caption(table: pd.DataFrame) -> str:
    return (
        "Mean time per output token by tensor-parallel size, and efficiency: the time at the smallest size over the "
        "time here (geometric mean over the same prompts, bars: 95 % interval) over how many times as many ranks there "
        "are. "
        "Sizes were timed in processes of their own." + style.drifted_note(table)
    )


SCALING = Plot(
    "tp",
    "time per token and efficiency by tensor-parallel size",
    scaling_data,
    draw_scaling,
    caption,
    "no two cells differ in tp alone",
    most=12,
    compared=("tp",),
)
