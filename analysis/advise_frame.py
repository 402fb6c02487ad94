"""Advice as a tidy frame."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.advise import Advice, advise, rows
from analysis.records import find_cells

_SETTINGS = (
    *("model", "drafter", "engine", "tp", "device", "dtype", "suite", "temperature", "concurrency", "request_rate"),
)


def load_advice(path: str | Path) -> pd.DataFrame:
    """One row per subject and arm: AR, DFlash, every budget from 1 to the replay's, and what else was timed.

    Columns: `cell_id model drafter engine tp device dtype suite temperature concurrency request_rate arm method budget
    width`; `cost`, a round's time over one of AR's, and `cost_from` (`measured`, `interpolated` or `unknown`);
    `round_s tokens_per_round`; `speedup_dev`, predicted for the prompts that the budget is chosen on; `speedup
    speedup_low speedup_high tpot_s tokens_per_s tokens_per_s_per_user`, predicted for the `n_prompts` that it is
    reported on; `measured_speedup measured_speedup_low measured_speedup_high measured_tpot_s measured_tokens_per_s
    n_measured`, for the same prompts; `difference`, predicted over measured speed − 1; `status`, of what was timed;
    `verdict`; `n_prompts_dev`, `split` (`dev and test`, or `none` where both are the same prompts) and `results`.

    Raises:
        Refusal: there is no replay, no timed tree, or none of both that belong together.
    """
    found = [frame(one, rows(one)) for one in advise(find_cells(path))]
    return pd.concat(found, ignore_index=True)


def frame(advice: Advice, known: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """The rows of one subject's advice, with what they are about beside them."""
    subject, row = advice.subject, advice.subject.row
    same: dict[str, Any] = {"cell_id": subject.place[1], **{name: getattr(row, name) for name in _SETTINGS}}
    after: dict[str, Any] = {"n_prompts": len(advice.test.prompts), "n_prompts_dev": len(advice.dev.prompts)}
    after |= {"split": "dev and test" if subject.halves.apart else "none", "results": subject.place[0]}
    return pd.DataFrame([{**same, **one, **after} for one in known])
