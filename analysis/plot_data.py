"""The numbers behind the pictures: which arms are drawn, what their cells have in common and what tells them apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from analysis import stats
from analysis.acceptance import load_acceptance
from analysis.load import load_runs
from analysis.records import BASELINE, find_cells

SETTINGS = {
    "model": "{}",
    "drafter": "drafter {}",
    "weights": "{} weights",
    "engine": "{}",
    "tp": "tp {}",
    "device": "{}",
    "dtype": "{}",
    "temperature": "T {:g}",
    "top_p": "top-p {:g}",
    "top_k": "top-k {:g}",
    "workload": "{}",
    "max_new_tokens": "{} new tokens",
    "concurrency": "concurrency {}",
    "seed": "seed {}",
}
_USUAL = {"weights": "checkpoint", "top_p": 1.0, "top_k": 0, "concurrency": 1}  # goes without saying
_SAID_WHERE_THEY_DIFFER = ("drafter", "max_new_tokens", "seed")
_ARM = ["results", "cell_id", "label", *SETTINGS, "arm", "method", "kind", "budget", "status"]
_BETWEEN = " · "
_FIGURES = ["n_requests", "n_prompts", "acceptance_length", "speedup", "speedup_low", "speedup_high"]


def budget_data(results: str | Path) -> pd.DataFrame:
    """The numbers of `budget_curves`, from `load_runs`: one row per cell and arm, the baseline's too."""
    return _drawable(results)[[*_ARM, *_FIGURES]]


def depth_data(results: str | Path) -> pd.DataFrame:
    """The numbers of `acceptance_by_depth`: one row per cell, arm and depth, to the deepest of the cell.

    `rounds` are the uncut rounds that accepted at least `depth` tokens, `marginal` is their share of all uncut
    rounds; 1 + Σ marginal is the arm's acceptance length in `load_runs`.
    """
    runs = _drawable(results)
    runs = runs.loc[runs["arm"] != BASELINE, _ARM]
    rates = load_acceptance(results).drop(columns="conditional")
    return runs.merge(rates, on=[*stats.CELL, "arm"], how="inner")


def _drawable(results: str | Path) -> pd.DataFrame:
    """The arms to draw, of cells that have more than the baseline and its twin, with all `SETTINGS`, `kind` (the arm
    without its budget) and `label` (what tells its cell from the others)."""
    runs = load_runs(results)
    runs = runs[runs["status"].isin(("complete", "drifted")) & (runs["n_requests"] > 0)]
    runs = runs[(runs["arm"] == BASELINE) | (runs["method"] != BASELINE)]
    more = runs[runs["arm"] != BASELINE].groupby(stats.CELL)["arm"].size().index
    runs = runs[pd.MultiIndex.from_frame(runs[stats.CELL]).isin(more)].copy()
    stored = {(cell.results, cell.cell_id): cell.settings for cell in find_cells(results)}
    places = list(zip(runs["results"], runs["cell_id"], strict=True))
    for name in SETTINGS:
        if name not in runs:
            runs[name] = [stored[place].get(name, _USUAL.get(name)) for place in places]
    runs["kind"] = [_kind(arm, budget) for arm, budget in zip(runs["arm"], runs["budget"], strict=True)]
    differing = _differing(runs)
    runs["label"] = _labels(runs, differing)
    return runs.sort_values([*differing, *stats.CELL], kind="stable").reset_index(drop=True)


def _kind(arm: str, budget: float) -> str:
    """An arm's name without its budget, which is what the arms of one line share."""
    return arm if math.isnan(budget) else arm.replace(f"-{budget:.0f}", "", 1)


def _differing(runs: pd.DataFrame) -> list[str]:
    """The settings in which the cells differ. A drafter that comes with its model is not one of them."""
    names = [name for name in SETTINGS if runs[name].nunique(dropna=False) > 1]
    if "drafter" in names and runs.groupby("model")["drafter"].nunique().max() == 1:
        names.remove("drafter")
    return names


def _labels(runs: pd.DataFrame, differing: Sequence[str]) -> list[str]:
    """What tells the cell of each row from the others; the folder and the cell's id where settings do not."""
    said = [[_say(name, row[name]) for name in differing] for row in runs.to_dict("records")]
    cells = list(zip(runs["results"], runs["cell_id"], strict=True))
    for further in ("results", "cell_id"):
        if len({(tuple(parts), cell) for parts, cell in zip(said, cells, strict=True)}) > len(set(map(tuple, said))):
            said = [[*parts, value] for parts, value in zip(said, runs[further], strict=True)]
    return [_BETWEEN.join(parts) for parts in said]


def _say(name: str, value: Any) -> str:
    if name == "drafter":
        value = "/".join(PurePath(str(value)).parts[-2:])
    return f"no {name}" if value is None else SETTINGS[name].format(value)


def title(table: pd.DataFrame, width: float) -> str:
    """What all cells have in common, in lines that fit `width` inches."""
    first, differing = table.iloc[0], _differing(table)
    names = (name for name in SETTINGS if name not in (*differing, *_SAID_WHERE_THEY_DIFFER))
    return in_lines(_BETWEEN.join(_say(name, first[name]) for name in names if first[name] != _USUAL.get(name)), width)


def in_lines(text: str, width: float) -> str:
    """A title or label broken between its parts into lines that fit `width` inches in 9-point letters."""
    lines = [""]
    for part in text.split(_BETWEEN):
        joined = f"{lines[-1]}{_BETWEEN}{part}" if lines[-1] else part
        lines = [*lines[:-1], joined] if len(joined) <= 13 * width else [*lines, part]
    return "\n".join(lines)
