"""A cell's arms beside each other, prompt by prompt: how much faster one is than another, how much deeper it reaches.

`load_runs` compares every arm with the baseline. Which budget is best, and which cannot be told from it, takes
comparisons of arms with each other; they are paired by prompt like those, and have the same intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import stats
from analysis.records import KEYS, Cell, requests_of
from analysis.stats import Floats, Interval

_READ = (*KEYS, "category", "tpot_s", "e2e_s", "uncut_rounds", "accepted_uncut_sum")
NONE = Interval(math.nan, math.nan, math.nan, 0)


class Front(NamedTuple):
    """The fastest of some arms, and those that cannot be told from it (itself among them) on these prompts."""

    best: str
    tied: tuple[str, ...]
    n: int


def by_prompt(cells: Iterable[Cell]) -> pd.DataFrame:
    """One row per cell, arm and prompt of the timed requests, repeats and turns together.

    Columns beside these keys: `category`, `log_speedup` (the mean, NaN without a baseline to compare with), and the
    sums `accepted` and `rounds` over uncut rounds.
    """
    found = [requests_of(cell, _READ).assign(results=cell.results) for cell in cells]
    requests = pd.concat([frame for frame in found if len(frame)], ignore_index=True)
    keys = [*stats.CELL, "prompt_id", "arm"]
    kept = stats.one_each(requests).groupby(keys, sort=False)
    sums = kept.agg(
        category=("category", "first"), accepted=("accepted_uncut_sum", "sum"), rounds=("uncut_rounds", "sum")
    )
    speeds = stats.pair(requests).groupby(keys, sort=False)["log_speedup"].mean()
    return sums.join(speeds).reset_index()


class Compared:
    """The arms of one cell, prompt by prompt; `table` has its rows of `by_prompt`."""

    def __init__(self, table: pd.DataFrame) -> None:
        self._told: dict[tuple[str, str], Interval] = {}  # several expectations ask for the same ratios
        prompts, first, row = np.unique(table["prompt_id"].to_numpy(dtype=str), return_index=True, return_inverse=True)
        self.prompts = prompts
        self.categories = table["category"].to_numpy(dtype=str)[first]
        names, column = np.unique(table["arm"].to_numpy(dtype=str), return_inverse=True)
        arms = {str(name): index for index, name in enumerate(names)}
        self._speeds, self._accepted, self._rounds = (
            self._spread(table[name].to_numpy(dtype=np.float64), row, column, arms)
            for name in ("log_speedup", "accepted", "rounds")
        )

    def _spread(self, values: Floats, row: Any, column: Any, arms: Mapping[str, int]) -> dict[str, Floats]:
        """Each arm's values, one a prompt, NaN where it has none."""
        grid = np.full((len(arms), len(self.prompts)), math.nan)
        grid[column, row] = values
        return {arm: grid[index] for arm, index in arms.items()}

    def log_speeds(self, arm: str) -> Floats:
        """The mean logarithm of each prompt's speed-up over the baseline, NaN where there is none."""
        return self._speeds.get(arm, np.full(len(self.prompts), math.nan))

    def speed(self, arm: str, over: str) -> Interval:
        """How many times as fast as another arm, the geometric mean over the prompts that both have answered."""
        if (arm, over) not in self._told:
            self._told[arm, over] = exponential(self.log_speeds(arm) - self.log_speeds(over))
        return self._told[arm, over]

    def length(self, arm: str) -> float:
        """The acceptance length τ over all its uncut rounds."""
        if arm not in self._rounds:
            return math.nan
        rounds = np.nansum(self._rounds[arm])
        return 1 + float(np.nansum(self._accepted[arm]) / rounds) if rounds else math.nan

    def lengths(self, arm: str, over: str, category: str | None = None) -> Interval:
        """An arm's pooled τ over another's, on the prompts that both have uncut rounds for.

        τ is a ratio of sums, so prompts weigh as they have rounds; the interval is of its linearisation.
        """
        if not {arm, over} <= self._rounds.keys():
            return NONE
        shown = (self._rounds[arm] > 0) & (self._rounds[over] > 0)
        if category is not None:
            shown &= self.categories == category
        if not shown.any():
            return NONE
        (own, mine), (other, theirs) = (
            _log_length(self._accepted[a][shown], self._rounds[a][shown]) for a in (arm, over)
        )
        return exponential(own - other + mine - theirs)

    def front(self, arms: Iterable[str]) -> Front | None:
        """The fastest of these arms over the prompts that all of them have answered; None without such a prompt.

        An arm is tied with it where the interval of their ratio holds 1, or where there is no interval.
        """
        speeds = {arm: self.log_speeds(arm) for arm in arms}
        if not speeds:
            return None
        shared = ~np.isnan(np.stack(list(speeds.values()))).any(axis=0)
        if not shared.any():
            return None
        best = max(speeds, key=lambda arm: float(speeds[arm][shared].mean()))
        tied = tuple(arm for arm in speeds if arm == best or not self.speed(best, arm).low > 1)
        return Front(best, tied, int(shared.sum()))


def _log_length(accepted: Floats, rounds: Floats) -> tuple[Floats, float]:
    """log τ, and each prompt's part in how it would vary: numbers of mean 0."""
    rate = float(accepted.sum() / rounds.sum())
    return (accepted - rate * rounds) / rounds.mean() / (1 + rate), math.log1p(rate)


def exponential(logs: Floats) -> Interval:
    """The geometric mean of ratios given as logarithms, with its interval."""
    point, low, high, n = stats.bootstrap_ci(logs)
    return Interval(math.exp(point), math.exp(low), math.exp(high), n)


def between(left: Compared, right: Compared, arm: str) -> Interval:
    """An arm's speed-up in one cell over that in another, paired where they have the same prompts.

    Each speed-up is over the baseline of its own sitting, so that cells timed on different days can be compared.
    """
    places = {prompt: index for index, prompt in enumerate(right.prompts)}
    pairs = [(index, places[prompt]) for index, prompt in enumerate(left.prompts) if prompt in places]
    if not pairs:
        return NONE
    ours, theirs = (np.asarray(rows) for rows in zip(*pairs, strict=True))
    return exponential(left.log_speeds(arm)[ours] - right.log_speeds(arm)[theirs])
