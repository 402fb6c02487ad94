"""The best budget of a method, and what it was chosen on.

A budget chosen on the very prompts its speed-up is reported for flatters: the luckiest of several noisy numbers is
shown. Where a workload's dev half was asked under the same settings as its test half, the choice is made there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from analysis.columns import family, named
from analysis.records import HIDDEN

DEV = "dev's best"
SAME_DATA = "best*"

Place = tuple[str, str]  # results, cell_id


class Best(NamedTuple):
    """The row of `load_runs` with the chosen budget, how it was chosen, and what the row is called."""

    row: Any
    how: str

    @property
    def label(self) -> str:
        return f"{family(self.row)}, {self.how}"


def partners(rows: Sequence[Any]) -> dict[Place, list[Any]]:
    """For each cell of a test half, the rows of the dev half that was asked of the same models in the same way; of
    several the one with the most prompts. A limit may differ."""
    halves: dict[tuple[Any, ...], dict[Place, list[Any]]] = {}
    for row in rows:
        if row.split == "dev":
            halves.setdefault(_asked(row), {}).setdefault((row.results, row.cell_id), []).append(row)
    found = {}
    for row in rows:
        dev = halves.get(_asked(row))
        if row.split == "test" and dev:
            found[row.results, row.cell_id] = max(dev.values(), key=lambda half: max(one.n_prompts for one in half))
    return found


def _asked(row: Any) -> tuple[Any, ...]:
    kept = (part for part in row.workload.split(":") if part not in ("dev", "test") and not part.startswith("limit="))
    return (
        *(row.engine, row.tp, row.device, row.dtype, row.concurrency, row.model, row.drafter, row.temperature),
        *(row.max_new_tokens, str(row.request_rate), str(row.simulate_acceptance), *kept),
    )


def bests(rows: Sequence[Any], dev: Mapping[Place, Sequence[Any]]) -> Iterator[Best]:
    """The best budget of every method that has several, in each cell; methods in the order of the rows.

    Where there is a dev half in which the method's budgets were timed, the one fastest there is taken, whatever it
    does here; else the fastest here.
    """
    curves: dict[tuple[str, Place], list[Any]] = {}
    for row in rows:
        if pd.notna(row.budget):
            curves.setdefault((family(row), (row.results, row.cell_id)), []).append(row)
    for (method, place), curve in curves.items():
        choices = [row for row in dev.get(place, ()) if family(row) == method and _timed(row)]
        here = {named(row): row for row in curve}
        choices = [row for row in choices if named(row) in here]
        if choices:
            yield Best(here[named(max(choices, key=lambda row: row.speedup))], DEV)
        elif sum(map(_timed, curve)) > 1:
            yield Best(max(filter(_timed, curve), key=lambda row: row.speedup), SAME_DATA)


def _timed(row: Any) -> bool:
    return row.status not in HIDDEN and pd.notna(row.speedup)
