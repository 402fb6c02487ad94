"""The columns of the table and of its views, and how a row of `load_runs` fills them.

The plain table says what came of it; `stages`, `latency` and `acceptance` show what is behind it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from analysis.load_figures import LOAD_FIGURES
from analysis.printing import Title
from analysis.records import BASELINE, HIDDEN, MEASURED

View = Literal["stages", "latency", "load", "acceptance", "accuracy"]
NOTHING = "–"


@dataclass(frozen=True, kw_only=True)
class Column(Title):
    """A column and how a row of `load_runs` fills it. A `figure` goes blank with its arm; `blank` says why else it
    may."""

    show: Callable[[Any], str]
    figure: bool = False
    blank: str = ""


def rows_of(runs: pd.DataFrame) -> list[Any]:
    """The rows of a frame like `load_runs` gives, to be asked for their figures by name. Made once for all cells:
    a frame of one cell is slow to go through."""
    return list(runs.itertuples(index=False))


def columns_of(cell: Sequence[Any], view: View | None) -> tuple[Column, ...]:
    """The columns for the rows of one cell: only those that say something there."""
    shown = [ARM, *_VIEWS[view]]
    if view is None and any(map(differing, cell)):
        shown.append(MATCHED)
    if view == "acceptance":
        deepest = max((len(row.marginal) for row in cell), default=0)
        shown += [_depth(depth) for depth in range(1, deepest + 1)]
    return (*([CATEGORY] if hasattr(cell[0], "category") else []), *shown, LOSSLESS)


def differing(row: Any) -> bool:
    """Whether an arm has requests answered otherwise than the baseline's, and may be shown."""
    return bool(row.n_differing > 0 and row.status not in HIDDEN)


def named(row: Any) -> str:
    """An arm's name, and where its figures are from if they were not measured."""
    source = getattr(row, "source", MEASURED)
    return str(row.arm) if pd.isna(source) or source == MEASURED else f"{row.arm} ({source})"


def family(row: Any) -> str:
    """An arm's name without its budget: what the arms of one budget curve share."""
    return named(row) if pd.isna(row.budget) else re.sub(rf"-{row.budget:.0f}\b", "", named(row), count=1)


def order(row: Any) -> tuple[Any, ...]:
    """Sorts rows of any cells: the baseline first, then arms without a budget, then by budget within each method."""
    without = pd.isna(row.budget)
    return row.arm != BASELINE, not without, row.method, family(row), 0.0 if without else row.budget, named(row)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def number(value: float, decimals: int) -> str:
    return NOTHING if pd.isna(value) else f"{value:.{decimals}f}"


def interval(point: float, low: float, high: float, decimals: int = 2) -> str:
    """A figure and its interval; alone where it has none."""
    if math.isnan(low) or math.isnan(high):
        return number(point, decimals)
    return f"{number(point, decimals)} [{number(low, decimals)}, {number(high, decimals)}]"


def percent(share: float) -> str:
    return NOTHING if pd.isna(share) else f"{100 * share:+.1f} %"


def milliseconds(seconds: float) -> str:
    """Milliseconds with three figures or so."""
    ms = seconds * 1e3
    return number(ms, 0 if ms >= 1000 else 1 if ms >= 100 else 2)


def speedup(row: Any) -> str:
    if row.arm == BASELINE or pd.isna(row.speedup):
        return number(row.speedup, 2)
    return interval(row.speedup, row.speedup_low, row.speedup_high)


def acceptance_length(row: Any) -> str:
    if row.arm == BASELINE or pd.isna(row.acceptance_length):
        return number(row.acceptance_length, 2)
    return interval(row.acceptance_length, row.acceptance_length_low, row.acceptance_length_high)


