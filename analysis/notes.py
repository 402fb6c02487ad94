"""What to know when reading a cell's table: how its figures were made, and what speaks against trusting them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.columns import HIDDEN, View, count, differing, percent
from analysis.records import BASELINE
from analysis.stats import DRIFT

UNEXPLAINED = 0.05
_ABOUT = {
    "stages": "stages: per round, from {profiled} an arm, timed stage by stage; speed-up by stages: "
    "tokens per round × AR's TPOT / all four stages; measured: on the same prompts, without stage timing",
    "latency": "TPOT: after the first token; round: decoding time over rounds, percentiles over requests; per user: "
    "after the first token; per GPU: with the prefill, all slots, over tp",
    "accuracy": "accuracy: the share of right answers, over the prompts that have one (their first turns); speed-up: "
    "geometric mean of per-prompt TPOT ratios [95 % bootstrap interval over prompts]",
    "acceptance": "depth: the share of uncut rounds that accepted at least so many tokens; acceptance length: 1 + the "
    "sum of these, over all rounds; per request: the mean of the requests' own",
}


def note(cell: pd.DataFrame, view: View | None) -> str:
    """One sentence on what the table shows, then a line for each thing that it should be read with."""
    shown = cell[~cell["status"].isin(HIDDEN)]
    lines = [_about(cell, view)]
    if view is None:
        lines += _otherwise(cell[differing(cell)])
        lines += _accuracy(shown)
    for warnings in (_drift, _chance, _null_test, _residual):
        lines += warnings(shown)
    return "\n".join(lines)


def _about(cell: pd.DataFrame, view: View | None) -> str:
    names = ("n_prompts", "n_turns", "n_requests")
    prompts, turns, requests = (int(cell.groupby("arm")[name].sum().max()) for name in names)
    asked = count(prompts, "prompt") + (f" of {turns} turns" if turns != prompts else "")
    repeats = round(requests / max(turns, 1))
    said = [f"{asked}, {count(repeats, 'repeat')}" if prompts else "no requests yet"]
    if view is not None:
        profiled = count(int(cell.groupby("arm")["n_profiled"].sum().max()), "request")
        said.append(_ABOUT[view].format(profiled=profiled))
    elif cell["speedup_low"].notna().any():
        said.append("speed-up: geometric mean of per-prompt TPOT ratios [95 % bootstrap interval over prompts]")
    tolerance = cell["gap_tolerance"].max()
    if pd.notna(tolerance):
        said.append(f"near tie: within {tolerance:.2g} logits of the target's choice")
    if cell.loc[cell["n_requests"] > 0, "sittings"].nunique() > 1:
        said.append("arms were timed in different sittings: compare their speed-ups, not their times")
    return "; ".join(said) + "."


def _otherwise(cell: pd.DataFrame) -> Iterator[str]:
    if len(cell):
        arms = ", ".join(f"{_name(row)} {row.n_differing} of {row.n_requests}" for row in _rows(cell))
        yield f"Same text only: the speed-up without the requests answered otherwise than by AR ({arms})."


def _accuracy(cell: pd.DataFrame) -> Iterator[str]:
    """The share of right answers, said once where all arms have the same."""
    scored = cell[cell["accuracy"].notna()]
    shares = [f"{100 * row.accuracy:.1f} % of {count(row.n_scored, 'prompt')}" for row in _rows(scored)]
    if len(set(shares)) == 1 and "category" not in cell:
        yield f"Right answers: {shares[0]} in every arm."
    elif shares:
        named = (f"{_name(row)} {share}" for row, share in zip(_rows(scored), shares, strict=True))
        yield f"Right answers: {', '.join(named)}."


def _drift(cell: pd.DataFrame) -> Iterator[str]:
    """Where the machine moved, and where its sentinel swung too much to tell."""
    moved: dict[tuple[int, str, float, bool], list[str]] = {}
    for row in _rows(cell[cell["drift"].notna()]):
        drifted = row.status == "drifted"
        if drifted or (row.status == "complete" and abs(math.log1p(row.drift)) > DRIFT):
            place = row.drift_sitting, row.drift_place, row.drift, drifted
            moved.setdefault(place, []).append(row.arm)
    for (sitting, place_in_it, drift, drifted), arms in moved.items():
        move = f"AR's TPOT moved by {percent(drift)} from the start of sitting {sitting} to its {place_in_it}"
        named = ", ".join(dict.fromkeys(arms))
        yield f"Drifted: {move} ({named})." if drifted else f"Drift not told from noise: {move} ({named})."


def _chance(cell: pd.DataFrame) -> Iterator[str]:
    lost = ", ".join(_name(row) for row in _rows(cell[cell["at_chance"].fillna(False)]))
    if lost:
        yield f"Acceptance at chance level ({lost}): the drafter is not fed, or is not this target's."


def _null_test(cell: pd.DataFrame) -> Iterator[str]:
    """An arm that is the baseline a second time: whatever it shows is the machine's own noise."""
    twins = cell[(cell["method"] == BASELINE) & (cell["arm"] != BASELINE) & cell["speedup_low"].notna()]
    for row in _rows(twins):
        low, high = row.speedup_low, row.speedup_high
        said = (
            f"Null test: {_name(row)} over AR {row.speedup:.4f} [{low:.4f}, {high:.4f}]; smallest effect this machine "
            f"can resolve here: ± {50 * (high - low) / row.speedup:.2g} %."
        )
        yield said if low <= 1 <= high else f"{said} 1 is outside: something favours one of two equal arms."


def _residual(cell: pd.DataFrame) -> Iterator[str]:
    """Where the stages of a round do not add up to the time it takes."""
    measured = cell["identity_measured"] / cell["identity_predicted"] - 1
    for sentence, shares in (
        ("Unexplained overhead, by which an arm is slower than its stages make it", cell["identity_residual"]),
        ("Stages took longer, timed one by one, than whole rounds did", measured),
    ):
        beyond = shares > UNEXPLAINED
        if beyond.any():
            arms = zip(_rows(cell[beyond]), shares[beyond], strict=True)
            yield f"{sentence}: {', '.join(f'{_name(row)} {100 * share:.0f} %' for row, share in arms)}."


def _rows(cell: pd.DataFrame) -> Iterator[Any]:
    return iter(cell.itertuples())


def _name(row: Any) -> str:
    """An arm, and the category where rows have one."""
    category = getattr(row, "category", None)
    return str(row.arm) if category is None or pd.isna(category) else f"{row.arm} ({category})"
