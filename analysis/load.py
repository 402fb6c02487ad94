"""The three tidy tables of a results folder: `load_runs`, `load_requests`, `load_rounds`.

Each takes a results folder, finished or running, or a folder of several, in which case the column `results` (last)
tells them apart. Units are in the names: `_s` seconds, `_bytes` bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from analysis import stats
from analysis.records import (
    BASELINE,
    REQUEST_DTYPES,
    ROUND_DTYPES,
    Arm,
    Cell,
    find_cells,
    requests_of,
    resolved_dtype,
    rounds_of,
)
from methods.base import Refusal

_SETTINGS = {
    "engine": "str",
    "tp": "int64",
    "model": "str",
    "drafter": "str",
    "device": "str",
    "dtype": "str",
    "workload": "str",
    "temperature": "float64",
    "max_new_tokens": "int64",
    "concurrency": "int64",
}
_DEFAULTS = {"concurrency": 1}
SPEED_FIGURES = (
    *("acceptance_length", "acceptance_length_per_request", "tokens_per_round"),
    *("speedup", "speedup_low", "speedup_high"),
    *("speedup_e2e", "speedup_e2e_low", "speedup_e2e_high", "speedup_ratio_of_means"),
    *("ttft_s", "tpot_s", "tpot_p50_s", "tpot_p95_s", "tpot_p99_s", "e2e_s", "tokens_per_s"),
)
RUN_DTYPES = {
    "cell_id": "str",
    "arm": "str",
    "method": "str",
    "budget": "float64",
    **_SETTINGS,
    "status": "str",
    "reason": "str",
    **dict.fromkeys(("n_requests", "n_prompts", "n_output"), "int64"),
    **dict.fromkeys(SPEED_FIGURES, "float64"),
    "peak_mem_bytes": "float64",
    "max_gap": "float64",
    "gap_tolerance": "float64",
    "near_ties": "Int64",
    "true_violations": "Int64",
    "oracle_rounds": "int64",
    "oracle_max_gap": "float64",
    "oracle_disagreements": "float64",
    "sittings": "str",
    "results": "str",
}
_NEEDED = (
    *("cell_id", "sitting", "phase", "arm", "prompt_id", "turn", "repeat", "category", "n_output"),
    *("ttft_s", "tpot_s", "e2e_s", "n_rounds", "uncut_rounds", "accepted_uncut_sum"),
    *("near_ties", "true_violations", "max_gap", "gap_tolerance", "peak_mem_bytes"),
)


def load_requests(path: str | Path) -> pd.DataFrame:
    """One row a request, warm-up included, unique by `cell_id sitting phase arm prompt_id turn repeat` (and `results`).

    The columns of a record (`results/README.md`), with the rounds as `n_rounds accepted_sum uncut_rounds
    accepted_uncut_sum` and the stages as `draft_s build_s verify_s commit_s` (NaN outside the profiled pass).
    """
    cells = find_cells(path)
    return _together(cells, map(requests_of, cells), {**REQUEST_DTYPES, "results": "str"})


def load_rounds(path: str | Path) -> pd.DataFrame:
    """One row a round: the request's keys, the index `round`, and `accepted emitted cut`."""
    cells = find_cells(path)
    return _together(cells, map(rounds_of, cells), {**ROUND_DTYPES, "results": "str"})


def load_runs(path: str | Path, *, by: Literal["category"] | None = None, unfinished: bool = False) -> pd.DataFrame:
    """One row per cell and arm, repeats pooled, timed requests only; the baseline first, then by budget.

    Args:
        path: a results folder, or one above several.
        by: one row per cell, category and arm instead, with a column `category`.
        unfinished: include the arms still to be finished, with `status` `pending` and the figures so far.

    `status` is one of `complete drifted invalid failed`; an arm with true violations is `invalid` whatever was
    written. Speed-ups are NaN where the baseline itself is invalid or failed.
    """
    cells = find_cells(path)
    frames = (requests_of(cell, _NEEDED) for cell in cells)
    dtypes = {**{name: REQUEST_DTYPES[name] for name in _NEEDED}, "results": "str"}
    requests = _together(cells, frames, dtypes)
    found = _Found(requests[requests["phase"] == "timed"], by)
    rows = [row for cell in cells for row in _rows_of(cell, found, unfinished)]
    return _frame(rows, {**RUN_DTYPES, **({"category": "str"} if by else {})})


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
        self._columns["prompt_id"] = pd.factorize(table["prompt_id"])[0].astype(np.float64)
        self._rows = table.groupby(keys, sort=False).indices

    def __getitem__(self, key: tuple[str, ...]) -> dict[str, stats.Floats]:
        rows = self._rows.get(key, np.arange(0))
        return {name: column[rows] for name, column in self._columns.items()}


