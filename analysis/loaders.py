"""For notebooks: an arm beside another request by request, an interval, a frontier. The statistics are those of tables.

Each takes what `load_requests` or `load_runs` gives, and gives a frame or a few numbers to plot as you like.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import pandas as pd

from analysis import stats
from analysis.records import BASELINE
from analysis.stats import Interval
from methods.base import Refusal

_KEYS = ["results", "cell_id", "sitting", "prompt_id", "turn", "repeat", "category"]
_LEFT_OUT = ("invalid", "failed")


def pair(requests: pd.DataFrame, arm: str, baseline: str = BASELINE) -> pd.DataFrame:
    """One row a timed request of `arm` beside `baseline`'s of the same sitting, prompt, turn and repeat.

    Args:
        requests: from `load_requests`, of one cell or of several.
        arm: the arm in question, such as `ddtree-64`.
        baseline: the arm it is compared with; any other of the same sittings, AR unless said.

    Columns: `results cell_id sitting prompt_id turn repeat category`; `arm` and `baseline`; `n_output`;
    `acceptance_length` (1 + accepted a round, over the request's uncut rounds; NaN without one); `exact_match` (as AR
    answered; null where it has not); `tpot_s tpot_baseline_s e2e_s e2e_baseline_s` in seconds; the ratios
    `speedup speedup_e2e`, above 1 where `arm` is faster; and `log_speedup log_speedup_e2e`, their natural logarithms,
    which is what to average. A ratio is NaN where an answer has a single token and so no TPOT.

    Raises:
        Refusal: no request is of `arm`, or none of `baseline`.

    >>> requests = load_requests("results/example")
    >>> pairs = pair(requests, "ddtree-16")
    >>> float(pairs["speedup"].median()) > 0
    True
    """
    found = list(requests["arm"].unique())
    for name in (arm, baseline):
        if name not in found:
            raise Refusal(f"arm {name} has no requests here: {', '.join(found) or 'none'} have.")
    pairs = stats.pair(requests[requests["arm"].isin((arm, baseline))], baseline)
    pairs = pairs[pairs["arm"] == arm].reset_index(drop=True)
    uncut = pairs["uncut_rounds"].where(pairs["uncut_rounds"] > 0)
    return pd.DataFrame(
        {
            **{name: pairs[name] for name in _KEYS},
            "arm": pairs["arm"],
            "baseline": pd.Series(baseline, index=pairs.index, dtype="str"),
            "n_output": pairs["n_output"],
            "acceptance_length": 1 + pairs["accepted_uncut_sum"] / uncut,
            "exact_match": pairs["exact_match"],
            **{name: pairs[name] for name in ("tpot_s", "tpot_baseline_s", "e2e_s", "e2e_baseline_s")},
            **{name: _exponent(pairs[f"log_{name}"]) for name in ("speedup", "speedup_e2e")},
            **{name: pairs[name].astype("float64") for name in ("log_speedup", "log_speedup_e2e")},
        }
    )


def _exponent(logs: pd.Series[float]) -> pd.Series[float]:
    return pd.Series(np.exp(logs.to_numpy(dtype=np.float64)), index=logs.index)


def bootstrap_ci(
    values: Any,
    clusters: Iterable[Any] | None = None,
    *,
    geometric: bool = False,
    resamples: int = stats.RESAMPLES,
) -> Interval:
    """A mean and its 95 % interval, as tables have them: `Interval(point, low, high, n)`, NaN where there is none.

    Args:
        values: rows of `pair`, for the speed-up over the baseline; or numbers, one each, in any unit. NaN is left out.
        clusters: what each number belongs to, such as `pairs["prompt_id"]`. Numbers of one cluster are averaged
            first and the bootstrap draws clusters, so that asking a prompt again narrows nothing falsely; `n` counts
            clusters. Without it every number stands for itself. Rows of `pair` bring their prompts along.
        geometric: the mean is geometric, for ratios: numbers have to be above 0.
        resamples: how often is drawn anew; the seed is fixed.

    Studentised below 30 clusters, BCa from 30, Student's t for two or three, none for one (`analysis.stats`).

    Raises:
        Refusal: a number is not above 0 where the mean is geometric, or clusters and numbers differ in number.

    >>> pairs = pair(load_requests("results/example"), "ddtree-16")
    >>> bootstrap_ci(pairs) == bootstrap_ci(pairs["speedup"], clusters=pairs["prompt_id"], geometric=True)
    True
    >>> bootstrap_ci([2.0, 2.0, 2.0])
    Interval(point=2.0, low=2.0, high=2.0, n=3)
    """
    if isinstance(values, pd.DataFrame):
        if clusters is not None or geometric:
            raise Refusal("rows of pair bring their prompts and their kind of mean: a column takes others.")
        return stats.speedup(values, resamples=resamples)
    numbers = np.asarray(values, dtype=np.float64)
    if geometric:
        if (numbers <= 0).any():
            raise Refusal(f"a geometric mean of {numbers[numbers <= 0][0]:g} is not accepted: numbers above 0 are.")
        numbers = np.log(numbers)
    if clusters is not None:
        names = np.asarray(list(clusters), dtype=object)
        if names.shape != numbers.shape:
            raise Refusal(f"{len(names)} clusters for {len(numbers)} numbers are not accepted: one each is.")
        frame = pd.DataFrame({"cluster": names, "number": numbers}).dropna(subset="number")
        numbers = frame.groupby("cluster", sort=True)["number"].mean().to_numpy()
    found = stats.bootstrap_ci(numbers, resamples)
    if geometric:
        return Interval(math.exp(found.point), math.exp(found.low), math.exp(found.high), found.n)
    return found


def frontier(
    runs: pd.DataFrame,
    x: str = "tokens_per_s_per_user",
    y: str = "tokens_per_s_per_gpu",
    *,
    lower: Collection[str] = (),
) -> pd.DataFrame:
    """The rows that no other beats: none is as good in both `x` and `y` and better in one. In the order of `x`.

    Args:
        runs: from `load_runs`; pick what may be compared (one model, workload and machine) before.
        x, y: columns of which more is better: tokens/s unless said.
        lower: those of the two of which less is better, such as `tpot_s`.

    Invalid and failed arms and rows without both figures are left out; rows that are equal in both stay together.

    >>> runs = load_runs("results/example")
    >>> best = frontier(runs[runs["tp"] == 1], "acceptance_length", "speedup")
    >>> bool(best["speedup"].is_monotonic_decreasing)
    True
    """
    for name in lower:
        if name not in (x, y):
            raise Refusal(f"lower={name} is not accepted: {x} or {y} is.")
    sound = runs[~runs["status"].isin(_LEFT_OUT)] if "status" in runs else runs
    sound = sound.dropna(subset=[x, y])
    across, up = (sound[name].to_numpy(dtype=np.float64) * (-1 if name in lower else 1) for name in (x, y))
    beaten = [
        bool(((across >= a) & (up >= b) & ((across > a) | (up > b))).any()) for a, b in zip(across, up, strict=True)
    ]
    return sound[~np.array(beaten, dtype=bool)].sort_values([x, y], kind="stable").reset_index(drop=True)
