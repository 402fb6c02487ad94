"""The pictures: acceptance length and speed-up against budget, and how deep the rounds of each arm reach.

Every picture is a function from a results folder to a matplotlib figure, 7 inches wide at most, made to be read in
print: letters of 8 points or more, and colours that stay apart for the colour-blind (Okabe and Ito's for cells, a
sequential map from light to dark for budgets). `write_plots` saves them, each with its numbers beside it as CSV.

Invalid and failed arms are not drawn, and neither are those still to be finished.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import stats
from analysis.plot_data import budget_data, depth_data, in_lines, title
from analysis.records import BASELINE
from methods.base import Refusal

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
CELL_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito, 2008
MARKERS = "osD^vPX"
LINE_STYLES: tuple[Any, ...] = ("-", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))  # by kind of tree; dashed: no budget
BUDGET_COLOURS, PALEST = "YlGnBu", 0.33  # paler ones do not show on paper
UNBUDGETED_COLOURS = ("#D55E00", "#E69F00", "#CC79A7")
GREY = "#777777"
WIDTH = 7.0
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "figure.titlesize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "pdf.fonttype": 42,  # letters stay letters, as publishers ask
    "svg.hashsalt": "draft-tree-harness",  # the same data, the same file
}
NAMES = {BASELINE: "AR", "dflash": "DFlash", "ddtree": "DDTree"}
_GAP = 0.22  # from the smallest budget to the arms without one, as a part of the range of budgets
_OFF_SCALE = 1.6  # how far above the highest speed-up the intervals of few prompts may stretch the axis


def budget_curves(results: str | Path) -> Figure:
    """Acceptance length (left) and speed-up over AR with its 95 % interval (right) against node budget.

    A line per cell, and per kind of tree where a cell has several; arms without a budget stand at the left edge, a
    dashed line carrying their height across. Drifted arms have hollow markers.

    Raises:
        Refusal: there is no such results folder, or no arm in it to draw.
    """
    return _draw(BUDGET, results)


def acceptance_by_depth(results: str | Path) -> Figure:
    """The share of rounds that accept at least d drafted tokens, for d from 1: a panel a cell, a line an arm.

    The depths reach to the deepest that any arm of the cell accepted.

    Raises:
        Refusal: there is no such results folder, or no arm in it to draw.
    """
    return _draw(ACCEPTANCE, results)


def write_plots(results: str | Path, out: str | Path | None = None, formats: Sequence[str] = FORMATS[:2]) -> list[Path]:
    """Save every picture that the folder has data for, in `out` (`results/plots`), and say which files these are."""
    from matplotlib import pyplot, rc_context

    found = [(plot, table) for plot in PLOTS if not (table := plot.data(results)).empty]
    if not found:
        raise _nothing(results)
    folder = Path(results) / "plots" if out is None else Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"--out {folder} cannot be made a folder ({error.strerror}).") from None
    written = []
    for plot, table in found:
        table.to_csv(folder / f"{plot.name}.csv", index=False, lineterminator="\n")
        with rc_context(STYLE):
            figure = plot.draw(table)
            for format in formats:
                metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(format)
                figure.savefig(folder / f"{plot.name}.{format}", dpi=300, metadata=metadata)
            pyplot.close(figure)
        written += [folder / f"{plot.name}.{ending}" for ending in (*formats, "csv")]
    return written


@dataclass(frozen=True)
class Plot:
    """A picture: the name of its files, its numbers, and how they are drawn."""

    name: str
    data: Callable[[str | Path], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Figure]


def _draw(plot: Plot, results: str | Path) -> Figure:
    from matplotlib import rc_context

    table = plot.data(results)
    if table.empty:
        raise _nothing(results)
    with rc_context(STYLE):
        return plot.draw(table)


def _nothing(results: str | Path) -> Refusal:
    return Refusal(f"{results} has nothing to draw: no arm beside {BASELINE} is finished and valid there.")


def _name(kind: str) -> str:
    method, _, more = kind.partition("-")
    return " ".join(filter(None, (NAMES.get(method, method), more.replace("-", " "))))


def _kinds(arms: pd.DataFrame, with_budget: bool) -> list[str]:
    return list(dict.fromkeys(arms.loc[arms["budget"].notna() == with_budget, "kind"]))


def _axis(axes: Axes) -> None:
    axes.tick_params(labelsize=8, width=0.6, length=3)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.5)
    axes.set_axisbelow(True)


class _Scale(NamedTuple):
    """The horizontal axis of `budget`: powers of two, with a place for every arm without a budget at its left."""

    budgets: list[float]
    places: dict[str, float]
    octaves: float

    @classmethod
    def of(cls, arms: pd.DataFrame) -> _Scale:
        budgets = sorted(arms["budget"].dropna().unique())
        without = _kinds(arms, with_budget=False)
        octaves = math.log2(budgets[-1] / budgets[0]) if len(budgets) > 1 else 1.0
        left = budgets[0] if budgets else 2.0
        places = {kind: left / 2 ** (_GAP * octaves * (len(without) - i)) for i, kind in enumerate(without)}
        return cls(budgets, places, octaves)

    def aside(self, number: int, cells: int) -> float:
        """A factor by which a cell's lone points stand beside those of other cells."""
        return float(2 ** (self.octaves * min(0.03, 0.12 / cells) * (number - (cells - 1) / 2)))

    def apply(self, axes: Axes) -> None:
        ends = [*self.places.values(), *self.budgets]
        margin, labelled = 2 ** (0.1 * self.octaves), self._spread()
        axes.set_xscale("log", base=2)
        axes.set_xlim(min(ends) / margin, max(ends) * margin)
        axes.set_xticks([*self.places.values(), *labelled], [*map(_name, self.places), *(f"{b:.0f}" for b in labelled)])
        axes.set_xticks([b for b in self.budgets if b not in labelled], [], minor=True)

    def _spread(self) -> list[float]:
        """Budgets whose labels do not run into each other, powers of two first."""
        chosen: list[float] = []
        for budget in sorted(self.budgets, key=lambda b: (not math.log2(b).is_integer(), b)):
            if all(abs(math.log2(budget / other)) >= 0.12 * self.octaves for other in chosen):
                chosen.append(budget)
        return sorted(chosen)


