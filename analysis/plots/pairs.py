"""Prompt by prompt: AR's time per token against an arm's, with the diagonal and lines of equal speed-up.

One point a prompt: the geometric means of its repeats and turns, so that their ratio is the prompt's part in the
arm's speed-up. One cell has a panel an arm; several have a panel each, of the cell's fastest arm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis import stats, style
from analysis.plot_data import ARM, Source, title
from analysis.plots.base import Plot
from analysis.records import BASELINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINES = (0.25, 0.5, 1, 2, 4, 8, 16, 32)  # times as fast as AR


def pairs_data(source: Source) -> pd.DataFrame:
    """One row per cell, arm and prompt: `tpot_baseline_s` and `tpot_s` (geometric means over the pairs of
    `stats.pair`), `speedup` of the prompt, `n_pairs`; `arm_speedup` is the arm's in `load_runs`."""
    pairs = source.pairs
    pairs = pairs[(pairs["arm"] != BASELINE) & pairs["log_speedup"].notna()]
    logs = pairs.assign(mine=np.log(pairs["tpot_s"]), baseline=np.log(pairs["tpot_baseline_s"]))
    prompts = logs.groupby([*stats.CELL, "arm", "category", "prompt_id"], sort=False)
    found = prompts.agg(mine=("mine", "mean"), baseline=("baseline", "mean"), n_pairs=("mine", "size")).reset_index()
    found = found.assign(tpot_baseline_s=np.exp(found["baseline"]), tpot_s=np.exp(found["mine"]))
    found = found.assign(speedup=found["tpot_baseline_s"] / found["tpot_s"]).drop(columns=["mine", "baseline"])
    arms = source.runs[[*ARM, "speedup"]].rename(columns={"speedup": "arm_speedup"})
    return arms[arms["arm_speedup"].notna()].merge(found, on=[*stats.CELL, "arm"], how="inner")


def draw_pairs(table: pd.DataFrame) -> Figure:
    from matplotlib.lines import Line2D

    panels = _panels(table)
    drawn = pd.concat([points for _, points in panels])
    categories = list(dict.fromkeys(table["category"]))
    looks = {category: style.cell_look(number) for number, category in enumerate(categories)}
    handles = [
        Line2D([], [], **look, linestyle="", label=category.replace("_", " ")) for category, look in looks.items()
    ]
    handles = handles if len(handles) > 1 else []
    rows, columns = style.grid_of(len(panels), most=4 if len(panels) > 6 else 3)
    width = style.COLUMN if len(panels) == 1 else style.PAGE
    extra = style.legend_height(handles, width)
    size = (width, 0.5 + (2.4 if columns < 3 else 2.0 if columns == 3 else 1.75) * rows + extra)
    figure, grid = style.panels(rows, columns, size, sharex=True, sharey=True)
    low, high = 1e3 * drawn["tpot_baseline_s"].min(), 1e3 * drawn["tpot_baseline_s"].max()
    least = 1e3 * drawn["tpot_s"].min()
    for axes, (label, points) in zip(grid.flat, panels, strict=False):
        for category, some in points.groupby("category", sort=False):
            hollow = some["status"].iloc[0] == "drifted"
            look = looks[str(category)] | ({"markerfacecolor": "none"} if hollow else {})
            axes.plot(1e3 * some["tpot_baseline_s"], 1e3 * some["tpot_s"], **look, linestyle="", markersize=2.4,
                      markeredgewidth=0.4, alpha=0.75)  # fmt: skip
        axes.set_title(label)
    top = max(high, 1e3 * drawn["tpot_s"].max())
    for axes in grid.flat[: len(panels)]:
        _speedup_lines(axes, (low / 1.06, high * 1.06), (least / 1.12, top * 1.12))
    style.finish(grid, len(panels), "TPOT of AR (ms)")
    figure.supylabel("TPOT of the arm (ms)", fontsize=8)
    figure.suptitle(title(table, width))
    style.legend_below(figure, handles)
    return figure


def _panels(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """One cell: an arm a panel; several: the fastest arm of each."""
    cells = list(table.groupby(stats.CELL, sort=False))
    if len(cells) == 1:
        return [(_said(points), points) for _, points in table.groupby("arm", sort=False)]
    fastest = [cell[cell["arm_speedup"] == cell["arm_speedup"].max()] for _, cell in cells]
    return [(f"{style.in_lines(cell['label'].iloc[0], 1.9)}\n{_said(cell)}", cell) for cell in fastest]


def _said(points: pd.DataFrame) -> str:
    first = points.iloc[0]
    drifted = ", drifted" if first["status"] == "drifted" else ""
    return f"{style.arm_name(first['kind'], first['budget'])}: {first['arm_speedup']:.2f}×{drifted}"


def _speedup_lines(axes: Axes, across: tuple[float, float], up: tuple[float, float]) -> None:
    """The diagonal and its multiples, named at the right end, within the range of the points."""
    for times in _LINES:
        ends = [side / times for side in across]
        if ends[1] < up[0] or ends[0] > up[1]:
            continue
        plain = times == 1
        axes.plot(
            across, ends, color=style.GREY, linewidth=1.0 if plain else 0.6, linestyle="-" if plain else ":", zorder=1
        )
        if up[0] * 1.02 <= ends[1] <= up[1]:
            style.beside(axes, f"{times:g}×", ends[1])
    axes.set(xscale="log", yscale="log", xlim=across, ylim=up)
    style.plain_ticks(axes.xaxis)
    style.plain_ticks(axes.yaxis)


def caption(table: pd.DataFrame) -> str:
    several = len(table[stats.CELL].drop_duplicates()) > 1
    which = "the fastest arm of each cell" if several else "each arm"
    n = table.groupby([*stats.CELL, "arm"])["prompt_id"].nunique()
    return (
        f"Time per output token of AR against {which}, a point a prompt ({style.counts(n)} prompts), with the arm's "
        "speed-up. Below the diagonal the arm is faster; dotted lines are multiples." + style.drifted_note(table)
    )


PAIRS = Plot(
    "pairs",
    "each prompt's time per token: AR against an arm",
    pairs_data,
    draw_pairs,
    caption,
    "no request has a partner of a valid AR",
    most=12,
)