def lossless(row: Any) -> str:
    """The gate's finding for an arm, or why there is none."""
    if row.status == "failed":
        return f"failed: {row.reason}" if pd.notna(row.reason) else "failed"
    if row.status == "invalid":
        broken = row.true_violations if pd.notna(row.true_violations) else 0
        return f"INVALID: {count(broken, 'violation') if broken else row.reason}"
    if row.status == "pending" and not row.n_requests:
        return "unfinished"
    if getattr(row, "source", MEASURED) == "replayed":
        return "not run"
    found = "not checked" if pd.isna(row.true_violations) else "yes"
    if pd.notna(row.near_ties) and row.near_ties:
        found += f", {count(row.near_ties, 'near tie')}"
    return found + {"pending": "; unfinished", "drifted": "; drifted"}.get(row.status, "")


def _depth(depth: int) -> Column:
    """The marginal rate of one depth."""

    def show(row: Any) -> str:
        return number(row.marginal[depth - 1], 2) if depth <= len(row.marginal) else NOTHING

    return _shown(f"depth {depth}", show, "no uncut round")


def _shown(title: str, show: Callable[[Any], str], blank: str = "") -> Column:
    return Column(title=title, show=show, figure=True, blank=blank)


def _figure(title: str, name: str, show: Callable[[float], str], blank: str = "") -> Column:
    return _shown(title, lambda row: show(getattr(row, name)), blank)


def _count(title: str, name: str, figure: bool = False) -> Column:
    return Column(title=title, show=lambda row: str(getattr(row, name)), figure=figure)


def _rounded(decimals: int) -> Callable[[float], str]:
    return lambda value: number(value, decimals)


def _share(share: float) -> str:
    return NOTHING if pd.isna(share) else f"{100 * share:.1f} %"


def _stages(row: Any) -> str:
    return milliseconds(row.draft_s + row.build_s + row.verify_s + row.commit_s)


