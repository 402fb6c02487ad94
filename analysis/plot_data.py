"""The numbers behind the pictures: which arms are drawn, what their cells have in common and what tells them apart.

Invalid and failed arms are not drawn, and neither are those still to be finished; nor cells of AR alone, which say
nothing of trees.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from analysis import stats
from analysis.acceptance import load_acceptance, load_histogram
from analysis.load import load_runs
from analysis.records import BASELINE, Cell, find_cells, requests_of
from analysis.style import BETWEEN, in_lines

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
    "request_rate": "{:g} requests/s",
    "verify": "{} verification",
    "simulate_acceptance": "synthetic acceptance {:g}",
    "seed": "seed {}",
}
ARM = ["results", "cell_id", "label", *SETTINGS, "suite", "arm", "method", "kind", "budget", "status"]
APART = ("model", "temperature", "verify", "simulate_acceptance")  # never in one picture
_FURTHER = (
    *("engine", "weights", "dtype", "device", "drafter", "concurrency", "request_rate", "tp", "max_new_tokens"),
    *("top_p", "top_k"),
)
_USUAL = {"weights": "checkpoint", "top_p": 1.0, "top_k": 0, "concurrency": 1, "verify": "exact"}  # goes without saying
_SAID_WHERE_THEY_DIFFER = ("drafter", "max_new_tokens", "seed")
_PLACE = [*stats.CELL, "arm"]
_PAIRED = (
    *("cell_id", "sitting", "phase", "arm", "prompt_id", "turn", "repeat", "category"),
    *("tpot_s", "e2e_s"),
)


class Source:
    """A results folder, read once for all pictures and each table only when one asks for it."""

    def __init__(self, results: str | Path) -> None:
        self.path = Path(results)

    @cached_property
    def cells(self) -> dict[tuple[str, str], Cell]:
        return {(cell.results, cell.cell_id): cell for cell in find_cells(self.path)}

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The arms to draw, with all `SETTINGS`, `kind` (the arm without its budget) and `label` (what tells its cell
        from the others)."""
        return self._drawable(load_runs(self.path))

    @cached_property
    def categories(self) -> pd.DataFrame:
        """`load_runs` by category, of the same arms."""
        split = load_runs(self.path, by="category")
        return self.arms.merge(split.drop(columns=[c for c in ARM if c in split and c not in _PLACE]), on=_PLACE)

    @property
    def arms(self) -> pd.DataFrame:
        """What identifies the arms to draw."""
        return self.runs[ARM]

    @cached_property
    def acceptance(self) -> pd.DataFrame:
        return load_acceptance(self.path)

    @cached_property
    def histogram(self) -> pd.DataFrame:
        return load_histogram(self.path)

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Every request beside the baseline's, as from `stats.pair`."""
        found = [requests_of(cell, _PAIRED).assign(results=cell.results) for cell in self.cells.values()]
        return stats.pair(pd.concat(found, ignore_index=True))

    def environments(self, place: tuple[str, str]) -> Iterator[Mapping[str, Any]]:
        """What each sitting of a cell wrote down of its machine and engine, first sitting first."""
        files = self.cells[place].folder.glob("sittings/*/environment.json")
        yield from (json.loads(file.read_text()) for file in sorted(files, key=lambda file: int(file.parent.name)))

    def _drawable(self, runs: pd.DataFrame) -> pd.DataFrame:
        runs = runs[runs["status"].isin(("complete", "drifted")) & (runs["n_requests"] > 0)]
        runs = runs[(runs["arm"] == BASELINE) | (runs["method"] != BASELINE)]
        more = runs[runs["arm"] != BASELINE].groupby(stats.CELL)["arm"].size().index
        runs = runs[pd.MultiIndex.from_frame(runs[stats.CELL]).isin(more)].copy()
        places = list(zip(runs["results"], runs["cell_id"], strict=True))
        for name in SETTINGS:
            if name not in runs:
                runs[name] = [self.cells[place].settings.get(name, _USUAL.get(name)) for place in places]
        runs["kind"] = [kind_of(arm, budget) for arm, budget in zip(runs["arm"], runs["budget"], strict=True)]
        differing = differing_in(runs)
        runs["label"] = _labels(runs, differing)
        return runs.sort_values([*differing, *stats.CELL], kind="stable").reset_index(drop=True)


