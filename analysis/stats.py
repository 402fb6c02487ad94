"""The statistics: acceptance in its several words, paired speed-ups with their intervals, drift, the identity check.

A speed-up compares an arm's request with the baseline's request of the same sitting, prompt, turn and repeat. The
prompt is the unit: repeats and turns are averaged within it, so that asking again never narrows an interval
falsely, and the bootstrap draws prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.records import BASELINE, STAGES

CELL = ["results", "cell_id"]
ASKED = ["prompt_id", "turn", "repeat"]
RESAMPLES = 10_000
STUDENTISED_BELOW = 30
DRIFT = 0.03  # a move of the machine that is not let pass, as a logarithm
PLACES = {1: "middle", 2: "end"}  # of a sitting, by the repeat of its sentinel requests; 0 is the start
AT_CHANCE = 0.05  # accepted tokens a round that no drafter worth the name stays below
ENOUGH_ROUNDS = 20  # to tell
_STUDENT_T_975 = {2: 12.7062, 3: 4.3027, 4: 3.1824, 5: 2.7764}  # by prompts: so few have hardly any resamples
_BLOCK = 20_000_000  # numbers drawn at a time
_NORMAL = NormalDist()

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Table = pd.DataFrame | Mapping[str, Floats]  # a frame, or its columns as arrays


class Interval(NamedTuple):
    """An estimate over `n` prompts and its 95 % interval; NaN where there is none."""

    point: float
    low: float
    high: float
    n: int


def acceptance_length(requests: Table) -> float:
    """τ, pooled: 1 + Σ accepted / Σ rounds over uncut rounds. NaN without such a round."""
    rounds = requests["uncut_rounds"].sum()
    return 1 + float(requests["accepted_uncut_sum"].sum() / rounds) if rounds else math.nan


def acceptance_length_ci(requests: Table, resamples: int = RESAMPLES) -> Interval:
    """τ, pooled, with its interval over prompts; prompts without an uncut round are left out."""
    prompts = pd.factorize(np.asarray(requests["prompt_id"]), sort=True)[0]
    accepted, rounds = (np.asarray(requests[name], np.float64) for name in ("accepted_uncut_sum", "uncut_rounds"))
    parts = acceptance_by_prompt(*(np.bincount(prompts, sums).astype(np.float64) for sums in (accepted, rounds)))
    found = bootstrap_ci(parts, resamples)
    return found._replace(low=max(found.low, 1.0))  # NaN stays


def acceptance_by_prompt(accepted: Floats, rounds: Floats) -> Floats:
    """Each prompt's part in the pooled τ: τ + (accepted − (τ − 1) rounds) / mean rounds, whose mean is τ.

    τ is a ratio of sums; this is its expansion to first order, so that the mean's interval is τ's, and the interval
    of the mean difference of two arms' parts on the same prompts that of the difference of their τ. NaN where a
    prompt has no round.
    """
    there = rounds > 0
    if not there.any():
        return np.full(len(rounds), np.nan)
    pooled = accepted[there].sum() / rounds[there].sum()
    parts = 1 + pooled + (accepted - pooled * rounds) / rounds[there].mean()
    return np.where(there, parts, np.nan)


def acceptance_length_per_request(requests: Table) -> float:
    """The mean over requests of their own acceptance lengths; requests without an uncut round are left out."""
    some = requests["uncut_rounds"] > 0
    own = requests["accepted_uncut_sum"][some] / requests["uncut_rounds"][some]
    return 1 + float(own.mean()) if len(own) else math.nan


def tokens_per_round(requests: Table) -> float:
    """Σ emitted / Σ rounds over all rounds, cut ones too; each request's first token comes before its rounds."""
    rounds = requests["n_rounds"].sum()
    return float((requests["n_output"] - 1).sum() / rounds) if rounds else math.nan


def tokens_per_target_forward(requests: Table) -> float:
    """Output tokens over the target's passes: one a round, and one for the prefill, however it was cut up."""
    passes = (requests["n_rounds"] + 1).sum()
    return float(requests["n_output"].sum() / passes) if passes else math.nan


def accuracy(requests: Table) -> tuple[int, float]:
    """How many prompts have a right answer, and the mean over them of the share of their repeats that gave it; NaN of
    none. Of a conversation the first turn counts."""
    correct = np.asarray(requests["correct"], dtype=np.float64)
    scored = ~np.isnan(correct)
    prompts = pd.factorize(np.asarray(requests["prompt_id"])[scored])[0]
    right, asked = np.bincount(prompts, correct[scored]), np.bincount(prompts)
    return len(asked), float((right / asked).mean()) if len(asked) else math.nan


