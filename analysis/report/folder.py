"""A results folder as the report needs it: everything read once, cells with a name, arms ready to be compared."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import pandas as pd

from analysis import stats
from analysis.acceptance import load_acceptance
from analysis.load import load_runs
from analysis.records import BASELINE, HIDDEN, MEASURED, Cell, engine_fact, find_cells
from analysis.report.compared import Compared, by_prompt
from methods.locate import BUILTIN, resolve

Place = tuple[str, str]
_NAMED = {
    "model": "{}",
    "workload": "{}",
    "engine": "{}",
    "tp": "tp {}",
    "device": "{}",
    "dtype": "{}",
    "temperature": "T {:g}",
    "concurrency": "concurrency {}",
    "max_new_tokens": "{} new tokens",
    "drafter": "drafter {}",
}
_BETWEEN = " · "
IN_DETAIL, OF_MANY = 12, 8
_ALIKE = ["engine", "concurrency", "tp", "temperature", "model", "workload"]
_ORDER = ["model", "workload", "temperature", "engine", "tp", "concurrency"]
_ALWAYS = ("model", "workload", "temperature")
_RECURRENT = ("linear_attention", "mamba", "recurrent")
_HYBRID_FAMILIES = re.compile(r"Qwen3(\.\d|-Next|-Coder-Next)")  # where a target's own config is not on this machine


class Curve(NamedTuple):
    """Arms of one kind that differ in budget alone: budgets ascending, and the arm of each."""

    kind: str
    arms: Mapping[float, str]


class Standing(NamedTuple):
    """A cell with what can be compared in it; `sound` are its rows of `load_runs` that may be shown."""

    place: Place
    label: str
    cell: Cell
    sound: pd.DataFrame
    compared: Compared

    @property
    def trees(self) -> list[str]:
        return list(self.sound.loc[self.sound["budget"].notna(), "arm"])

    @property
    def others(self) -> list[str]:
        """The arms without a tree: the baseline, but not its twin in a null test, and chains."""
        plain = self.sound[self.sound["budget"].isna()]
        return list(plain.loc[(plain["arm"] == BASELINE) | (plain["method"] != BASELINE), "arm"])

    @property
    def curves(self) -> list[Curve]:
        """The kinds of tree that have two budgets or more."""
        found: dict[str, dict[float, str]] = {}
        for arm, budget in zip(self.sound["arm"], self.sound["budget"], strict=True):
            if not math.isnan(budget):
                found.setdefault(str(arm).replace(f"-{budget:.0f}", "", 1), {})[budget] = arm
        return [Curve(kind, dict(sorted(arms.items()))) for kind, arms in found.items() if len(arms) > 1]

    def alike(self, without: tuple[str, ...]) -> str:
        """A text that cells share which differ in nothing but these settings."""
        kept = {name: value for name, value in self.cell.settings.items() if name not in without}
        return json.dumps([self.place[0], kept], sort_keys=True, default=str)

    @property
    def hybrid(self) -> bool:
        return is_hybrid(self.cell)


class Folder:
    """A results folder, finished or running, or one above several.

    Raises:
        Refusal: there is none, or a record in it is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._acceptance: dict[Place, pd.DataFrame] = {}
        self.cells: dict[Place, Cell] = {(cell.results, cell.cell_id): cell for cell in find_cells(self.path)}
        runs = load_runs(self.path, unfinished=True)
        known = pd.MultiIndex.from_frame(runs[stats.CELL]).isin(list(self.cells))  # a running folder may have grown
        self.labels = labels(runs[known])
        order = {place: index for index, place in enumerate(self.labels)}
        places = zip(runs["results"], runs["cell_id"], strict=True)
        runs = runs.assign(_place=[order.get(place, -1) for place in places]).sort_values("_place", kind="stable")
        self.runs = runs[runs["_place"] >= 0].drop(columns="_place").reset_index(drop=True)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def running(self) -> bool:
        return bool((self.runs["status"] == "pending").any())

    @property
    def measured(self) -> pd.DataFrame:
        """The rows that were run; others were worked out from these, by replay, and have no times."""
        return self.runs[self.runs["source"] == MEASURED]

    @cached_property
    def chosen(self) -> list[Place]:
        """The cells that are drawn and shown in detail: all of a few; of many some that go into one picture."""
        if len(self.labels) <= IN_DETAIL:
            return list(self.labels)
        alike = self.runs.drop_duplicates(stats.CELL).sort_values(["results", *_ALIKE], kind="stable")
        return list(zip(alike["results"], alike["cell_id"], strict=True))[:OF_MANY]

    def acceptance(self, place: Place) -> pd.DataFrame:
        """`load_acceptance` of one cell, read once."""
        if place not in self._acceptance:
            self._acceptance[place] = load_acceptance(self.cells[place].folder).assign(results=place[0])
        return self._acceptance[place]

    @cached_property
    def standings(self) -> list[Standing]:
        """Every cell with a sound baseline and another arm to compare with it, in the order of the table."""
        return list(self._standings())

    def _standings(self) -> Iterator[Standing]:
        shown = self.measured[~self.measured["status"].isin(HIDDEN) & (self.measured["n_requests"] > 0)]
        groups = cast("Iterable[tuple[Place, pd.DataFrame]]", shown.groupby(stats.CELL, sort=False))
        cells = {place: rows for place, rows in groups if len(rows) > 1 and BASELINE in set(rows["arm"])}
        if not cells:
            return
        table = by_prompt(self.cells[place] for place in cells)
        rows_of = table.groupby(stats.CELL, sort=False).indices
        for place in (place for place in self.labels if place in cells):
            sound = cells[place]
            compared = Compared(table.iloc[rows_of[place]])
            yield Standing(place, self.labels[place], self.cells[place], sound, compared)

    def environments(self, cell: Cell) -> Iterator[tuple[int, dict[str, Any]]]:
        """What each sitting of a cell wrote down of its machine, first sitting first; unreadable ones are left out."""
        files = cell.folder.glob("sittings/*/environment.json")
        for file in sorted(files, key=lambda file: int(file.parent.name)):
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            yield int(file.parent.name), content


