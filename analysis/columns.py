"""The columns of the table and of its views, and how a row of `load_runs` fills them.

The plain table says what came of it; `stages`, `latency` and `acceptance` show what is behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from analysis.records import BASELINE

View = Literal["stages", "latency", "acceptance", "accuracy"]
NOTHING = "–"
HIDDEN = ("invalid", "failed")  # whose figures no table shows


@dataclass(frozen=True)
class Column:
    """A column as shown: its title and how a row of `load_runs` fills it. A `figure` goes blank with its arm."""

    title: str
    show: Callable[[Any], str]
    figure: bool = False
    text: bool = False


def columns_of(cell: pd.DataFrame, view: View | None) -> tuple[Column, ...]:
    """The columns for one cell: only those that say something there."""
    shown = [ARM, *_VIEWS[view]]
    if view is None and differing(cell).any():
        shown.append(MATCHED)
    if view == "acceptance":
        deepest = max(map(len, cell["marginal"]), default=0)
        shown += [_depth(depth) for depth in range(1, deepest + 1)]
    return (*([CATEGORY] if "category" in cell else []), *shown, LOSSLESS)


def differing(cell: pd.DataFrame) -> pd.Series[bool]:
    """Which rows have requests answered otherwise than the baseline's, and may be shown."""
    return (cell["n_differing"] > 0) & ~cell["status"].isin(HIDDEN)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def number(value: float, decimals: int) -> str:
    return NOTHING if pd.isna(value) else f"{value:.{decimals}f}"


def interval(point: float, low: float, high: float) -> str:
    return f"{number(point, 2)} [{number(low, 2)}, {number(high, 2)}]"


def percent(share: float) -> str:
    return NOTHING if pd.isna(share) else f"{100 * share:+.1f} %"


def _ms(seconds: float) -> str:
    """Milliseconds with three figures or so."""
    ms = seconds * 1e3
    return number(ms, 0 if ms >= 1000 else 1 if ms >= 100 else 2)


def _speedup(row: Any) -> str:
    if row.arm == BASELINE or pd.isna(row.speedup):
        return number(row.speedup, 2)
    return interval(row.speedup, row.speedup_low, row.speedup_high)


def _lossless(row: Any) -> str:
    """The gate's finding for an arm, or why there is none."""
    if row.status == "failed":
        return f"failed: {row.reason}" if pd.notna(row.reason) else "failed"
    if row.status == "invalid":
        broken = row.true_violations if pd.notna(row.true_violations) else 0
        return f"INVALID: {count(broken, 'violation') if broken else row.reason}"
    if row.status == "pending" and not row.n_requests:
        return "unfinished"
    found = "not checked" if pd.isna(row.true_violations) else "yes"
    if pd.notna(row.near_ties) and row.near_ties:
        found += f", {count(row.near_ties, 'near tie')}"
    return found + {"pending": "; unfinished", "drifted": "; drifted"}.get(row.status, "")


def _depth(depth: int) -> Column:
    """The marginal rate of one depth."""

    def show(row: Any) -> str:
        return number(row.marginal[depth - 1], 2) if depth <= len(row.marginal) else NOTHING

    return Column(f"depth {depth}", show, figure=True)


def _figure(title: str, name: str, show: Callable[[float], str]) -> Column:
    return Column(title, lambda row: show(getattr(row, name)), figure=True)


def _rounded(decimals: int) -> Callable[[float], str]:
    return lambda value: number(value, decimals)


