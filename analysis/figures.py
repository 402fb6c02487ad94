"""One arm's figures, from the requests that count for it: acceptance, latency, stages, speed-ups.

Units are in the names: `_s` seconds, `_bytes` bytes, `_j` joules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from analysis import stats
from analysis.records import STAGES

ACCEPTANCE = (
    *("acceptance_length", "acceptance_length_low", "acceptance_length_high", "acceptance_length_per_request"),
    *("tokens_per_round", "tokens_per_target_forward"),
)
SPEEDUPS = (
    *("speedup", "speedup_low", "speedup_high"),
    *("speedup_e2e", "speedup_e2e_low", "speedup_e2e_high", "speedup_ratio_of_means"),
    *("speedup_matched", "speedup_matched_low", "speedup_matched_high"),
)
LATENCY = (
    *("ttft_s", "tpot_s", "tpot_p50_s", "tpot_p95_s", "tpot_p99_s"),
    *("step_s", "step_p50_s", "step_p95_s", "e2e_s"),
    *("tokens_per_s", "tokens_per_s_per_user", "tokens_per_s_per_gpu", "energy_j_per_token"),
)
IDENTITY = ("identity_predicted", "identity_measured", "identity_residual")
SPEED_FIGURES = ("accuracy", *ACCEPTANCE, *SPEEDUPS, *LATENCY, *STAGES, *IDENTITY)

Columns = Mapping[str, stats.Floats]


def figures(requests: Columns, tp: int, concurrency: int) -> dict[str, float]:
    """An arm's own figures.

    `tokens_per_s` counts all output tokens over the whole time of the requests. What all slots together put out, for
    each GPU, takes them to be busy at all times. Energy is the machine's, so requests that overlap have none.
    """
    timed = ~np.isnan(requests["e2e_s"])
    tokens, seconds = requests["n_output"][timed].sum(), requests["e2e_s"][timed].sum()
    stepped, measured = timed & (requests["n_rounds"] > 0), ~np.isnan(requests["energy_j"])
    rounds, decoding = requests["n_rounds"][stepped], requests["decode_s"][stepped]
    length = stats.acceptance_length_ci(requests)
    energy = _ratio(requests["energy_j"][measured].sum(), requests["n_output"][measured].sum())
    return {
        "n_requests": len(requests["n_output"]),
        "n_prompts": len(np.unique(requests["prompt_id"])),
        "n_turns": len(np.unique(np.stack([requests["prompt_id"], requests["turn"]]), axis=1).T),
        **dict(zip(("n_scored", "accuracy"), stats.accuracy(requests), strict=True)),
        "n_output": int(requests["n_output"].sum()),
        "n_uncut_rounds": int(requests["uncut_rounds"].sum()),
        "acceptance_length": stats.acceptance_length(requests),
        "acceptance_length_low": length.low,
        "acceptance_length_high": length.high,
        "acceptance_length_per_request": stats.acceptance_length_per_request(requests),
        "tokens_per_round": stats.tokens_per_round(requests),
        "tokens_per_target_forward": stats.tokens_per_target_forward(requests),
        "ttft_s": _of(np.mean, requests["ttft_s"]),
        "tpot_s": _of(np.mean, requests["tpot_s"]),
        **_percentiles("tpot", requests["tpot_s"], 50, 95, 99),
        "step_s": _ratio(decoding.sum(), rounds.sum()),
        **_percentiles("step", decoding / rounds, 50, 95),
        "e2e_s": _of(np.mean, requests["e2e_s"]),
        "tokens_per_s": _ratio(tokens, seconds),
        "tokens_per_s_per_user": _ratio((requests["n_output"][timed] - 1).sum(), requests["decode_s"][timed].sum()),
        "tokens_per_s_per_gpu": _ratio(tokens, seconds) * concurrency / tp,
        "energy_j_per_token": energy if concurrency == 1 else math.nan,
        "peak_mem_bytes": _of(np.max, requests["peak_mem_bytes"]),
        "max_gap": _of(np.max, requests["max_gap"]),
        "gap_tolerance": _of(np.max, requests["gap_tolerance"]),
    }


def speedups(pairs: Columns) -> dict[str, float]:
    """An arm's speed-ups over the baseline; matched ones are over the requests answered as the baseline did."""
    decode, whole = stats.speedup(pairs), stats.speedup(pairs, "log_speedup_e2e")
    same, differing = pairs["exact_match"] == 1, pairs["exact_match"] == 0
    matched = stats.speedup({name: column[same] for name, column in pairs.items()}) if differing.any() else decode
    return {
        "speedup": decode.point,
        "speedup_low": decode.low,
        "speedup_high": decode.high,
        "speedup_e2e": whole.point,
        "speedup_e2e_low": whole.low,
        "speedup_e2e_high": whole.high,
        "speedup_ratio_of_means": stats.ratio_of_means(pairs),
        "speedup_matched": matched.point,
        "speedup_matched_low": matched.low,
        "speedup_matched_high": matched.high,
        "n_differing": int(differing.sum()),
    }


def stage_times(profiled: Columns) -> dict[str, float]:
    """Seconds per round of each stage, and the identity: the speed-up they predict, the one measured on the same
    prompts, and by which part the prediction is higher. `profiled` is as from `stats.identity`."""
    rounds = profiled["n_rounds"].sum()
    compared = ~np.isnan(profiled["log_predicted"] + profiled["log_measured"])
    predicted, measured = (_of(np.mean, profiled[name][compared]) for name in ("log_predicted", "log_measured"))
    return {
        "n_profiled": len(profiled["n_rounds"]),
        **{name: _ratio(profiled[name].sum(), rounds) for name in STAGES},
        "identity_predicted": math.exp(predicted),
        "identity_measured": math.exp(measured),
        "identity_residual": math.expm1(predicted - measured),
    }


def inspection(requests: Columns) -> dict[str, float]:
    """What was looked at round by round: the oracle's findings, and the acceptance length that the drafter's first
    choices alone would have had in the same rounds."""
    shadowed = ~np.isnan(requests["shadow_uncut_sum"])
    rounds, looked = requests["uncut_rounds"][shadowed].sum(), requests["oracle_rounds"] > 0
    return {
        "shadow_acceptance_length": 1 + _ratio(requests["shadow_uncut_sum"][shadowed].sum(), rounds),
        "oracle_rounds": int(requests["oracle_rounds"].sum()),
        "oracle_max_gap": _of(np.max, requests["oracle_max_gap"]),
        "oracle_disagreements": float(requests["oracle_disagreements"][looked].sum()) if looked.any() else math.nan,
    }


def total(values: stats.Floats) -> int | None:
    """A sum of counts; None where nothing was counted."""
    there = values[~np.isnan(values)]
    return int(there.sum()) if len(there) else None


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below > 0 else math.nan


def _of(figure: Callable[..., Any], values: stats.Floats) -> float:
    """A figure of the values that are there; NaN of none."""
    there = values[~np.isnan(values)]
    return float(figure(there)) if len(there) else math.nan


def _percentiles(name: str, seconds: stats.Floats, *levels: int) -> dict[str, float]:
    found = stats.quantiles(seconds[~np.isnan(seconds)], *(level / 100 for level in levels))
    return {f"{name}_p{level}_s": value for level, value in zip(levels, found, strict=True)}