_NO_REQUEST, _NO_ROUND = "no request yet", "no uncut round"
_NO_PARTNER = "no AR, or no sound one, in the same sitting"
_NOT_PROFILED = "its stages were not timed"
_NOT_TOLD = "the device does not tell"
_ONE_BY_ONE = "requests came one by one"
_SAME = "none was answered otherwise"
ARM = Column(title="arm", show=named, text=True)
CATEGORY = Column(title="category", show=lambda row: NOTHING if pd.isna(row.category) else row.category, text=True)
LOSSLESS = Column(title="lossless", show=lossless, text=True, wraps=True)
MATCHED = _shown(
    "same text only", lambda row: number(row.speedup_matched, 2) if row.n_differing else NOTHING, blank=_SAME
)
_TOKENS_PER_ROUND = _figure("tokens per round", "tokens_per_round", _rounded(2), _NO_ROUND)
_ACCEPTANCE_LENGTH = _shown("acceptance length", acceptance_length, _NO_ROUND)
_TTFT = _figure("TTFT (ms)", "ttft_s", milliseconds, _NO_REQUEST)
_TPOT = _figure("TPOT (ms)", "tpot_s", milliseconds, "no request of two tokens")
_TOKENS_PER_S = _figure("tokens/s", "tokens_per_s", _rounded(1), _NO_REQUEST)
_SPEEDUP = _shown("speed-up over AR", speedup, _NO_PARTNER)
_VIEWS: dict[View | None, tuple[Column, ...]] = {
    None: (
        _count("requests", "n_requests"),
        _count("output tokens", "n_output"),
        _TOKENS_PER_S,
        _TTFT,
        _TPOT,
        _ACCEPTANCE_LENGTH,
        _SPEEDUP,
    ),
    "stages": (
        _figure("draft (ms)", "draft_s", milliseconds, _NOT_PROFILED),
        _figure("build (ms)", "build_s", milliseconds, _NOT_PROFILED),
        _figure("verify (ms)", "verify_s", milliseconds, _NOT_PROFILED),
        _figure("commit (ms)", "commit_s", milliseconds, _NOT_PROFILED),
        _shown("all four (ms)", _stages, _NOT_PROFILED),
        _TOKENS_PER_ROUND,
        _figure("speed-up by stages", "identity_predicted", _rounded(2), _NOT_PROFILED),
        _figure("speed-up measured", "identity_measured", _rounded(2), _NOT_PROFILED),
        _figure("residual", "identity_residual", percent, _NOT_PROFILED),
    ),
    "latency": (
        _TTFT,
        _TPOT,
        _figure("TPOT p50", "tpot_p50_s", milliseconds),
        _figure("TPOT p95", "tpot_p95_s", milliseconds),
        _figure("TPOT p99", "tpot_p99_s", milliseconds),
        _figure("round (ms)", "step_s", milliseconds),
        _figure("round p50", "step_p50_s", milliseconds),
        _figure("round p95", "step_p95_s", milliseconds),
        _figure("E2E (ms)", "e2e_s", milliseconds),
        _figure("tokens/s per user", "tokens_per_s_per_user", _rounded(1)),
        _figure("tokens/s per GPU", "tokens_per_s_per_gpu", _rounded(1)),
        _figure("peak memory (GiB)", "peak_mem_bytes", lambda size: number(size / 2**30, 2), _NOT_TOLD),
        _figure("J per token", "energy_j_per_token", _rounded(3), f"{_NOT_TOLD}, or requests overlap"),
    ),
    "load": (
        _figure("steady requests", "n_steady", _rounded(0), _ONE_BY_ONE),
        _figure("in flight", "in_flight", _rounded(1), _ONE_BY_ONE),
        _figure("tokens/s in all", "throughput_tokens_per_s", _rounded(1), _ONE_BY_ONE),
        _figure("requests/s", "requests_per_s", _rounded(2), _ONE_BY_ONE),
        _figure("goodput (1/s)", "goodput_per_s", _rounded(2), "no objective was stated (--slo)"),
        _figure("TTFT p50 (ms)", "ttft_p50_s", milliseconds, _ONE_BY_ONE),
        _figure("TTFT p99", "ttft_p99_s", milliseconds, _ONE_BY_ONE),
        _TPOT,
        _figure("between chunks p50 (ms)", "inter_chunk_p50_s", milliseconds, _ONE_BY_ONE),
        _figure("p99", "inter_chunk_p99_s", milliseconds, _ONE_BY_ONE),
        _figure("tokens per chunk", "tokens_per_chunk", _rounded(2), _ONE_BY_ONE),
        _figure("E2E p50 (ms)", "e2e_p50_s", milliseconds, _ONE_BY_ONE),
        _figure("E2E p99", "e2e_p99_s", milliseconds, _ONE_BY_ONE),
    ),
    "accuracy": (
        _count("scored prompts", "n_scored"),
        _figure("accuracy", "accuracy", _share, "no prompt has a right answer"),
        _TOKENS_PER_S,
        _TPOT,
        _ACCEPTANCE_LENGTH,
        _SPEEDUP,
    ),
    "acceptance": (
        _count("uncut rounds", "n_uncut_rounds", figure=True),
        _ACCEPTANCE_LENGTH,
        _figure("per request", "acceptance_length_per_request", _rounded(2), _NO_ROUND),
        _TOKENS_PER_ROUND,
        _figure("tokens per target forward", "tokens_per_target_forward", _rounded(2), _NO_REQUEST),
    ),
}
_LENGTHS = ("acceptance_length", "acceptance_length_low", "acceptance_length_high")
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
    "load": (*LOAD_FIGURES, "tpot_s", "saturated"),
    "accuracy": (
        *("n_prompts", "n_scored", "accuracy", "tokens_per_s", "tpot_s", *_LENGTHS),
        *("speedup", "speedup_low", "speedup_high"),
    ),
    "acceptance": (
        *("n_uncut_rounds", *_LENGTHS, "acceptance_length_per_request"),
        *("tokens_per_round", "tokens_per_target_forward", "at_chance"),
    ),
}
