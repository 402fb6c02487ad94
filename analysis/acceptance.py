"""How deep the rounds of each arm reach: `load_acceptance` by depth, `load_histogram` by accepted tokens.

Both are over uncut rounds of the requests that `load_runs` counts, and reach to the deepest round of the cell, so that
its arms can be compared depth by depth. Nothing is extrapolated: a budget or a block that was neither run nor replayed
is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
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
    return _table(path, by, stats.by_depth, _DEPTHS)


def load_histogram(path: str | Path, *, by: Literal["category"] | None = None) -> pd.DataFrame:
    """One row per cell, arm and number of accepted tokens from 0; with `by`, also per category.

    Columns: `cell_id arm (category) accepted rounds share results`; the shares of an arm add up to 1.
    """
    return _table(path, by, stats.histogram, _COUNTS)


def _table(
    path: str | Path, by: str | None, figures: Callable[[stats.Counts], Mapping[str, Any]], columns: dict[str, str]
) -> pd.DataFrame:
    names = {name: dtype for name, dtype in _KEYS.items() if name in ("cell_id", "arm", by)} | columns
    names["results"] = "str"
    parts: dict[str, list[Any]] = {name: [] for name in names}
    for cell in find_cells(path):
        for place, counts in _arms(cell, by):
            table = figures(counts)
            height = len(next(iter(table.values())))
            keys = {"cell_id": cell.cell_id, "results": cell.results, "arm": place[0], "category": place[-1]}
            for name, values in parts.items():
                values.extend(table[name] if name in table else [keys[name]] * height)
    return pd.DataFrame({name: pd.Series(parts[name], dtype=cast(Any, dtype)) for name, dtype in names.items()})


def _arms(cell: Cell, by: str | None) -> Iterator[tuple[tuple[str, ...], stats.Counts]]:
    """A cell's arms (and categories) in the order of tables, and how many uncut rounds of each accepted 0, 1, … tokens,
    up to the deepest of the cell."""
    cell, measured = with_replayed(cell), requests_of(cell, _READ)
    kept = stats.one_each(replayed_requests(cell, measured).assign(results=cell.results))
    found = pd.concat([rounds_of(cell), replayed_rounds(cell, measured)], ignore_index=True)
    found = found[(found["phase"] == "timed") & (found["cut"] == "")]
    found = found.merge(kept[[*KEYS, "category"]], on=list(KEYS), how="inner")
    keys = ["arm", *([by] if by else [])]
    order = {arm.name: index for index, arm in enumerate(cell.arms)}
    accepted = found["accepted"].to_numpy(dtype=np.int64)
    deepest = max(1, int(accepted.max())) if len(found) else 1
    requests = _groups(kept, keys)
    taken, rounds = (kept[name].to_numpy(dtype=np.int64) for name in ("accepted_uncut_sum", "uncut_rounds"))
    for place, rows in sorted(_groups(found, keys).items(), key=lambda item: order[item[0][0]]):
        counts = np.bincount(accepted[rows], minlength=deepest + 1).astype(np.int64)
        asked = requests[place]
        _check(cell, place, counts, int(taken[asked].sum()), int(rounds[asked].sum()))
        yield place, counts


def _groups(table: pd.DataFrame, keys: list[str]) -> dict[tuple[str, ...], Any]:
    """Which rows belong together, by the keys' values in their order."""
    return {
        place if isinstance(place, tuple) else (place,): rows for place, rows in table.groupby(keys).indices.items()
    }


def _check(cell: Cell, place: tuple[str, ...], counts: stats.Counts, taken: int, rounds: int) -> None:
    """What the rounds say against the acceptance length, which comes from the requests."""
    length = 1 + taken / rounds if rounds else math.nan
    rates = 1 + float(stats.by_depth(counts)["marginal"].sum())
    if not math.isclose(length, rates, rel_tol=1e-9):
        raise Refusal(
            f"{cell.folder} is damaged: the requests of {' '.join(place)} have acceptance length {length:.6g}, "
            f"their rounds {rates:.6g}."
        )