def acceptance_by_depth(rounds: pd.DataFrame, deepest: int = 0) -> pd.DataFrame:
    """How deep uncut rounds reach: one row a depth from 1 to the deepest accepted, or to `deepest` if that is more.

    Columns: `depth`; `rounds` that accepted at least so many; `marginal`, their share of all rounds, so that
    1 + Σ marginal is the acceptance length; `conditional`, their share of those that reached the depth before
    (NaN where none did).
    """
    return pd.DataFrame(by_depth(_accepted_counts(rounds, deepest)))


def by_depth(counts: Counts) -> dict[str, NDArray[Any]]:
    """The columns of `acceptance_by_depth`, from the number of rounds that accepted 0, 1, … tokens."""
    reached = counts[::-1].cumsum()[::-1]
    before = np.where(reached[:-1] > 0, reached[:-1], np.nan)
    return {
        "depth": np.arange(1, len(reached)),
        "rounds": reached[1:],
        "marginal": reached[1:] / max(int(reached[0]), 1),
        "conditional": reached[1:] / before,
    }


def acceptance_histogram(rounds: pd.DataFrame, deepest: int = 0) -> pd.DataFrame:
    """Uncut rounds by what they accepted: columns `accepted` (from 0), `rounds` and `share`."""
    return pd.DataFrame(histogram(_accepted_counts(rounds, deepest)))


def histogram(counts: Counts) -> dict[str, NDArray[Any]]:
    """The columns of `acceptance_histogram`, from the number of rounds that accepted 0, 1, … tokens."""
    shares = counts / max(int(counts.sum()), 1)
    return {"accepted": np.arange(len(counts)), "rounds": counts, "share": shares}


def _accepted_counts(rounds: pd.DataFrame, deepest: int) -> Counts:
    accepted = rounds.loc[rounds["cut"] == "", "accepted"].to_numpy(dtype=np.int64)
    return np.bincount(accepted, minlength=deepest + 1).astype(np.int64)


def at_chance(requests: Table, budget: float, vocabulary: float) -> bool:
    """Whether a drafter's acceptance cannot be told from chance: it is not fed, or is not this target's.

    Candidates in an order that knows nothing of the text hold the target's token in budget / vocabulary of the rounds
    at best, all of them at depth 1. Acceptance within three standard errors of that, or below 0.05 tokens a round, is
    at chance level. Fewer than 20 uncut rounds do not tell. A budget of NaN is a chain, one candidate a depth; a
    vocabulary of NaN is not known, and endless.
    """
    rounds = float(requests["uncut_rounds"].sum())
    if rounds < ENOUGH_ROUNDS:
        return False
    lucky = 0.0 if math.isnan(vocabulary) else min((1.0 if math.isnan(budget) else budget) / vocabulary, 1.0)
    reach = lucky + 3 * math.sqrt(lucky * (1 - lucky) / rounds)
    return float(requests["accepted_uncut_sum"].sum()) / rounds < max(AT_CHANCE, reach)


def one_each(requests: pd.DataFrame, baseline: str = BASELINE, phase: str = "timed") -> pd.DataFrame:
    """A phase's requests, one for each arm, prompt, turn and repeat: what an uninterrupted run would have left.

    A cell that was taken up again has asked the baseline some prompts twice, once a sitting. Kept is the first
    answer whose sitting also holds the baseline's; without one, the first.
    """
    asked = requests[requests["phase"] == phase]
    keys = [*CELL, "sitting", *ASKED]
    answered = pd.MultiIndex.from_frame(asked.loc[asked["arm"] == baseline, keys])
    alone = ~pd.MultiIndex.from_frame(asked[keys]).isin(answered)
    order = asked.assign(_alone=alone).sort_values(["_alone", "sitting"], kind="stable")
    return order.drop_duplicates([*CELL, "arm", *ASKED]).drop(columns="_alone").sort_index()


