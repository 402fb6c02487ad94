"""Where the time of a round goes at every budget, above the time that the hardware asks at least.

Stages are those of the profiled pass, one on the other; the short line over them is how long a timed round took, which
has no clock inside. The floor is the time to read all weights of one rank once, target's and drafter's, at the
memory's bandwidth: a round of any budget reads them. (AR does not read the drafter, and of a mixture of experts a
narrow pass reads a part: there the floor is too high.) It is drawn where the environment has both numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis import stats, style
from analysis.plot_data import ARM, Source, title
from analysis.plots.base import Plot
from analysis.records import STAGES as TIMES

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

COLOURS = {"draft_s": "#56B4E9", "build_s": "#E69F00", "verify_s": "#0072B2", "commit_s": "#BBBBBB"}  # from below
FLOOR = "#D55E00"
_PER_CLOCK = 2  # transfers of a double data rate memory


def stage_data(source: Source) -> pd.DataFrame:
    """One row per cell and profiled arm: seconds per round of each stage, `step_s` of a timed round, and `floor_s`."""
    runs = source.runs
    runs = runs[runs[list(TIMES)].notna().any(axis=1)].copy()
    floors = {place: floor_s(source, place) for place in set(zip(runs["results"], runs["cell_id"], strict=True))}
    runs["floor_s"] = [floors[place] for place in zip(runs["results"], runs["cell_id"], strict=True)]
    return runs[[*ARM, "n_profiled", *TIMES, "step_s", "floor_s"]].astype({"floor_s": "float64"})


def floor_s(source: Source, place: tuple[str, str]) -> float:
    """Seconds in which the slowest rank can read its weights once; NaN where the environment does not tell."""
    for environment in source.environments(place):
        engine = environment.get("engine") or {}
        sizes = [size for name, size in engine.items() if name.startswith("weights_bytes_rank")]
        rates = [bandwidth(gpu) for gpu in environment.get("gpu_facts") or []]
        if sizes and rates and not any(map(math.isnan, rates)):
            return float(max(sizes) / min(rates))
    return math.nan


def bandwidth(gpu: Mapping[str, Any]) -> float:
    """Bytes per second of a GPU's memory from its clock and the width of its bus; NaN where one is not known."""
    clock, bits = gpu.get("memory_clock_max_hz"), gpu.get("memory_bus_bits")
    return _PER_CLOCK * clock * bits / 8 if clock and bits else math.nan


def draw_stages(table: pd.DataFrame) -> Figure:
    cells = list(table.groupby(stats.CELL, sort=False))
    rows, columns = style.grid_of(len(cells), most=2)
    arms = max(len(cell) for _, cell in cells)
    width = style.COLUMN if len(cells) == 1 and arms <= 12 else style.PAGE
    handles = _handles(table)
    extra = style.legend_height(handles, width)
    figure, grid = style.panels(rows, columns, (width, 0.35 + 1.9 * rows + extra), sharey=True)
    for axes, (_, cell) in zip(grid.flat, cells, strict=False):
        _bars(axes, cell, width / columns)
        style.horizontal_grid(axes)
        axes.set_title(style.in_lines(cell["label"].iloc[0], width / columns))
    for axes in grid[:, 0]:
        axes.set_ylabel("ms a round")
    tallest = max(table[list(TIMES)].sum(axis=1).max(), table["step_s"].max())
    grid[0, 0].set_ylim(0, 1.05e3 * float(tallest))
    style.finish(grid, len(cells), "")
    figure.suptitle(title(table, width))
    style.legend_below(figure, handles)
    return figure


def _bars(axes: Axes, cell: pd.DataFrame, width: float) -> None:
    """A cell's arms from left to right, a gap between kinds of arm."""
    kinds = list(dict.fromkeys(cell["kind"]))
    with_budget = set(style.kinds(cell, with_budget=True))
    order = cell.assign(place=cell["kind"].map(kinds.index)).sort_values(["place", "budget"], kind="stable")
    gaps = (order["kind"] != order["kind"].shift()) & order["kind"].isin(with_budget)
    at = np.arange(len(order)) + 0.5 * gaps.cumsum().to_numpy()
    below = np.zeros(len(order))
    for stage, colour in COLOURS.items():
        height = order[stage].fillna(0).to_numpy() * 1e3
        bars = axes.bar(at, height, 0.74, bottom=below, color=colour, edgecolor="white", linewidth=0.3)
        for bar, status in zip(bars, order["status"], strict=True):
            bar.set_hatch("////" if status == "drifted" else None)
        below = below + height
    axes.hlines(order["step_s"] * 1e3, at - 0.46, at + 0.46, color=style.INK, linewidth=1.1)
    floor = float(order["floor_s"].iloc[0]) * 1e3
    if not math.isnan(floor):
        axes.axhline(floor, color=FLOOR, linestyle="--", linewidth=1.0)
    _name_arms(axes, order, at, upright=width / len(order) < 0.28)
    axes.set_xlim(at[0] - 0.7, at[-1] + 0.7)


def _name_arms(axes: Axes, order: pd.DataFrame, at: NDArray[np.float64], upright: bool) -> None:
    """Arms without a budget by name, others by budget, and the kind of tree below its budgets."""
    names = zip(order["kind"], order["budget"], strict=True)
    ticks = [style.name(kind) if math.isnan(budget) else f"{budget:.0f}" for kind, budget in names]
    axes.set_xticks(at, ticks, rotation=90 if upright else 0)
    axes.tick_params(axis="x", length=0)
    trees = style.kinds(order, with_budget=True)
    below = axes.secondary_xaxis(location=0)
    below.set_xticks(
        [float(at[order["kind"] == kind].mean()) for kind in trees],
        [f"{style.name(kind)} node budget" if len(trees) < 3 else style.name(kind) for kind in trees],
        fontsize=8 if len(trees) == 1 else style.SMALL,
    )
    below.tick_params(length=0, pad=31 if upright else 14)
    below.spines["bottom"].set_visible(False)


def _handles(table: pd.DataFrame) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    made: list[Artist] = [Patch(color=colour, label=stage.removesuffix("_s")) for stage, colour in COLOURS.items()]
    made.append(Line2D([], [], color=style.INK, linewidth=1.1, label="a timed round"))
    if table["floor_s"].notna().any():
        made.append(Line2D([], [], color=FLOOR, linestyle="--", linewidth=1.0, label="floor: weights read once"))
    if (table["status"] == "drifted").any():
        made.append(Patch(facecolor="white", edgecolor=style.GREY, hatch="////", label="drifted"))
    return made


def caption(table: pd.DataFrame) -> str:
    requests = style.counts(table["n_profiled"])
    floors = table["floor_s"].dropna()
    said = f"Time of a round by stage, from {requests} profiled requests an arm, beside that of a timed round. "
    if floors.empty:
        return said + "No floor is drawn: the environment has no memory bandwidth or no size of the weights."
    least, most = style.milliseconds(floors.min()), style.milliseconds(floors.max())
    times = least if least == most else f"{least} to {most}"
    return said + f"The floor, {times}, is the weights' bytes over the memory bandwidth."


STAGES = Plot(
    "stages",
    "time of a round by stage and budget, with the hardware's floor",
    stage_data,
    draw_stages,
    caption,
    "no arm was profiled",
    most=8,
)
