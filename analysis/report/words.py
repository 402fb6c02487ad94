"""How the report says figures and names in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.columns import count
from analysis.records import BASELINE
from analysis.stats import Interval

_NAMES = {BASELINE: "AR", "dflash": "DFlash", "ddtree": "DDTree"}


def arm_name(arm: str) -> str:
    """How readers call an arm: `ddtree-64` is "DDTree 64"."""
    method, _, more = arm.partition("-")
    return " ".join(filter(None, (_NAMES.get(method, method), more.replace("-", " "))))


def times(interval: Interval) -> str:
    """A ratio with its interval and on how many prompts it stands."""
    return f"{interval.point:.2f}× {bounds(interval.low, interval.high)} ({count(interval.n, 'prompt')})"


def bounds(low: float, high: float) -> str:
    return "[no interval]" if math.isnan(low) or math.isnan(high) else f"[{low:.2f}, {high:.2f}]"


def budgets_said(budgets: Sequence[float]) -> str:
    return listed([f"{budget:.0f}" for budget in budgets])


def counted(number: int, one: str, many: str) -> str:
    """A number with words that agree with it."""
    return f"{number} {one if number == 1 else many}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """`a, b and c`; the number of those left out where there are many."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else "none"
