"""Speed-up by category and arm as a map: above AR blue, below it orange, the number in each field.

A column a category. Cells that ask one category only, as suites of one kind of question do, stand in one map, a column
each; the others have their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    from matplotlib.image import AxesImage

COLOURS = ("#B35806", "#F1A340", "#FEE0B6", "#F7F7F7", "#D1E5F0", "#67A9CF", "#2166AC")  # below AR, 1, above
FIGURES = ["n_prompts", "speedup", "speedup_low", "speedup_high"]
WHOLE = "all"


def category_data(source: Source) -> pd.DataFrame:
    """One row per cell, arm and category: the speed-up from `load_runs` by category, its interval and the number of
    prompts; the whole workload as the category `all` where there are several."""
    split, runs = source.categories, source.runs
    split = split[[*ARM, "category", *FIGURES]]
    several = split.groupby(stats.CELL)["category"].nunique()
    mixed = pd.MultiIndex.from_frame(runs[stats.CELL]).isin(several[several > 1].index)
    whole = runs.loc[mixed, [*ARM, *FIGURES]].assign(category=WHOLE)
    found = pd.concat([split, whole], ignore_index=True)
    found = found[(found["arm"] != BASELINE) & found["speedup"].notna()]
    places = list(dict.fromkeys(zip(runs["results"], runs["cell_id"], strict=True)))
    order = [places.index(place) for place in zip(found["results"], found["cell_id"], strict=True)]
    return found.assign(order=order).sort_values("order", kind="stable").drop(columns="order")


def draw_categories(table: pd.DataFrame) -> Figure:
    panels = _panels(table)
    looks = style.arm_looks(table)
    fields = [len(dict.fromkeys(panel["column"])) for _, panel in panels]
    rows, columns = _grid(len(panels), max(fields))
    width = style.COLUMN if columns == 1 and max(fields) <= 6 else style.PAGE
    height = 0.75 + rows * (0.75 + 0.2 * len(looks))
    figure, grid = style.panels(rows, columns, (width, height))
    reach = max(abs(math.log2(value)) for value in table["speedup"])
    shown: AxesImage | None = None
    for number, (axes, (label, panel)) in enumerate(zip(grid.flat, panels, strict=False)):
        shown = _map(axes, panel, list(looks), reach)
        names = [look["label"] for look in looks.values()]
        axes.set_yticks(range(len(looks)), names if number % columns == 0 else [""] * len(looks))
        axes.set_title(style.in_lines(label, 0.8 * width / columns))
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    figure.suptitle(title(table, width))
    return figure if shown is None else _scale(figure, shown, reach)


def _panels(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    cells = [cell for _, cell in table.groupby(stats.CELL, sort=False)]
    several = [cell for cell in cells if cell["category"].nunique() > 1 or len(cells) == 1]
    single = [cell.assign(column=cell["label"]) for cell in cells if cell["category"].nunique() == 1 and len(cells) > 1]
    maps = [(cell["label"].iloc[0], cell.assign(column=cell["category"])) for cell in several]
    return [*([("", pd.concat(single))] if single else []), *maps]


def _grid(panels: int, fields: int) -> tuple[int, int]:
    columns = min(panels, 3 if fields <= 3 else 2 if fields <= 6 else 1)
    return math.ceil(panels / columns), columns


def _map(axes: Axes, panel: pd.DataFrame, arms: list[str], reach: float) -> AxesImage:
    from matplotlib.colors import LinearSegmentedColormap

    names = [name for name in dict.fromkeys(panel["column"]) if name != WHOLE]
    names += [WHOLE] if (panel["column"] == WHOLE).any() else []
    colours = LinearSegmentedColormap.from_list("speed-up", COLOURS)
    values = np.full((len(arms), len(names)), np.nan)
    for row in panel.to_dict("records"):
        at, speedup = (arms.index(row["arm"]), names.index(row["column"])), float(row["speedup"])
        values[at] = math.log2(speedup)
        unsure = float(row["speedup_low"]) <= 1 <= float(row["speedup_high"])
        said = f"({speedup:.2f})" if unsure else f"{speedup:.2f}"
        dark = _dark(colours(0.5 + 0.5 * values[at] / reach))
        axes.text(at[1], at[0], said + ("*" if row["status"] == "drifted" else ""), ha="center", va="center",
                  fontsize=style.SMALL, color="white" if dark else style.INK)  # fmt: skip
    image = axes.imshow(values, cmap=colours, vmin=-reach, vmax=reach, aspect="auto")
    for place in np.argwhere(np.isnan(values)):
        axes.text(place[1], place[0], "–", ha="center", va="center", fontsize=style.SMALL, color=style.GREY)
    if WHOLE in names:
        axes.axvline(len(names) - 1.5, color="white", linewidth=2.5)
    long = any(len(name) > 9 for name in names) or len(names) > 6
    axes.set_xticks(range(len(names)), [name.replace("_", " ") for name in names], rotation=30 if long else 0,
                    ha="right" if long else "center", rotation_mode="anchor" if long else None)  # fmt: skip
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def _dark(colour: Sequence[float]) -> bool:
    """Whether white letters read better on a colour than black ones (by its relative luminance)."""
    light = sum(part * weight for part, weight in zip(colour, (0.2126, 0.7152, 0.0722), strict=False))
    return light < 0.5


def _scale(figure: Figure, image: AxesImage, reach: float) -> Figure:
    """The colours' scale, from as far below 1 as the highest is above it."""
    bar = figure.colorbar(image, ax=figure.axes, fraction=0.035, pad=0.02, aspect=25, shrink=0.8)
    marks = [times for times in (0.125, 0.25, 0.5, 1, 2, 4, 8, 16) if abs(math.log2(times)) <= reach]
    bar.set_ticks([math.log2(times) for times in marks], labels=[f"{times:g}×" for times in marks])
    bar.outline.set_visible(False)
    bar.ax.set_ylim(min(0.0, float(np.nanmin(np.asarray(image.get_array())))) - 0.05 * reach, reach)
    bar.ax.tick_params(length=2)
    return figure


def caption(table: pd.DataFrame) -> str:
    drifted = " An asterisk marks drifted arms." if (table["status"] == "drifted").any() else ""
    return (
        f"Speed-up over AR by category and arm, {style.counts(table['n_prompts'])} prompts a field. In brackets: its "
        f"95 % interval holds 1.{drifted}"
    )


CATEGORIES = Plot(
    "categories",
    "speed-up by category and arm",
    category_data,
    draw_categories,
    caption,
    "no arm has a valid AR to compare with",
    most=12,
)
