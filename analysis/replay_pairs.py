"""Two drafters of one target on the same texts: how far apart they are at every budget, prompt by prompt.

Their cells' AR texts are the same, so each root is drafted by both and the difference is paired: what makes a prompt
hard to draft for either drops out of the interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import stats
from analysis.records import Cell, find_cells
from analysis.replay import FREE, Replayed, asks_the_same, count_rounds, replays_of

_PAIRED = {
    **dict.fromkeys(("cell_id", "drafter", "other_cell_id", "other_drafter"), "str"),
    **dict.fromkeys(("budget", "n_prompts", "n_other_text"), "int64"),
    **dict.fromkeys(("acceptance_length", "other_acceptance_length"), "float64"),
    **dict.fromkeys(("difference", "difference_low", "difference_high"), "float64"),
    "results": "str",
}

Counted = tuple[stats.Floats, stats.Floats]  # accepted tokens and rounds, uncut, [prompts, budgets]


def load_drafter_differences(path: str | Path) -> pd.DataFrame:
    """One row per budget and two replayed cells of a results folder that differ in nothing but the drafter.

    Columns: `cell_id drafter other_cell_id other_drafter budget n_prompts n_other_text acceptance_length
    other_acceptance_length difference difference_low difference_high results`. Over the texts that both replayed
    (`n_other_text` differ); `difference` is the other's acceptance length less the first's, with its 95 % bootstrap
    interval over prompts, paired.
    """
    cells = [(cell, replays) for cell in find_cells(path) if (replays := replays_of(cell))]
    rows: list[dict[str, Any]] = []
    for (mine, replays), (theirs, others) in combinations(cells, 2):
        free = (*FREE, "drafter")
        if mine.results == theirs.results and asks_the_same(mine, theirs, free) and _drafters_differ(mine, theirs):
            place = {"cell_id": mine.cell_id, "drafter": mine.settings["drafter"], "results": mine.results}
            place |= {"other_cell_id": theirs.cell_id, "other_drafter": theirs.settings["drafter"]}
            rows += [{**place, **row} for row in _differences(replays, others)]
    return pd.DataFrame(rows, columns=list(_PAIRED)).astype(_PAIRED)


def _drafters_differ(mine: Cell, theirs: Cell) -> bool:
    return bool(mine.settings["drafter"] != theirs.settings["drafter"])


def _differences(replays: Sequence[Replayed], others: Sequence[Replayed]) -> Iterator[dict[str, Any]]:
    texts = {(other.prompt_id, other.turn): other for other in others}
    beside = [(one, texts[one.prompt_id, one.turn]) for one in replays if (one.prompt_id, one.turn) in texts]
    pairs = [(one, other) for one, other in beside if one.output_ids == other.output_ids]
    if not pairs:
        return
    budget = min(replayed.budget for pair in pairs for replayed in pair)
    prompts = {name: index for index, name in enumerate(sorted({one.prompt_id for one, _ in pairs}))}
    mine, theirs = (_counted([pair[side] for pair in pairs], prompts, budget) for side in (0, 1))
    known: dict[bytes, stats.Interval] = {}  # budgets between which nothing changes
    for column in range(budget):
        first, second = (stats.acceptance_by_prompt(a[:, column], r[:, column]) for a, r in (mine, theirs))
        apart = second - first
        key = apart.tobytes()
        if key not in known:
            known[key] = stats.bootstrap_ci(apart)
        yield {
            "budget": column + 1,
            "n_prompts": len(prompts),
            "n_other_text": len(beside) - len(pairs),
            "acceptance_length": _mean(first),
            "other_acceptance_length": _mean(second),
            "difference": known[key].point,
            "difference_low": known[key].low,
            "difference_high": known[key].high,
        }


def _counted(replays: Sequence[Replayed], prompts: Mapping[str, int], budget: int) -> Counted:
    accepted, uncut = (np.zeros((len(prompts), budget)) for _ in range(2))
    for replayed in replays:
        own_accepted, own_uncut, _ = count_rounds(replayed, budget)
        accepted[prompts[replayed.prompt_id]] += own_accepted
        uncut[prompts[replayed.prompt_id]] += own_uncut
    return accepted, uncut


def _mean(parts: stats.Floats) -> float:
    there = parts[~np.isnan(parts)]
    return float(there.mean()) if len(there) else math.nan
