"""Which budget to take: every budget's speed as its replayed rounds and the measured cost of its width make it, chosen
on one half of the prompts and reported on the other.

The candidates are the budgets whose width was timed: a choice never rests on a cost that was read off between two
measured ones, for the real curve has stairs. Of those that cannot be told apart from the fastest, prompt by prompt, the
smallest is taken, unless it is far behind: few prompts tell little apart. DFlash or AR is taken instead where that is
told to be faster than the tree.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import stats
from analysis.advise_costs import Cost, Costs, Texts, interval, log_speeds
from analysis.advise_subjects import CHAIN, Subject, subjects
from analysis.records import BASELINE, Cell
from analysis.stats import Floats, Interval
from methods.base import Method
from methods.ddtree import DDTree
from methods.dflash import DFlash

CLOSE = 0.97  # of the fastest one's speed: what is given up at most for a smaller budget
WORTH = 1.01  # times the fastest one's speed, from which on another budget is worth measuring


class Choice(NamedTuple):
    """What was found on the prompts that are chosen on. `best` is the fastest timed budget, `tied` those that cannot
    be told apart from it, itself included, `budget` the smallest of these that is close. `behind` are the tied ones
    that are not, with their speed over the best's. `told` is whether there were prompts enough to tell anything apart.
    `take` is the arm to run."""

    best: int
    tied: tuple[int, ...]
    budget: int
    behind: dict[int, float]
    told: bool
    take: str


@dataclass(frozen=True)
class Advice:
    """A subject, what to take, and what that rests on."""

    subject: Subject
    costs: Costs
    dev: Texts
    test: Texts
    choice: Choice

    @property
    def own_costs(self) -> bool:
        """Whether costs are from prompts that speed is reported for, so that prediction and measurement agree by
        construction."""
        return bool(self.costs.prompts & set(self.test.prompts))

    @cached_property
    def speed_b(self) -> Floats:
        """Of every budget, on the prompts that are chosen on: the predicted speed over AR's; NaN without a cost."""
        costs = np.array([self.costs.of_budget(budget).ratio for budget in range(1, self.subject.budget + 1)])
        found: Floats = np.exp(self.dev.log_rates_pb.mean(axis=0)) / costs
        return found

    @property
    def worth_measuring(self) -> tuple[int, float] | None:
        """The budget between measured ones that is predicted fastest, and its speed over that of the fastest measured
        one; None where that is hardly more."""
        if np.isnan(self.speed_b).all():
            return None
        budget = int(np.nanargmax(self.speed_b)) + 1
        ratio = float(self.speed_b[budget - 1] / self.speed_b[self.choice.best - 1])
        return (budget, ratio) if ratio >= WORTH and budget not in self.costs.budgets else None

    @property
    def may_be_faster(self) -> tuple[int, ...]:
        """The powers of two above the timed budgets that could be faster: their rounds at the cost of the largest
        timed one, below which a wider pass cannot come, would be."""
        timed, largest = self.costs.budgets[-1], self.subject.budget
        powers = [2**power for power in range(largest.bit_length()) if timed < 2**power <= largest]
        rates = np.exp(self.dev.log_rates_pb.mean(axis=0)) / self.costs.of_budget(timed).ratio
        return tuple(b for b in powers if rates[b - 1] >= WORTH * self.speed_b[self.choice.best - 1])

    def measured(self, arm: str) -> pd.DataFrame:
        """An arm's timed requests for the prompts that are reported on."""
        asked = self.subject.requests
        return asked[(asked["arm"] == arm) & asked["prompt_id"].isin(self.test.prompts)]

    def faster(self, arm: str, other: str) -> Interval:
        """How much faster an arm is than another on the prompts that are reported on, both measured and paired."""
        logs = [self.measured(name).groupby("prompt_id")["log_speedup"].mean() for name in (arm, other)]
        both = (logs[0] - logs[1]).dropna().sort_index()
        return interval(both.to_numpy(dtype=np.float64))


def advise(cells: Iterable[Cell], arms: Collection[str] | None = None) -> list[Advice]:
    """Advice for every machine, model, workload, tp and concurrency among the cells.

    Args:
        cells: of a results folder, finished or running.
        arms: use the times of these arms, and AR's, as if no others had been run.

    Raises:
        Refusal: there is nothing to advise on; it says what is missing.
    """
    return [_advice(subject) for subject in subjects(cells, arms)]


def _advice(subject: Subject) -> Advice:
    costs = Costs.of(subject)
    dev, test = (Texts.of(subject, prompts) for prompts in subject.halves)
    return Advice(subject, costs, dev, test, _choose(dev, costs))