class _Found:
    """The timed requests of all cells: those that count, those in pairs, and all of them."""

    def __init__(self, timed: pd.DataFrame, by: str | None) -> None:
        keys = [*stats.CELL, "arm", *([by] if by else [])]
        self.by_category = by is not None
        self.kept = _Groups(stats.one_each(timed), keys)
        self.pairs = _Groups(stats.pair(timed), keys)
        self.all = _Groups(timed, keys)
        self.of_arm = _Groups(timed, [*stats.CELL, "arm"])
        self.categories = timed.groupby(stats.CELL, sort=False)["category"].unique()

    def split(self, cell: Cell) -> list[tuple[str, ...]]:
        """What follows the arm in a group's key, for each row that the cell's arms have."""
        if not self.by_category:
            return [()]
        return [(category,) for category in self.categories.get((cell.results, cell.cell_id), ())] or [("",)]


def _rows_of(cell: Cell, found: _Found, unfinished: bool) -> Iterable[dict[str, Any]]:
    """A cell's rows of `load_runs`."""
    place = cell.results, cell.cell_id
    settings = {name: _setting(cell, name) for name in _SETTINGS}
    status = {arm.name: _status(arm, _total(found.of_arm[*place, arm.name]["true_violations"])) for arm in cell.arms}
    sound = status.get(BASELINE) not in ("invalid", "failed")
    for category in found.split(cell):
        for arm in cell.arms:
            if status[arm.name] == "pending" and not unfinished:
                continue
            key = (*place, arm.name, *category)
            mine, paired = found.kept[key], found.pairs[key if sound else ()]
            yield {
                **settings,
                "category": category[0] if category and category[0] else None,
                "cell_id": cell.cell_id,
                "results": cell.results,
                "arm": arm.name,
                "method": arm.method,
                "budget": arm.budget,
                "status": status[arm.name],
                "reason": arm.reason,
                **_figures(mine),
                **_speedups(paired),
                "near_ties": _total(mine["near_ties"]),
                "true_violations": _total(found.all[key]["true_violations"]),
                "oracle_rounds": 0,
                "oracle_max_gap": math.nan,
                "oracle_disagreements": math.nan,
                "sittings": " ".join(f"{sitting:.0f}" for sitting in np.unique(mine["sitting"])),
            }


def _status(arm: Arm, violations: int | None) -> str:
    return "invalid" if violations and arm.status in ("complete", "drifted", "pending") else arm.status


def _setting(cell: Cell, name: str) -> Any:
    """A cell's setting; a dtype of `auto` as the engine resolved it, once a sitting has recorded that."""
    value = cell.settings.get(name, _DEFAULTS.get(name))
    if name == "dtype" and value == "auto":
        value = resolved_dtype(cell) or value
    if value is None:
        raise Refusal(f"{cell.folder / 'cell.json'} is damaged: settings.{name} is missing.")
    return value


def _figures(requests: Mapping[str, stats.Floats]) -> dict[str, float]:
    """One arm's own figures. `tokens_per_s` counts all output tokens over the whole time of the requests."""
    tokens, seconds = requests["n_output"].sum(), requests["e2e_s"].sum()
    return {
        "n_requests": len(requests["n_output"]),
        "n_prompts": len(np.unique(requests["prompt_id"])),
        "n_output": int(tokens),
        "acceptance_length": stats.acceptance_length(requests),
        "acceptance_length_per_request": stats.acceptance_length_per_request(requests),
        "tokens_per_round": stats.tokens_per_round(requests),
        "ttft_s": _of(np.mean, requests["ttft_s"]),
        "tpot_s": _of(np.mean, requests["tpot_s"]),
        "tpot_p50_s": _of(np.quantile, requests["tpot_s"], 0.5),
        "tpot_p95_s": _of(np.quantile, requests["tpot_s"], 0.95),
        "tpot_p99_s": _of(np.quantile, requests["tpot_s"], 0.99),
        "e2e_s": _of(np.mean, requests["e2e_s"]),
        "tokens_per_s": float(tokens / seconds) if seconds > 0 else math.nan,
        "peak_mem_bytes": _of(np.max, requests["peak_mem_bytes"]),
        "max_gap": _of(np.max, requests["max_gap"]),
        "gap_tolerance": _of(np.max, requests["gap_tolerance"]),
    }


def _of(figure: Callable[..., Any], values: stats.Floats, *options: float) -> float:
    """A figure of the values that are there; NaN of none."""
    there = values[~np.isnan(values)]
    return float(figure(there, *options)) if len(there) else math.nan


def _total(values: stats.Floats) -> int | None:
    """A sum of counts; None where nothing was counted."""
    there = values[~np.isnan(values)]
    return int(there.sum()) if len(there) else None


def _speedups(pairs: Mapping[str, stats.Floats]) -> dict[str, float]:
    """One arm's speed-ups over the baseline."""
    decode, whole = stats.speedup(pairs), stats.speedup(pairs, "log_speedup_e2e")
    return {
        "speedup": decode.point,
        "speedup_low": decode.low,
        "speedup_high": decode.high,
        "speedup_e2e": whole.point,
        "speedup_e2e_low": whole.low,
        "speedup_e2e_high": whole.high,
        "speedup_ratio_of_means": stats.ratio_of_means(pairs),
    }
