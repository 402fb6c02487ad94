"""What a budget's speed is made of: the rounds that it takes, from replays, and what a round of its width costs, from
times.

A cost is relative: what a round takes over one of AR's, for the same prompt in the same sitting. A machine that is
slower in one sitting than in another is so for both. Shape letters: t texts, p prompts, b budgets from 1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from analysis import stats
from analysis.advise_subjects import Subject
from analysis.records import BASELINE
from analysis.replay import count_rounds, rounds_from
from analysis.stats import Floats
from methods.ddtree import DDTree

How = Literal["measured", "interpolated", "unknown"]


class Cost(NamedTuple):
    """A round's time over AR's, and where that is from."""

    ratio: float
    how: How


@dataclass(frozen=True)
class Texts:
    """The replayed texts of some prompts: the tokens after the first and the rounds that take them."""

    prompts: tuple[str, ...]
    keys: tuple[tuple[str, int], ...]  # prompt and turn of each text
    later_t: Floats
    chain_t: Floats
    trees_tb: Floats

    @classmethod
    def of(cls, subject: Subject, prompts: Collection[str]) -> Texts:
        names = sorted(prompts)
        found = [one for name in names for one in subject.texts[name]]
        chain = [len(rounds_from(one.chain, one.finish_reason)) for one in found]
        return cls(
            tuple(names),
            tuple((one.prompt_id, one.turn) for one in found),
            np.array([len(one.chain) for one in found], dtype=np.float64),
            np.array(chain, dtype=np.float64),
            np.stack([count_rounds(one, subject.budget)[2] for one in found]).astype(np.float64),
        )

    @cached_property
    def _share_pt(self) -> Floats:
        """Means over a prompt's texts, as a product from the left."""
        ours = np.array([[key[0] == name for key in self.keys] for name in self.prompts], dtype=np.float64)
        share: Floats = ours / ours.sum(axis=1, keepdims=True)
        return share

    def rounds(self, budget: int | None) -> Floats:
        """Of each text: of a tree, or of the chain without a budget."""
        return self.chain_t if budget is None else self.trees_tb[:, budget - 1]

    def log_rates(self, budget: int | None) -> Floats:
        """The logarithm of tokens per round, by prompt."""
        rates: Floats = self._share_pt @ np.log(self.later_t / self.rounds(budget))
        return rates

    @cached_property
    def log_rates_pb(self) -> Floats:
        """Of every budget."""
        rates: Floats = self._share_pt @ np.log(self.later_t[:, None] / self.trees_tb)
        return rates


@dataclass(frozen=True)
class Costs:
    """The costs of the arms that were timed, from `prompts`; `n_requests` of the arm with the most."""

    prompts: frozenset[str]
    n_requests: int
    logs: pd.DataFrame  # by arm and prompt: the mean logarithm of a round's cost
    budgets: tuple[int, ...]  # those whose width was timed, ascending

    @classmethod
    def of(cls, subject: Subject) -> Costs:
        """From the prompts that nothing is reported for, where trees were timed on some of them; else from all."""
        asked = subject.requests[subject.requests["arm"] != BASELINE]
        kept = asked[~asked["prompt_id"].isin(subject.halves.test)] if subject.halves.apart else asked
        trees = {DDTree(budget).arm for budget in subject.budgets}
        kept = kept if trees & set(kept["arm"]) else asked
        logs = kept.groupby(["arm", "prompt_id"])["log_cost"].mean().unstack("prompt_id")
        largest = int(kept.groupby("arm").size().max()) if len(kept) else 0
        budgets = tuple(b for b in subject.budgets if DDTree(b).arm in logs.index)
        return cls(frozenset(map(str, logs.columns)), largest, logs, budgets)

    def __contains__(self, arm: str) -> bool:
        return arm in self.logs.index

    def log(self, arm: str) -> float:
        return float(np.nanmean(self.logs.loc[arm].to_numpy(dtype=np.float64)))

    def parts(self, arm: str, prompts: Sequence[str]) -> Floats:
        """The logarithm of an arm's cost by prompt, for intervals over these prompts: their mean is `log`.

        A prompt that was not timed has the mean, those that were have their distance from it in proportion, so that
        few timed prompts leave the mean as unsure as it is.
        """
        mean = self.log(arm)
        known = self.logs.loc[arm].reindex(list(prompts)).to_numpy(dtype=np.float64)
        there = ~np.isnan(known)
        if not there.any():
            return np.full(len(prompts), mean)
        apart = (known - known[there].mean()) * len(prompts) / there.sum()
        return mean + np.where(there, apart, 0.0)

    @cached_property
    def _curve(self) -> tuple[Floats, Floats]:
        ratios = [math.exp(self.log(DDTree(budget).arm)) for budget in self.budgets]
        return np.array(self.budgets, dtype=np.float64), np.array(ratios)

    def of_budget(self, budget: int) -> Cost:
        """Straight between the measured neighbours; unknown outside of what was measured."""
        if budget in self.budgets:
            return Cost(math.exp(self.log(DDTree(budget).arm)), "measured")
        if not self.budgets or not self.budgets[0] < budget < self.budgets[-1]:
            return Cost(math.nan, "unknown")
        return Cost(float(np.interp(budget, *self._curve)), "interpolated")

    def of_arm(self, arm: str) -> Cost:
        """Of AR, the chain, or whatever else was timed."""
        if arm == BASELINE:
            return Cost(1.0, "measured")
        return Cost(math.exp(self.log(arm)), "measured") if arm in self else Cost(math.nan, "unknown")

    @property
    def misses(self) -> dict[int, float]:
        """By how much a straight line between its neighbours misses each measured budget, as a part of its cost."""
        budgets, ratios = self._curve
        found = {}
        for at in range(1, len(budgets) - 1):
            rest = np.arange(len(budgets)) != at
            found[int(budgets[at])] = float(np.interp(budgets[at], budgets[rest], ratios[rest]) / ratios[at] - 1)
        return found


def log_speeds(texts: Texts, costs: Costs, arm: str, budget: int | None) -> Floats:
    """The logarithm of an arm's speed over AR's by prompt: tokens per round over the cost of a round. Rounds and times
    of a prompt are paired."""
    if arm == BASELINE:
        return np.zeros(len(texts.prompts))
    return texts.log_rates(budget) - costs.parts(arm, texts.prompts)


def interval(logs: Floats) -> stats.Interval:
    """The geometric mean of ratios given as logarithms, with its interval over prompts."""
    point, low, high, n = stats.bootstrap_ci(logs)
    return stats.Interval(math.exp(point), math.exp(low), math.exp(high), n)
