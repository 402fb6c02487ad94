"""The three tidy tables of a results folder: `load_runs`, `load_requests`, `load_rounds`.

Each takes a results folder, finished or running, or a folder of several, in which case the column `results` (last)
tells them apart. Units are in the names: `_s` seconds, `_bytes` bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from analysis import stats
from analysis.figures import IDENTITY, SPEED_FIGURES, figures, inspection, speedups, stage_times, total
from analysis.load_figures import LOAD_FIGURES, Loads
from analysis.load_window import Slos
from analysis.records import (
    BASELINE,
    REQUEST_DTYPES,
    ROUND_DTYPES,
    STAGES,
    Arm,
    Cell,
    engine_fact,
    find_cells,
    requests_of,
    rounds_of,
)
from analysis.replay import REPLAYED, replayed_requests, with_replayed
from methods.base import Refusal

_SETTINGS = {
    "engine": "str",
    "tp": "int64",
    "model": "str",
    "drafter": "str",
    "device": "str",
    "dtype": "str",
    "workload": "str",
    "suite": "str",
    "split": "str",
    "context": "float64",
    "temperature": "float64",
    "max_new_tokens": "int64",
    "concurrency": "int64",
    "request_rate": "float64",
    "simulate_acceptance": "float64",
}
_DEFAULTS = {"concurrency": 1, "split": "all", **dict.fromkeys(("context", *list(_SETTINGS)[-2:]), math.nan)}
RUN_DTYPES = {
    "cell_id": "str",
    "arm": "str",
    "method": "str",
    "budget": "float64",
    **_SETTINGS,
    "verify": "str",
    "graphs": "str",
    "status": "str",
    "reason": "str",
    "source": "str",
    **dict.fromkeys(("n_requests", "n_prompts", "n_turns", "n_scored", "n_output"), "int64"),
    **dict.fromkeys(("n_uncut_rounds", "n_differing", "n_profiled"), "int64"),
    **dict.fromkeys((*SPEED_FIGURES, *LOAD_FIGURES), "float64"),
    "saturated": "boolean",
    "peak_mem_bytes": "float64",
    "max_gap": "float64",
    "gap_tolerance": "float64",
    "near_ties": "Int64",
    "true_violations": "Int64",
    "shadow_acceptance_length": "float64",
    "oracle_rounds": "int64",
    "oracle_max_gap": "float64",
    "oracle_disagreements": "float64",
    "at_chance": "boolean",
    "sittings": "str",
    "drift": "float64",
    "drift_sitting": "Int64",
    "drift_place": "str",
    "results": "str",
}
_UNLOADED = dict.fromkeys(LOAD_FIGURES, math.nan)  # a category alone is no load
_NEEDED = (
    *("cell_id", "sitting", "phase", "arm", "prompt_id", "turn", "repeat", "category", "n_output"),
    *("ttft_s", "decode_s", "tpot_s", "e2e_s", *STAGES, "n_rounds", "uncut_rounds", "accepted_uncut_sum"),
    *("exact_match", "near_ties", "true_violations", "max_gap", "gap_tolerance", "peak_mem_bytes", "energy_j"),
    *("correct", "shadow_uncut_sum", "oracle_rounds", "oracle_max_gap", "oracle_disagreements"),
)


def load_requests(path: str | Path) -> pd.DataFrame:
    """One row a request, warm-up included, unique by `cell_id sitting phase arm prompt_id turn repeat` (and `results`).

    The columns of a record (`results/README.md`), with the rounds as `n_rounds accepted_sum uncut_rounds
    accepted_uncut_sum` and the stages as `draft_s build_s verify_s commit_s` (NaN outside the profiled pass). Times are
    NaN for requests due outside of the steady part of their load, where many were in flight; `load_traces` has them.
    """
    cells = find_cells(path)
    return _together(cells, map(requests_of, cells), {**REQUEST_DTYPES, "results": "str"})


def load_rounds(path: str | Path) -> pd.DataFrame:
    """One row a round: the request's keys, the index `round`, `accepted emitted cut`, and `width`, the rows of its
    verify pass, where the method chose them round by round."""
    cells = find_cells(path)
    return _together(cells, map(rounds_of, cells), {**ROUND_DTYPES, "results": "str"})


def load_runs(
    path: str | Path,
    *,
    by: Literal["category"] | None = None,
    unfinished: bool = False,
    slos: Slos | None = None,
) -> pd.DataFrame:
    """One row per cell and arm, repeats pooled; the baseline first, then by budget.

    Figures are of timed requests, stage times and the identity of profiled ones, drift of the sentinel.

    Args:
        path: a results folder, or one above several.
        by: one row per cell, category and arm instead, with a column `category`.
        unfinished: include the arms still to be finished, with `status` `pending` and the figures so far.
        slos: what a request has to keep to, to count for `goodput_per_s` where many were in flight.

    `status` is one of `complete drifted invalid failed`: an arm with true violations is `invalid` whatever was
    written, a complete one whose requests are from a sitting in which the machine moved is `drifted`. Speed-ups are
    NaN where the baseline itself is invalid or failed.

    `source` is `measured`, or `replayed` for DFlash and the paper's budgets where a replay of AR's text tells their
    rounds and they were not run themselves: such a row has no times, and its status is AR's.
    """
    (found,) = _read(find_cells(path), [by], unfinished, slos)
    return found


def runs_of(cells: Iterable[Cell], *, by: Literal["category"] | None = None, unfinished: bool = False) -> pd.DataFrame:
    """`load_runs` of these cells."""
    (found,) = _read(cells, [by], unfinished)
    return found


def load_both(path: str | Path, *, unfinished: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`load_runs` as it is and by category, the requests read once."""
    whole, split = _read(find_cells(path), [None, "category"], unfinished)
    return whole, split


