"""How deep the rounds of each arm reach: `load_acceptance` by depth, `load_histogram` by accepted tokens.

Both are over uncut rounds of the requests that `load_runs` counts, and reach to the deepest round of the cell, so that
its arms can be compared depth by depth. Nothing is extrapolated: a budget or a block that was neither run nor replayed
is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import pandas as pd

from analysis import stats
from analysis.records import KEYS, Cell, find_cells, requests_of, rounds_of
from analysis.replay import replayed_requests, replayed_rounds, with_replayed
from methods.base import Refusal

_READ = (*KEYS, "category", "uncut_rounds", "accepted_uncut_sum")
_KEYS = {"cell_id": "str", "arm": "str", "category": "str"}
_DEPTHS = {"depth": "int64", "rounds": "int64", "marginal": "float64", "conditional": "float64"}
_COUNTS = {"accepted": "int64", "rounds": "int64", "share": "float64"}


def load_acceptance(path: str | Path, *, by: Literal["category"] | None = None) -> pd.DataFrame:
    """One row per cell, arm and depth from 1; with `by`, also per category.

    Columns: `cell_id arm (category) depth rounds marginal conditional results`. `rounds` accepted at least `depth`
    tokens; `marginal` is their share of all uncut rounds, so that 1 + Σ marginal is the arm's acceptance length in
    `load_runs`; `conditional` their share of the rounds that reached the depth before, NaN where none did.

    Raises:
        Refusal: there are no results, or a record is damaged (it is named).
    """
    return _table(path, by, stats.acceptance_by_depth, _DEPTHS)


def load_histogram(path: str | Path, *, by: Literal["category"] | None = None) -> pd.DataFrame:
    """One row per cell, arm and number of accepted tokens from 0; with `by`, also per category.

    Columns: `cell_id arm (category) accepted rounds share results`; the shares of an arm add up to 1.
    """
    return _table(path, by, stats.acceptance_histogram, _COUNTS)


def _table(
    path: str | Path, by: str | None, count: Callable[[pd.DataFrame, int], pd.DataFrame], columns: dict[str, str]
) -> pd.DataFrame:
    names = {name: dtype for name, dtype in _KEYS.items() if name in ("cell_id", "arm", by)} | columns
    parts = []
    for cell in find_cells(path):
        for place, rounds, deepest in _arms(cell, by):
            keys = dict(zip(("arm", "category"), place, strict=False))
            parts.append(count(rounds, deepest).assign(cell_id=cell.cell_id, results=cell.results, **keys))
    names["results"] = "str"
    if not parts:
        return pd.DataFrame({name: pd.Series([], dtype=cast(Any, dtype)) for name, dtype in names.items()})
    return pd.concat(parts, ignore_index=True)[list(names)].astype(names)


def _arms(cell: Cell, by: str | None) -> Iterator[tuple[tuple[str, ...], pd.DataFrame, int]]:
    """A cell's arms (and categories) in the order of tables, the uncut rounds of each, and the deepest of the cell."""
    cell, measured = with_replayed(cell), requests_of(cell, _READ)
    kept = stats.one_each(replayed_requests(cell, measured).assign(results=cell.results))
    found = pd.concat([rounds_of(cell), replayed_rounds(cell, measured)], ignore_index=True)
    found = found[(found["phase"] == "timed") & (found["cut"] == "")]
    found = found.merge(kept[[*KEYS, "category"]], on=list(KEYS), how="inner")
    deepest = max(1, int(found["accepted"].max())) if len(found) else 1
    keys = ["arm", *([by] if by else [])]
    order = {arm.name: index for index, arm in enumerate(cell.arms)}
    requests = _groups(kept, keys)
    for place, rounds in sorted(_groups(found, keys).items(), key=lambda item: order[item[0][0]]):
        _check(cell, place, stats.acceptance_by_depth(rounds)["marginal"], requests[place])
        yield place, rounds, deepest


def _groups(table: pd.DataFrame, keys: list[str]) -> dict[tuple[str, ...], pd.DataFrame]:
    return {cast(tuple[str, ...], place): rows for place, rows in table.groupby(keys)}


def _check(cell: Cell, place: tuple[str, ...], marginal: pd.Series[float], requests: pd.DataFrame) -> None:
    """The rates, which come from the rounds, against the acceptance length, which comes from the requests."""
    length, rates = stats.acceptance_length(requests), 1 + float(marginal.sum())
    if not math.isclose(length, rates, rel_tol=1e-9) or not marginal.is_monotonic_decreasing:
        raise Refusal(
            f"{cell.folder} is damaged: the requests of {' '.join(place)} have acceptance length {length:.6g}, "
            f"their rounds {rates:.6g} (or rates that rise with depth)."
        )