def _draw_budget(table: pd.DataFrame) -> Figure:
    from matplotlib import pyplot

    arms = table[table["arm"] != BASELINE]
    cells, scale, kinds = list(arms.groupby(stats.CELL, sort=False)), _Scale.of(arms), _kinds(arms, with_budget=True)
    styles = {kind: LINE_STYLES[i % len(LINE_STYLES)] for i, kind in enumerate(kinds)}
    handles = _budget_handles([cell for _, cell in cells], styles, drifted=bool((arms["status"] == "drifted").any()))
    columns, rows = _legend_shape(handles)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(WIDTH, 2.6 + 0.18 * rows), layout="constrained")
    for number, (_, cell) in enumerate(cells):
        look, aside = _look(number), scale.aside(number, len(cells))
        for kind, line in cell.groupby("kind", sort=False):
            at = line["budget"].fillna(scale.places.get(str(kind), math.nan)) * (aside if len(line) == 1 else 1)
            for axes, name in ((left, "acceptance_length"), (right, "speedup")):
                _line(axes, line.assign(x=at), name, look, styles.get(str(kind), "--"), faint=len(cells) > 4)
    trees = f"{_name(kinds[0])} node budget" if len(kinds) == 1 else "node budget"
    for axes, label in ((left, "acceptance length"), (right, "speed-up over AR [95 % interval]")):
        _axis(axes)
        scale.apply(axes)
        axes.axhline(1, color=GREY, linewidth=1.0, zorder=1)
        axes.annotate("AR", (1, 1), (2, 0), axes.get_yaxis_transform(), "offset points", va="center", color=GREY)
        axes.set_xlabel(trees if kinds else "")
        axes.set_ylabel(label)
    left.set_ylim(bottom=1 - 0.03 * (left.get_ylim()[1] - 1))
    _speedup_axis(right, arms)
    figure.suptitle(title(table, WIDTH))
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    return figure


def _look(number: int) -> dict[str, Any]:
    """A cell's colour and marker; when the colours are used up they come again with other markers."""
    turn, place = divmod(number, len(CELL_COLOURS))
    return {"color": CELL_COLOURS[place], "marker": MARKERS[(place + turn) % len(MARKERS)]}


def _line(axes: Axes, line: pd.DataFrame, name: str, look: dict[str, Any], style: Any, faint: bool) -> None:
    """One kind of arm of one cell: a curve over budgets, or a point with its height carried across."""
    line = line[line[name].notna()].sort_values("x")
    colour = look["color"]
    axes.plot(line["x"], line[name], **look, linestyle=style, zorder=4)
    drifted = line[line["status"] == "drifted"]
    axes.plot(drifted["x"], drifted[name], **look, linestyle="", markerfacecolor="white", zorder=5)
    if line["budget"].isna().all():
        for height in line[name]:
            axes.axhline(height, color=colour, linestyle=style, linewidth=0.8, alpha=0.4 if faint else 0.7, zorder=2)
    if name == "speedup" and len(line) == 1:
        axes.vlines(line["x"], line["speedup_low"], line["speedup_high"], color=colour, linewidth=1.0, zorder=3)
    elif name == "speedup":
        shade = {"color": colour, "alpha": 0.08 if faint else 0.16, "linewidth": 0}
        axes.fill_between(line["x"], line["speedup_low"], line["speedup_high"], **shade)