def labels(runs: pd.DataFrame) -> dict[Place, str]:
    """A name for each cell, in the order of the page.

    It says what the cell is of, then what else tells it from the others, and its id where that does not.
    """
    cells = runs.drop_duplicates(stats.CELL).sort_values(["results", *_ORDER, "cell_id"], kind="stable")
    several = [name for name in _NAMED if name in _ALWAYS or cells[name].nunique(dropna=False) > 1]
    if "drafter" in several and cells.groupby("model")["drafter"].nunique().max() <= 1:
        several.remove("drafter")
    said = {
        (row["results"], row["cell_id"]): _BETWEEN.join(_NAMED[name].format(row[name]) for name in several)
        for row in cells.to_dict("records")
    }
    if cells["results"].nunique() > 1:
        said = {place: f"{place[0]}: {text}" for place, text in said.items()}
    texts = list(said.values())
    return {place: text if texts.count(text) == 1 else f"{text} · cell {place[1]}" for place, text in said.items()}


def is_hybrid(cell: Cell) -> bool:
    """Whether the target has recurrent layers: by its config where that is on this machine, by what the engine said,
    else by the published families that have."""
    target = str(cell.settings.get("target", ""))
    config = _config(target)
    if config is not None:
        layers = (config.get("text_config") or config).get("layer_types") or ()
        return any(kind in str(layer) for layer in layers for kind in _RECURRENT)
    said = engine_fact(cell, "hybrid")
    return bool(_HYBRID_FAMILIES.search(target)) if said is None else bool(said)


def _config(target: str) -> dict[str, Any] | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        if target.startswith(BUILTIN) or Path(target).expanduser().is_dir():
            file = resolve(target) / "config.json"
        else:
            cached = try_to_load_from_cache(target, "config.json")
            if not isinstance(cached, str):
                return None
            file = Path(cached)
        content = json.loads(file.read_text(encoding="utf-8"))
    except Exception:  # whatever keeps it from being read, there are other ways to tell
        return None
    return content if isinstance(content, dict) else None