def _read(
    cells: Iterable[Cell], ways: Iterable[str | None], unfinished: bool, slos: Slos | None = None
) -> Iterator[pd.DataFrame]:
    """The frames of `load_runs`, one for each `by`."""
    cells = [with_replayed(cell) for cell in cells]
    loads = [Loads(cell) for cell in cells]
    frames = (replayed_requests(each.cell, requests_of(each.cell, _NEEDED)) for each in loads)
    dtypes = {**{name: REQUEST_DTYPES[name] for name in _NEEDED}, "results": "str"}
    requests = _together(cells, frames, dtypes)
    for by in ways:
        found = _Found(requests, by)
        rows = [row for each in loads for row in _rows_of(each, found, unfinished, slos)]
        yield _frame(rows, {**RUN_DTYPES, **({"category": "str"} if by else {})})


def _together(cells: Iterable[Cell], frames: Iterable[pd.DataFrame], dtypes: Mapping[str, str]) -> pd.DataFrame:
    """The cells' tables one under the other, with the folder each comes from."""
    marked = [frame.assign(results=cell.results) for cell, frame in zip(cells, frames, strict=True) if len(frame)]
    return pd.concat(marked, ignore_index=True) if marked else _frame([], dtypes)


def _frame(rows: list[dict[str, Any]], dtypes: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame(
        {name: pd.Series([row[name] for row in rows], dtype=cast(Any, dtype)) for name, dtype in dtypes.items()}
    )


class _Groups:
    """A table's numbers by group; a group that is not there has none."""

    def __init__(self, table: pd.DataFrame, keys: list[str]) -> None:
        names = [name for name in table if is_numeric_dtype(table[name])]
        self._columns = {str(name): table[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in names}
        self._columns["prompt_id"] = pd.factorize(table["prompt_id"], sort=True)[0].astype(np.float64)
        self._rows = table.groupby(keys, sort=False).indices

    def __getitem__(self, key: tuple[str, ...]) -> dict[str, stats.Floats]:
        rows = self._rows.get(key, np.arange(0))
        return {name: column[rows] for name, column in self._columns.items()}


class _Move(NamedTuple):
    """A row of `stats.drift`."""

    sitting: int
    place: str
    shift: float
    drifted: bool


class _Found:
    """The requests of all cells: the timed ones that count, those in pairs, all of them; the profiled; the drift."""

    def __init__(self, requests: pd.DataFrame, by: str | None) -> None:
        keys = [*stats.CELL, "arm", *([by] if by else [])]
        timed, kept, pairs = requests[requests["phase"] == "timed"], stats.one_each(requests), stats.pair(requests)
        self.by_category = by is not None
        self.kept = _Groups(kept, keys)
        self.pairs = _Groups(pairs, keys)
        self.profiled = _Groups(stats.identity(requests, pairs), keys)
        self.all = _Groups(timed, keys)
        self.inspected = _Groups(requests[requests["phase"] == "profile"], keys)
        self.inspected_of_arm = _Groups(requests[requests["phase"] == "profile"], [*stats.CELL, "arm"])
        self.of_arm = _Groups(timed, [*stats.CELL, "arm"])
        self.kept_of_arm = _Groups(kept, [*stats.CELL, "arm"])
        self.categories = timed.groupby(stats.CELL, sort=False)["category"].unique()
        self.moves: dict[tuple[str, str], list[_Move]] = {}
        for row in stats.drift(requests)[[*stats.CELL, *_Move._fields]].itertuples(index=False, name=None):
            self.moves.setdefault(row[:2], []).append(_Move(*row[2:]))

    def split(self, cell: Cell) -> list[tuple[str, ...]]:
        """What follows the arm in a group's key, for each row that the cell's arms have."""
        if not self.by_category:
            return [()]
        return [(category,) for category in self.categories.get((cell.results, cell.cell_id), ())] or [("",)]

    def arm(self, cell: Cell, arm: Arm) -> dict[str, Any]:
        """How an arm stands: the sittings its requests are from, the largest move in them, and its status."""
        place = cell.results, cell.cell_id
        sittings = np.unique(self.kept_of_arm[*place, arm.name]["sitting"])
        moves = [move for move in self.moves.get(place, ()) if move.sitting in sittings]
        stands: dict[str, Any] = {
            "status": arm.status,
            "sittings": " ".join(f"{sitting:.0f}" for sitting in sittings),
            "drift": math.nan,
            "drift_sitting": None,
            "drift_place": None,
        }
        if moves and arm.source != REPLAYED:
            largest = max(reversed(moves), key=lambda move: (move.drifted, abs(move.shift)))
            stands["drift"] = math.expm1(largest.shift)
            stands |= {"drift_sitting": largest.sitting, "drift_place": largest.place}
            if largest.drifted and arm.status == "complete":
                stands["status"] = "drifted"
        wrong = total(self.of_arm[*place, arm.name]["true_violations"])
        if (wrong or self.inspected_of_arm[*place, arm.name]["oracle_disagreements"].sum()) and arm.status != "failed":
            stands["status"] = "invalid"
        return stands


def _rows_of(loads: Loads, found: _Found, unfinished: bool, slos: Slos | None) -> Iterable[dict[str, Any]]:
    """A cell's rows of `load_runs`."""
    cell = loads.cell
    place = cell.results, cell.cell_id
    verify = next((arm.verify for arm in cell.arms if arm.verify is not None), "exact")
    settings = {name: _setting(cell, name) for name in _SETTINGS}
    stands = {arm.name: found.arm(cell, arm) for arm in cell.arms}
    sound = BASELINE in stands and stands[BASELINE]["status"] not in ("invalid", "failed")
    vocabulary = float(engine_fact(cell, "vocab_size") or math.nan)
    for category in found.split(cell):
        for arm in cell.arms:
            if stands[arm.name]["status"] == "pending" and not unfinished:
                continue
            key = (*place, arm.name, *category)
            mine, compared = found.kept[key], key if sound else ()
            yield {
                **settings,
                "category": category[0] if category and category[0] else None,
                "cell_id": cell.cell_id,
                "results": cell.results,
                "arm": arm.name,
                "method": arm.method,
                "budget": arm.budget,
                "verify": verify,
                "graphs": engine_fact(cell, "graphs"),
                "reason": arm.reason,
                "source": arm.source,
                **stands[arm.name],
                **figures(mine, settings["tp"], settings["concurrency"]),
                **(_UNLOADED if found.by_category else loads.figures(arm.name, settings["tp"], slos)),
                "saturated": loads.saturated(arm.name),
                **speedups(found.pairs[compared]),
                **stage_times(found.profiled[key]),
                **({} if sound else dict.fromkeys(IDENTITY, math.nan)),
                "at_chance": stats.at_chance(mine, arm.budget, vocabulary) if arm.drafts else None,
                "near_ties": total(mine["near_ties"]),
                "true_violations": total(found.all[key]["true_violations"]),
                **inspection(found.inspected[key]),
            }


def _setting(cell: Cell, name: str) -> Any:
    """A cell's setting: the workload with the part that was asked, which `suite` leaves out; a dtype of `auto` as the
    engine resolved it, once a sitting has recorded that."""
    value = cell.settings.get("workload" if name == "suite" else name)
    if value is None:
        value = _DEFAULTS.get(name)
    if name == "workload":
        value = cell.workload_name or value
    if name == "dtype" and value == "auto":
        value = str(engine_fact(cell, "dtype") or value).removeprefix("torch.")
    if value is None:
        raise Refusal(f"{cell.folder / 'cell.json'} is damaged: settings.{name} is missing.")
    return value