def _speedup_axis(axes: Axes, arms: pd.DataFrame) -> None:
    """From 0 to a height at which the curves still show, however wide their intervals."""
    points = arms["speedup"].dropna()
    if points.empty:
        axes.text(0.5, 0.75, "no valid AR to compare with", ha="center", va="center", transform=axes.transAxes)
        axes.set_ylim(0, 2)
        return
    highest = np.nanmax([points.max(), min(arms["speedup_high"].max(), points.max() * _OFF_SCALE)])
    axes.set_ylim(0, max(1.1, 1.04 * highest))


def _budget_handles(cells: Sequence[pd.DataFrame], styles: dict[str, Any], drifted: bool) -> list[Artist]:
    """The legend's entries: cells by colour and kinds of tree by line, where there are several."""
    from matplotlib.lines import Line2D

    made: list[Artist] = []
    if len(cells) > 1:
        made += [Line2D([], [], **_look(i), label=cell["label"].iloc[0]) for i, cell in enumerate(cells)]
    if len(styles) > 1:
        made += [Line2D([], [], color=GREY, linestyle=style, label=_name(kind)) for kind, style in styles.items()]
    if drifted:
        made.append(Line2D([], [], color=GREY, marker="o", linestyle="", markerfacecolor="white", label="drifted"))
    return made


def _legend_shape(handles: Sequence[Artist]) -> tuple[int, int]:
    """Columns and rows that fit the width, as even as they can be."""
    if not handles:
        return 0, 0
    longest = max(len(str(handle.get_label())) for handle in handles)
    rows = math.ceil(len(handles) / max(1, int(WIDTH / (0.5 + 0.065 * longest))))
    return math.ceil(len(handles) / rows), rows


def _draw_acceptance(table: pd.DataFrame) -> Figure:
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    cells = list(table.groupby(stats.CELL, sort=False))
    columns = {1: 1, 2: 2, 4: 2}.get(len(cells), 3)
    rows, width = math.ceil(len(cells) / columns), WIDTH if columns > 1 else 4.6
    looks = _arm_looks(table)
    height = max(0.5 + rows * (1.9 if columns == 3 else 2.3), 0.3 + 0.18 * len(looks))
    figure = pyplot.figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for number, (axes, (_, cell)) in enumerate(zip(grid.flat, cells, strict=False)):
        for arm, line in cell.groupby("arm", sort=False):
            axes.plot(line["depth"], line["marginal"], **looks[str(arm)], clip_on=False)
        _axis(axes)
        axes.set_title(in_lines(cell["label"].iloc[0], 0.75 * width / columns))
        axes.tick_params(labelbottom=number + columns >= len(cells))
    deepest = int(table["depth"].max())
    grid[0, 0].set_xticks(range(1, deepest + 1) if deepest <= 8 else [1, *range(5, deepest + 1, 5)])
    grid[0, 0].set_ylim(0, 1.02)
    for axes in grid.flat[len(cells) :]:
        axes.remove()
    figure.supxlabel("depth d", fontsize=8)
    figure.supylabel("share of rounds accepting ≥ d drafted tokens", fontsize=8)
    figure.suptitle(title(table, width))
    handles = [Line2D([], [], **look) for look in reversed(looks.values())]  # from above, as the curves lie
    figure.legend(handles=handles, loc="outside right center", handlelength=1.8)
    return figure


def _arm_looks(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Each arm's line, arms without a budget first: those dashed, budgets from light to dark."""
    from matplotlib import colormaps

    arms = table.drop_duplicates("arm").sort_values(["budget", "arm"], na_position="first")
    budgets, trees, others = sorted(arms["budget"].dropna().unique()), _kinds(arms, True), _kinds(arms, False)
    shades = colormaps[BUDGET_COLOURS](np.linspace(PALEST, 1, len(budgets)) if len(budgets) > 1 else [0.75])
    looks: dict[str, dict[str, Any]] = {}
    for arm, kind, budget in zip(arms["arm"], arms["kind"], arms["budget"], strict=True):
        if math.isnan(budget):
            colour = UNBUDGETED_COLOURS[others.index(kind) % len(UNBUDGETED_COLOURS)]
            look = {"color": colour, "linestyle": "--", "marker": "s", "label": _name(kind)}
        else:
            style = LINE_STYLES[trees.index(kind) % len(LINE_STYLES)]
            label = f"{_name(kind)} {budget:.0f}"
            look = {"color": shades[budgets.index(budget)], "linestyle": style, "marker": "o", "label": label}
        looks[arm] = {**look, "markersize": 2.5}
    return looks


BUDGET = Plot("budget", budget_data, _draw_budget)
ACCEPTANCE = Plot("acceptance", depth_data, _draw_acceptance)
PLOTS = (BUDGET, ACCEPTANCE)
