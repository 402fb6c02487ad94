"""Requests of two cells, matched: the same prompt (its id, its turn and its rendered ids) asked of the same arm.

Arms of one cell are paired request for request within a sitting (`stats.pair`); cells are other processes, so here
repeats are averaged on each side and prompts are what is compared.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import stats
from analysis.records import Cell, requests_of

PROMPT = ["arm", "prompt_id", "turn", "prompt"]
_COLUMNS = (
    *("cell_id", "sitting", "phase", "arm", "prompt_id", "turn", "repeat", "category", "prompt_ids", "output_ids"),
    *("tpot_s", "e2e_s", "uncut_rounds", "accepted_uncut_sum"),
)
_SUMS = {"accepted_uncut_sum": "sum", "uncut_rounds": "sum"}


def counted(cell: Cell) -> pd.DataFrame:
    """The timed requests of a cell that count (`stats.one_each`), one a row: `arm prompt_id turn repeat`, hashes of
    the rendered prompt (`prompt`) and of the output ids (`output`), the logarithms of its TPOT (`log_tpot`) and of its
    speed-up over AR in its sitting (`log_speedup`, NaN without a partner), and its rounds."""
    requests = requests_of(cell, _COLUMNS).assign(results=cell.results)
    for name in ("prompt", "output"):
        requests[name] = [hash(tuple(ids)) for ids in requests.pop(f"{name}_ids")]
    ratios = stats.pair(requests)[[*PROMPT, "repeat", "log_speedup"]]
    kept = stats.one_each(requests).merge(ratios, on=[*PROMPT, "repeat"], how="left")
    times = kept["tpot_s"].where(kept["tpot_s"] > 0)
    return kept.assign(log_tpot=np.log(times.to_numpy(dtype=np.float64)))


def matched(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """The prompts that two cells have both asked of an arm, one a row for each turn: of both (`_a`, `_b`) the mean
    logarithms over repeats and the sums of the rounds; how many requests of the same repeat both answered (`answers`)
    and how many of them otherwise (`differing`)."""
    sides = [
        side.groupby(PROMPT, sort=False)
        .agg({"log_tpot": "mean", "log_speedup": "mean", "tpot_s": "mean", **_SUMS})
        .reset_index()
        for side in (first, second)
    ]
    both = sides[0].merge(sides[1], on=PROMPT, suffixes=("_a", "_b"))
    answers = first[[*PROMPT, "repeat", "output"]].merge(
        second[[*PROMPT, "repeat", "output"]], on=[*PROMPT, "repeat"], suffixes=("_a", "_b")
    )
    answers["differing"] = answers["output_a"] != answers["output_b"]
    told = answers.groupby(PROMPT, sort=False)["differing"].agg(answers="size", differing="sum").reset_index()
    return both.merge(told, on=PROMPT, how="left").fillna({"answers": 0, "differing": 0})


def ratio(pairs: pd.DataFrame, column: str = "log_tpot") -> stats.Interval:
    """The geometric mean over prompts of B's number over A's, with its interval; turns are averaged within a prompt."""
    logs = pairs[f"{column}_b"].to_numpy(dtype=np.float64) - pairs[f"{column}_a"].to_numpy(dtype=np.float64)
    point, low, high, n = stats.bootstrap_ci(mean_by_prompt(pairs, logs))
    return stats.Interval(float(np.exp(point)), float(np.exp(low)), float(np.exp(high)), n)


def mean_by_prompt(pairs: pd.DataFrame, values: stats.Floats) -> stats.Floats:
    """The mean of each prompt's values, in the order of the prompts; NaN values are left out."""
    there = ~np.isnan(values)
    prompts = pd.factorize(pairs["prompt_id"].to_numpy()[there], sort=True)[0]
    return np.bincount(prompts, values[there]) / np.maximum(np.bincount(prompts), 1)


def acceptance_difference(pairs: pd.DataFrame) -> stats.Interval:
    """B's acceptance length minus A's on the same prompts, each pooled, with its interval over prompts."""
    prompts = pd.factorize(pairs["prompt_id"].to_numpy(), sort=True)[0]
    sums = {
        side: [np.bincount(prompts, pairs[f"{name}_{side}"].to_numpy(dtype=np.float64)) for name in _SUMS]
        for side in "ab"
    }
    both = np.all([rounds > 0 for _, rounds in sums.values()], axis=0)
    parts = [
        stats.acceptance_by_prompt(*(column[both].astype(np.float64) for column in columns))
        for columns in sums.values()
    ]
    return stats.bootstrap_ci(parts[1] - parts[0])