def _choose(dev: Texts, costs: Costs) -> Choice:
    logs = {budget: log_speeds(dev, costs, DDTree(budget).arm, budget) for budget in costs.budgets}
    best = max(logs, key=lambda budget: (logs[budget].mean(), -budget))
    ahead = {budget: stats.bootstrap_ci(logs[best] - logs[budget]) for budget in logs}
    told = not any(math.isnan(one.low) for one in ahead.values())
    tied = tuple(budget for budget in logs if budget == best or (told and ahead[budget].low <= 0))
    behind = {one: math.exp(-ahead[one].point) for one in tied if math.exp(-ahead[one].point) < CLOSE}
    budget = min(one for one in tied if one not in behind)
    take, speed = DDTree(budget).arm, logs[budget]
    for arm in (CHAIN, BASELINE):
        if arm == BASELINE or arm in costs:
            rival = log_speeds(dev, costs, arm, None)
            if _ahead(rival - speed):
                take, speed = arm, rival
    return Choice(best, tied, budget, behind, told, take)


def _ahead(logs: Floats) -> bool:
    """Whether the first of two is told to be faster; one prompt tells nothing, and its own word is taken."""
    found = stats.bootstrap_ci(logs)
    return found.low > 0 or (math.isnan(found.low) and found.point > 0)


def rows(advice: Advice, budgets: Collection[int] | None = None) -> Iterator[dict[str, Any]]:
    """AR, DFlash, the budgets asked for (all of them unless said), and what else was timed: one row each, with what is
    predicted and what was measured for the prompts that are reported on."""
    predict = _Predictor(advice)
    yield predict.row(BASELINE, None, None)
    yield predict.row(CHAIN, DFlash(), None)
    known = {BASELINE, CHAIN}
    for budget in range(1, advice.subject.budget + 1):
        method = DDTree(budget)
        known.add(method.arm)
        if budgets is None or budget in budgets:
            yield predict.row(method.arm, method, budget)
    for arm in dict.fromkeys(advice.subject.runs["arm"]):
        if arm not in known:
            yield predict.other(str(arm))