def kind_of(arm: str, budget: float) -> str:
    """An arm's name without its budget, which is what the arms of one line share."""
    return arm if math.isnan(budget) else arm.replace(f"-{budget:.0f}", "", 1)


def differing_in(runs: pd.DataFrame) -> list[str]:
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
    return [BETWEEN.join(parts) for parts in said]


def relabelled(table: pd.DataFrame) -> pd.DataFrame:
    """The labels anew, for the cells of one picture alone."""
    return table.assign(label=_labels(table, differing_in(table)))


def panels_of(table: pd.DataFrame, compared: Sequence[str]) -> list[str]:
    """The panel each row belongs to in a picture that compares cells across the settings `compared`: what else tells
    its cell from others, and the folder where that does not."""
    names = [name for name in differing_in(table) if name not in compared]
    twice = table.duplicated([*SETTINGS, "arm"]).any()
    said = [[_say(name, row[name]) for name in names] for row in table[[*names]].to_dict("records")]
    more = table["results"] if twice and table["results"].nunique() > 1 else [""] * len(table)
    return [BETWEEN.join(filter(None, (*parts, results))) for parts, results in zip(said, more, strict=True)]


def _say(name: str, value: Any) -> str:
    if name == "drafter":
        value = "/".join(PurePath(str(value)).parts[-2:])
    return f"no {name.replace('_', ' ')}" if pd.isna(value) else SETTINGS[name].format(value)


def title(table: pd.DataFrame, width: float) -> str:
    """What all cells have in common, in lines that fit `width` inches."""
    first, left_out = table.iloc[0], (*differing_in(table), *_SAID_WHERE_THEY_DIFFER)
    names = (name for name in SETTINGS if name not in left_out)
    unusual = [name for name in names if pd.notna(first[name]) and first[name] != _USUAL.get(name)]
    return in_lines(BETWEEN.join(_say(name, first[name]) for name in unusual), width)


def shares(
    table: pd.DataFrame, most: int, compared: Sequence[str] = (), apart: Sequence[str] = APART
) -> Iterator[tuple[str, pd.DataFrame]]:
    """A table cut into pictures of at most `most` cells, each with what its file name says beyond the plot's.

    Cells that differ in one of the settings `apart` are never together. Where that leaves too many cells, they
    are cut by further settings, but not by those that the plot compares, and in the end by number.
    """
    cuts, further = [*apart], [name for name in _FURTHER if name not in compared]
    while further and table.groupby(cuts, dropna=False).apply(_cells).max() > most:
        name = further.pop(0)
        cuts += [name] if table.groupby(cuts, dropna=False)[name].nunique(dropna=False).max() > 1 else []
    differing = [name for name in cuts if table[name].nunique(dropna=False) > 1]
    for _, part in table.groupby(cuts, sort=False, dropna=False):
        words = [_say(name, part[name].iloc[0]) for name in differing]
        places = list(dict.fromkeys(zip(part["results"], part["cell_id"], strict=True)))
        pages = math.ceil(len(places) / most)
        size = math.ceil(len(places) / pages)
        for page in range(pages):
            here = pd.MultiIndex.from_frame(part[stats.CELL]).isin(places[page * size : (page + 1) * size])
            named = [*words, *([f"part {page + 1}"] if pages > 1 else [])]
            yield "-".join(re.sub(r"[^\w.]+", "", word) for word in named), part[here]


def _cells(table: pd.DataFrame) -> int:
    return len(table[stats.CELL].drop_duplicates())