def pair(requests: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """Every request of `one_each` beside the baseline's of the same sitting, prompt, turn and repeat.

    The baseline's times stand in `tpot_baseline_s` and `e2e_baseline_s`, the natural logarithms of the ratios
    (above 0: faster than the baseline) in `log_speedup` and `log_speedup_e2e`. Requests without a partner are left
    out; a ratio of times that are not both above 0 is NaN.
    """
    timed = requests[requests["phase"] == "timed"]
    keys = [*CELL, "sitting", *ASKED]
    partner = timed.loc[timed["arm"] == baseline, [*keys, "tpot_s", "e2e_s"]]
    partner = partner.rename(columns={"tpot_s": "tpot_baseline_s", "e2e_s": "e2e_baseline_s"})
    pairs = one_each(requests, baseline).merge(partner, on=keys, how="inner", validate="many_to_one")
    pairs["log_speedup"] = _log_ratio(pairs["tpot_baseline_s"], pairs["tpot_s"])
    pairs["log_speedup_e2e"] = _log_ratio(pairs["e2e_baseline_s"], pairs["e2e_s"])
    return pairs


def _log_ratio(above: pd.Series[float], below: pd.Series[float]) -> pd.Series[float]:
    sound = (above > 0) & (below > 0)
    return (above.where(sound) / below.where(sound)).map(math.log, na_action="ignore")


def speedup(pairs: Table, column: str = "log_speedup", resamples: int = RESAMPLES) -> Interval:
    """The geometric mean over prompts of one arm's speed-up, with its interval; `pairs` as from `pair`."""
    ratios = np.asarray(pairs[column], dtype=np.float64)
    there = ~np.isnan(ratios)
    prompts = pd.factorize(np.asarray(pairs["prompt_id"])[there], sort=True)[0]
    by_prompt = np.bincount(prompts, ratios[there]) / np.maximum(np.bincount(prompts), 1)
    point, low, high, n = bootstrap_ci(by_prompt, resamples)
    return Interval(math.exp(point), math.exp(low), math.exp(high), n)


def ratio_of_means(pairs: Table) -> float:
    """The baseline's mean TPOT over the arm's: long and slow prompts count for more than in `speedup`."""
    both = ~np.isnan(np.asarray(pairs["log_speedup"], dtype=np.float64))
    return float(pairs["tpot_baseline_s"][both].mean() / pairs["tpot_s"][both].mean()) if both.any() else math.nan


def drift(requests: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """How far the machine moved within each sitting, told by the sentinel: the same prompts, asked of the baseline at
    the start, in the middle and at the end.

    One row per `results cell_id sitting place`, with `place` `middle` or `end`; `shift`, the mean over prompts of
    log(TPOT there / TPOT at the start), above 0 where the machine became slower; its `standard_error` over prompts,
    NaN of one prompt; and `drifted`, whether the shift is beyond 0.03 or three standard errors, whichever is larger.
    """
    prompt = [*CELL, "sitting", "prompt_id", "turn"]
    asked = _logs(requests[(requests["phase"] == "sentinel") & (requests["arm"] == baseline)])
    start = asked.loc[asked["repeat"] == 0, [*prompt, "log"]]
    later = asked[asked["repeat"].isin(PLACES)].merge(start, on=prompt, suffixes=("", "_start"))
    later = later.assign(shift=later["log"] - later["log_start"], place=later["repeat"].map(PLACES).astype("str"))
    place = [*CELL, "sitting", "place"]
    by_prompt = later.groupby([*place, "prompt_id"], sort=False)["shift"].mean()
    found = by_prompt.groupby(place, sort=False).agg(shift="mean", standard_error="sem").reset_index()
    limit = np.maximum(DRIFT, 3 * found["standard_error"].fillna(0))
    return found.assign(drifted=found["shift"].abs() > limit)


def identity(requests: pd.DataFrame, pairs: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """The profiled requests, one for each arm and prompt, and what the stages of their rounds say of the speed-up.

    `log_predicted` is the logarithm of tokens per round × t_AR / (draft + build + verify + commit), the stages per
    round. t_AR is the baseline's TPOT without profiling for the same prompt in the same sitting: the sentinel's last,
    right before the profiled pass, so that a machine that moved earlier does not show; else the timed requests'.
    `log_measured` is the arm's measured speed-up on that prompt, from `pairs`. Whatever a timed round spends outside
    its stages keeps the two apart.
    """
    asked = ["prompt_id", "turn"]
    plain = _logs(requests[requests["arm"] == baseline])
    prompt = [*CELL, "sitting", *asked]
    timed = plain[plain["phase"] == "timed"].groupby(prompt)["log"].mean()
    latest = plain[plain["phase"] == "sentinel"].sort_values("repeat").groupby(prompt)["log"].last()
    step = latest.combine_first(timed).rename("log_step").reset_index()
    measured = pairs.groupby([*CELL, "arm", *asked])["log_speedup"].mean().rename("log_measured").reset_index()
    found = one_each(requests, baseline, phase="profile")
    spent = found[list(STAGES)].sum(axis=1)
    found = found[(found["n_rounds"] > 0) & (spent > 0)]
    found = found.merge(step, on=prompt, how="left")
    found = found.merge(measured, on=[*CELL, "arm", *asked], how="left")
    rates = (found["n_output"] - 1) / found[list(STAGES)].sum(axis=1)  # rounds cancel
    return found.assign(log_predicted=found["log_step"] + np.log(rates.to_numpy(dtype=np.float64)))


def _logs(requests: pd.DataFrame) -> pd.DataFrame:
    """The requests that have a TPOT, with its natural logarithm in `log`."""
    there = requests[requests["tpot_s"] > 0]
    return there.assign(log=np.log(there["tpot_s"].to_numpy(dtype=np.float64)))


def bootstrap_ci(values: Any, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The mean of a sample and its 95 % bootstrap interval; NaN values are left out.

    Below 30 values the interval is studentised (bootstrap-t), since percentiles are too narrow there; from 30 it
    is bias-corrected and accelerated (BCa). Two to five values have Student's t interval, one has none. The
    resamples are the same for samples of equal size, so intervals do not depend on the order of the calls.

    Sources: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 12 and 14.
    """
    sample = np.asarray(values, dtype=np.float64)
    sample = sample[~np.isnan(sample)]
    n = len(sample)
    if n < 2:
        return Interval(float(sample[0]) if n else math.nan, math.nan, math.nan, n)
    mean = float(sample.mean())
    centred = sample - mean
    spread = float(centred.std())
    if spread <= 1e-12 * max(1.0, abs(mean)):
        return Interval(mean, mean, mean, n)
    if n in _STUDENT_T_975:
        reach = _STUDENT_T_975[n] * spread / math.sqrt(n - 1)
        return Interval(mean, mean - reach, mean + reach, n)
    scaled = centred / spread
    powers = np.stack([scaled, scaled**2], axis=1)
    moments = _resampled(powers, resamples, seed)
    low, high = _studentised(moments) if n < STUDENTISED_BELOW else _bca(scaled, moments[:, 0])
    return Interval(mean, mean + spread * low, mean + spread * high, n)


def _studentised(moments: Floats) -> tuple[float, float]:
    """The interval of a sample of mean 0 and spread 1, from quantiles of resampled mean / resampled error."""
    means = moments[:, 0]
    variances = np.maximum(moments[:, 1] - means**2, 0)
    usable = variances > 1e-6  # a resample of one value only has no error to divide by
    ratios = means[usable] / np.sqrt(variances[usable])
    below, above = quantiles(ratios, 0.025, 0.975)
    return -above, -below


def _bca(sample: Floats, means: Floats) -> tuple[float, float]:
    """The bias-corrected and accelerated interval of a sample of mean 0, from its resampled means."""
    below = (np.count_nonzero(means < 0) + 0.5) / (len(means) + 1)
    bias = _NORMAL.inv_cdf(below)
    acceleration = float((sample**3).sum() / (6 * (sample**2).sum() ** 1.5))
    levels = []
    for z in (_NORMAL.inv_cdf(0.025), _NORMAL.inv_cdf(0.975)):
        levels.append(_NORMAL.cdf(bias + (bias + z) / (1 - acceleration * (bias + z))))
    low, high = quantiles(means, *levels)
    return low, high


def quantiles(values: Floats, *levels: float) -> list[float]:
    """`np.quantile` of an array without NaN, one number a level; NaN of none. NumPy takes several times as long."""
    if not len(values):
        return [math.nan] * len(levels)
    places = [level * (len(values) - 1) for level in levels]
    below = [min(int(place), len(values) - 1) for place in places]
    above = [min(index + 1, len(values) - 1) for index in below]
    ordered = np.partition(values, sorted({*below, *above}))
    return [
        _between(float(ordered[low]), float(ordered[high]), place - low)
        for low, high, place in zip(below, above, places, strict=True)
    ]


def _between(low: float, high: float, share: float) -> float:
    return high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share


def _resampled(columns: Floats, resamples: int, seed: int) -> Floats:
    """The means of resampled rows: [n, k] → [resamples, k]."""
    n = len(columns)
    single, rows = columns.astype(np.float32), max(1, _BLOCK // n)
    blocks = [
        _counts(n, min(rows, resamples - start), (seed, start)) @ single / n for start in range(0, resamples, rows)
    ]
    return np.concatenate(blocks).astype(np.float64)


@lru_cache(maxsize=4)
def _counts(n: int, resamples: int, seed: tuple[int, int]) -> NDArray[np.float32]:
    """How often each of n values is drawn in each resample, [resamples, n]."""
    drawn = np.random.default_rng([n, *seed]).integers(0, n, size=(resamples, n), dtype=np.int64)
    drawn += np.arange(resamples)[:, None] * n
    return np.bincount(drawn.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float32)