class _Predictor:
    """The figures of rows, on the prompts that are reported on. Times of day are AR's own for the same texts, times
    what an arm takes for a text over what AR takes."""

    def __init__(self, advice: Advice) -> None:
        self._advice, self._known = advice, dict[bytes, Interval]()
        asked = advice.subject.requests
        asked = asked[asked["prompt_id"].isin(advice.test.prompts)]
        self._timed = {str(arm): requests for arm, requests in asked.groupby("arm")}
        by_text = asked[asked["arm"] == BASELINE].groupby(["prompt_id", "turn"])[["tpot_s", "ttft_s"]].mean()
        times = by_text.reindex(pd.MultiIndex.from_tuples(advice.test.keys)).to_numpy(dtype=np.float64)
        self._tpot_t, self._ttft_t = times[:, 0], times[:, 1]
        there, later = ~np.isnan(self._tpot_t), advice.test.later_t
        self._step_s = (self._tpot_t[there] * later[there]).sum() / later[there].sum() if there.any() else self._any()
        self._runs = advice.subject.runs.drop_duplicates("arm").set_index("arm")
        self._status = advice.subject.runs.groupby("arm")["status"].agg(set)

    def _any(self) -> float:
        """AR's step where it was not timed for the prompts that are reported on."""
        asked = self._advice.subject.requests
        asked = asked[asked["arm"] == BASELINE]
        return float(asked["decode_s"].sum() / asked["n_rounds"].sum())

    def row(self, arm: str, method: Method | None, budget: int | None) -> dict[str, Any]:
        advice, test = self._advice, self._advice.test
        cost = advice.costs.of_arm(arm) if budget is None else advice.costs.of_budget(budget)
        rounds_t = test.later_t if arm == BASELINE else test.rounds(budget)
        rates = np.zeros(len(test.prompts)) if arm == BASELINE else test.log_rates(budget)
        predicted = self._shifted(rates, cost)
        return {
            "arm": arm,
            "method": "autoregressive" if method is None else method.name,
            "budget": math.nan if budget is None else float(budget),
            "width": self._width(arm, budget),
            "cost": cost.ratio,
            "cost_from": cost.how,
            "round_s": cost.ratio * self._step_s,
            "tokens_per_round": float(test.later_t.sum() / rounds_t.sum()),
            "speedup_dev": self._dev(arm, budget, cost),
            **_three("speedup", predicted),
            **self._absolute(rounds_t * cost.ratio),
            **self._measured(arm, rates, cost),
            "verdict": self._verdict(arm, budget),
        }

    def other(self, arm: str) -> dict[str, Any]:
        """An arm whose rounds the replay does not tell: what was measured alone."""
        run, cost = self._runs.loc[arm], self._advice.costs.of_arm(arm)
        blank = dict.fromkeys(("width", "tokens_per_round", "speedup_dev"), math.nan)
        unknown = Cost(math.nan, "unknown")
        return {
            **{"arm": arm, "method": run["method"], "budget": run["budget"]},
            **blank,
            **{"cost": cost.ratio, "cost_from": cost.how, "round_s": cost.ratio * self._step_s},
            **_three("speedup", Interval(math.nan, math.nan, math.nan, 0)),
            **self._absolute(np.full(len(self._advice.test.keys), math.nan)),
            **self._measured(arm, np.full(len(self._advice.test.prompts), math.nan), unknown),
            "verdict": "",
        }

    def _width(self, arm: str, budget: int | None) -> float:
        if budget is not None:
            return 1.0 + budget
        return 1.0 if arm == BASELINE else float(self._advice.subject.block or math.nan)

    def _dev(self, arm: str, budget: int | None, cost: Cost) -> float:
        if arm == BASELINE:
            return 1.0
        if budget is not None:
            return float(self._advice.speed_b[budget - 1])
        return float(np.exp(self._advice.dev.log_rates(None).mean()) / cost.ratio)

    def _shifted(self, rates: Floats, cost: Cost) -> Interval:
        """The speed-up at a cost that is taken as known; budgets with the same rounds share the resampling."""
        if math.isnan(cost.ratio):
            return Interval(math.nan, math.nan, math.nan, len(rates))
        key = rates.tobytes()
        if key not in self._known:
            self._known[key] = interval(rates)
        found = self._known[key]
        return Interval(found.point / cost.ratio, found.low / cost.ratio, found.high / cost.ratio, found.n)

    def _absolute(self, steps_t: Floats) -> dict[str, float]:
        """Tokens/s and TPOT for texts that take so many of AR's steps, as `load_runs` defines them."""
        later_t, seconds_t = self._advice.test.later_t, steps_t * self._tpot_t
        there = ~np.isnan(seconds_t + self._ttft_t)
        if not there.any():
            return dict.fromkeys(("tpot_s", "tokens_per_s", "tokens_per_s_per_user"), math.nan)
        later, seconds = later_t[there], seconds_t[there]
        return {
            "tpot_s": float((seconds / later).mean()),
            "tokens_per_s": float((later + 1).sum() / (seconds + self._ttft_t[there]).sum()),
            "tokens_per_s_per_user": float(later.sum() / seconds.sum()),
        }

    def _measured(self, arm: str, rates: Floats, cost: Cost) -> dict[str, Any]:
        """What the clock says; `difference` is by how much the prediction is faster, on the prompts that have both."""
        requests = self._timed.get(arm)
        if requests is None:
            return {**_NOT_MEASURED, "status": ""}
        found = stats.speedup(requests)
        seconds, tokens = requests["e2e_s"].sum(), requests["n_output"].sum()
        logs = requests.groupby("prompt_id")["log_speedup"].mean().reindex(list(self._advice.test.prompts))
        apart = rates - math.log(cost.ratio) - logs.to_numpy(dtype=np.float64)
        apart = apart[~np.isnan(apart)]
        return {
            **_three("measured_speedup", found),
            "measured_tpot_s": float(requests["tpot_s"].mean()),
            "measured_tokens_per_s": float(tokens / seconds),
            "n_measured": found.n,
            "difference": math.expm1(apart.mean()) if len(apart) and arm != BASELINE else math.nan,
            "status": "drifted" if "drifted" in self._status[arm] else "complete",
        }

    def _verdict(self, arm: str, budget: int | None) -> str:
        choice = self._advice.choice
        if arm == choice.take:
            return "take"
        return "fastest" if budget == choice.best else "tied" if budget in choice.tied else ""


_NOT_MEASURED = dict.fromkeys(
    (
        *("measured_speedup", "measured_speedup_low", "measured_speedup_high"),
        *("measured_tpot_s", "measured_tokens_per_s", "difference"),
    ),
    math.nan,
) | {"n_measured": 0}


def _three(name: str, found: Interval) -> dict[str, float]:
    return {name: found.point, f"{name}_low": found.low, f"{name}_high": found.high}