ARM = Column("arm", lambda row: row.arm, text=True)
CATEGORY = Column("category", lambda row: NOTHING if pd.isna(row.category) else row.category, text=True)
LOSSLESS = Column("lossless", _lossless, text=True)
MATCHED = Column(
    "same text only", lambda row: number(row.speedup_matched, 2) if row.n_differing else NOTHING, figure=True
)
_TOKENS_PER_ROUND = _figure("tokens per round", "tokens_per_round", _rounded(2))
_ACCEPTANCE_LENGTH = _figure("acceptance length", "acceptance_length", _rounded(2))
_TTFT, _TPOT = _figure("TTFT (ms)", "ttft_s", _ms), _figure("TPOT (ms)", "tpot_s", _ms)
_SPEEDUP = Column("speed-up over AR", _speedup, figure=True)
_VIEWS: dict[View | None, tuple[Column, ...]] = {
    None: (
        Column("requests", lambda row: str(row.n_requests)),
        Column("output tokens", lambda row: str(row.n_output)),
        _figure("tokens/s", "tokens_per_s", _rounded(1)),
        _TTFT,
        _TPOT,
        _ACCEPTANCE_LENGTH,
        _TOKENS_PER_ROUND,
        _SPEEDUP,
    ),
    "stages": (
        _figure("draft (ms)", "draft_s", _ms),
        _figure("build (ms)", "build_s", _ms),
        _figure("verify (ms)", "verify_s", _ms),
        _figure("commit (ms)", "commit_s", _ms),
        Column("all four (ms)", lambda row: _ms(row.draft_s + row.build_s + row.verify_s + row.commit_s), figure=True),
        _TOKENS_PER_ROUND,
        _figure("speed-up by stages", "identity_predicted", _rounded(2)),
        _figure("speed-up measured", "identity_measured", _rounded(2)),
        _figure("residual", "identity_residual", percent),
    ),
    "latency": (
        _TTFT,
        _TPOT,
        _figure("TPOT p50", "tpot_p50_s", _ms),
        _figure("TPOT p95", "tpot_p95_s", _ms),
        _figure("TPOT p99", "tpot_p99_s", _ms),
        _figure("round (ms)", "step_s", _ms),
        _figure("round p50", "step_p50_s", _ms),
        _figure("round p95", "step_p95_s", _ms),
        _figure("E2E (ms)", "e2e_s", _ms),
        _figure("tokens/s per user", "tokens_per_s_per_user", _rounded(1)),
        _figure("tokens/s per GPU", "tokens_per_s_per_gpu", _rounded(1)),
        _figure("peak memory (GiB)", "peak_mem_bytes", lambda size: number(size / 2**30, 2)),
        _figure("J per token", "energy_j_per_token", _rounded(3)),
    ),
    "accuracy": (
        Column("scored prompts", lambda row: str(row.n_scored)),
        _figure("accuracy", "accuracy", lambda share: NOTHING if pd.isna(share) else f"{100 * share:.1f} %"),
        _figure("tokens/s", "tokens_per_s", _rounded(1)),
        _TPOT,
        _ACCEPTANCE_LENGTH,
        _SPEEDUP,
    ),
    "acceptance": (
        Column("uncut rounds", lambda row: str(row.n_uncut_rounds), figure=True),
        _ACCEPTANCE_LENGTH,
        _figure("per request", "acceptance_length_per_request", _rounded(2)),
        _TOKENS_PER_ROUND,
        _figure("tokens per target forward", "tokens_per_target_forward", _rounded(2)),
    ),
}
NUMBERS: dict[View, tuple[str, ...]] = {
    "stages": (
        *("n_profiled", "draft_s", "build_s", "verify_s", "commit_s", "tokens_per_round"),
        *("identity_predicted", "identity_measured", "identity_residual"),
    ),
    "latency": (
        *("n_requests", "ttft_s", "tpot_s", "tpot_p50_s", "tpot_p95_s", "tpot_p99_s"),
        *("step_s", "step_p50_s", "step_p95_s", "e2e_s"),
        *("tokens_per_s", "tokens_per_s_per_user", "tokens_per_s_per_gpu", "peak_mem_bytes", "energy_j_per_token"),
    ),
    "accuracy": (
        *("n_prompts", "n_scored", "accuracy", "tokens_per_s", "tpot_s", "acceptance_length"),
        *("speedup", "speedup_low", "speedup_high"),
    ),
    "acceptance": (
        *("n_uncut_rounds", "acceptance_length", "acceptance_length_per_request"),
        *("tokens_per_round", "tokens_per_target_forward", "at_chance"),
    ),
}
