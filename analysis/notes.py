"""What to know when reading a cell's table: how its figures were made, why cells of it are empty, and what speaks
against trusting it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.columns import NOTHING, Column, View, count, differing, named, percent
from analysis.records import BASELINE, HIDDEN
from analysis.stats import DRIFT

UNEXPLAINED = 0.05
INTERVALS = "[95 % interval over prompts]"
SPEEDUPS = f"speed-up: geometric mean of per-prompt TPOT ratios {INTERVALS}"
_ABOUT = {
    "stages": "stages: per round, from {profiled} an arm, timed stage by stage; speed-up by stages: "
    "tokens per round × AR's TPOT / all four stages; measured: on the same prompts, without stage timing",
    "latency": "TPOT: after the first token; round: decoding time over rounds, percentiles over requests; per user: "
    "after the first token; per GPU: with the prefill, all slots, over tp",
    "load": "of requests due while the load was steady; tokens/s in all: of all slots, prefill included; chunks hold "
    "several tokens, so that the time between them is no TPOT",
    "accuracy": "accuracy: the share of right answers, over the prompts that have one (their first turns); "
    "acceptance length: pooled over uncut rounds; " + SPEEDUPS,
    "acceptance": "depth: the share of uncut rounds that accepted at least so many tokens; acceptance length: 1 + the "
    f"sum of these, over all rounds {INTERVALS}; per request: the mean of the requests' own",
}

Rows = Sequence[Any]  # of `load_runs`


def note(cell: Rows, view: View | None, columns: Sequence[Column], shown: Sequence[Sequence[str]]) -> str:
    """One sentence on what the table shows, then a line for each thing that it should be read with.

    `columns` and `shown`, the table's cells in the order of the rows, tell what is empty.
    """
    visible = [row for row in cell if row.status not in HIDDEN]
    lines = [_about(cell, view), *_blank(cell, columns, shown)]
    if view is None:
        lines += _otherwise(filter(differing, cell))
        lines += _accuracy(visible)
    for warnings in (drifts, chance, _null_test, _residual, _saturated):
        lines += warnings(visible)
    return "\n".join(lines)


def _about(cell: Rows, view: View | None) -> str:
    prompts, turns, requests = (most(cell, name) for name in ("n_prompts", "n_turns", "n_requests"))
    asked = count(prompts, "prompt") + (f" of {turns} turns" if turns != prompts else "")
    repeats = round(requests / max(turns, 1))
    said = [f"{asked}, {count(repeats, 'repeat')}" if prompts else "no requests yet"]
    if view is not None:
        said.append(_ABOUT[view].format(profiled=count(most(cell, "n_profiled"), "request")))
    elif any(pd.notna(row.speedup_low) for row in cell):
        said += ["acceptance length: pooled over uncut rounds", SPEEDUPS]
    tolerances = [row.gap_tolerance for row in cell if pd.notna(row.gap_tolerance)]
    if tolerances:
        said.append(f"near tie: within {max(tolerances):.2g} logits of the target's choice")
    if len({row.sittings for row in cell if row.n_requests > 0}) > 1:
        said.append("arms were timed in different sittings: compare their speed-ups, not their times")
    return "; ".join(said) + "."


def most(rows: Rows, name: str) -> int:
    """The largest count of any arm, its categories together."""
    sums: dict[str, int] = {}
    for row in rows:
        sums[named(row)] = sums.get(named(row), 0) + int(getattr(row, name))
    return max(sums.values(), default=0)


def _blank(cell: Rows, columns: Sequence[Column], shown: Sequence[Sequence[str]]) -> Iterator[str]:
    """Why cells are empty, but for arms whose row says why."""
    reasons: dict[str, list[str]] = {}
    if any(row.status in HIDDEN for row in cell):
        reasons["of an invalid or failed arm no figure is shown"] = []
    if any(named(row) != row.arm for row in cell):
        reasons["what was replayed has no times"] = []
    for index, column in enumerate(columns):
        told = (
            row.status in HIDDEN or named(row) != row.arm or (row.status == "pending" and not row.n_requests)
            for row in cell
        )
        if column.blank and any(not t and cells[index] == NOTHING for t, cells in zip(told, shown, strict=True)):
            reasons.setdefault(column.blank, []).append(column.title)
    if reasons:
        said = [f"{reason} ({', '.join(titles)})" if titles else reason for reason, titles in reasons.items()]
        yield f"{NOTHING}: {'; '.join(said)}."


def _otherwise(rows: Iterable[Any]) -> Iterator[str]:
    arms = ", ".join(f"{_name(row)} {row.n_differing} of {row.n_requests}" for row in rows)
    if arms:
        yield f"Same text only: the speed-up without the requests answered otherwise than by AR ({arms})."


def _accuracy(rows: Rows) -> Iterator[str]:
    """The share of right answers, of each category where they stand apart; said once where all arms have the same."""
    scored: dict[str, dict[str, str]] = {}
    for row in rows:
        if pd.notna(row.accuracy):
            share = f"{100 * row.accuracy:.1f} % of {count(row.n_scored, 'prompt')}"
            scored.setdefault(getattr(row, "category", ""), {})[_name(row)] = share
    said = []
    for category, shares in scored.items():
        if len(set(shares.values())) == 1:
            said.append(f"{category} {next(iter(shares.values()))} in every arm".strip())
        else:
            said.append(", ".join(f"{name} {share}" for name, share in shares.items()))
    if said:
        yield f"Right answers: {'; '.join(said)}."


def drifts(rows: Rows) -> Iterator[str]:
    """Where the machine moved, and where its sentinel swung too much to tell."""
    moved: dict[tuple[int, str, float, bool], list[str]] = {}
    for row in rows:
        drifted = row.status == "drifted"
        if pd.notna(row.drift) and (drifted or (row.status == "complete" and abs(math.log1p(row.drift)) > DRIFT)):
            place = row.drift_sitting, row.drift_place, row.drift, drifted
            moved.setdefault(place, []).append(row.arm)
    for (sitting, place_in_it, drift, drifted), arms in moved.items():
        move = f"AR's TPOT moved by {percent(drift)} from the start of sitting {sitting} to its {place_in_it}"
        said = ", ".join(dict.fromkeys(arms))
        yield f"Drifted: {move} ({said})." if drifted else f"Drift not told from noise: {move} ({said})."


def chance(rows: Rows) -> Iterator[str]:
    """Arms whose drafter is no use, by the looks of it."""
    lost = ", ".join(_name(row) for row in rows if pd.notna(row.at_chance) and row.at_chance)
    if lost:
        yield f"Acceptance at chance level ({lost}): the drafter is not fed, or is not this target's."


def _null_test(rows: Rows) -> Iterator[str]:
    """An arm that is the baseline a second time: whatever it shows is the machine's own noise."""
    for row in rows:
        if row.method == BASELINE and row.arm != BASELINE and pd.notna(row.speedup_low):
            low, high = row.speedup_low, row.speedup_high
            said = (
                f"Null test: {_name(row)} over AR {row.speedup:.4f} [{low:.4f}, {high:.4f}]; smallest effect this "
                f"machine can resolve here: ± {50 * (high - low) / row.speedup:.2g} %."
            )
            yield said if low <= 1 <= high else f"{said} 1 is outside: something favours one of two equal arms."


def _residual(rows: Rows) -> Iterator[str]:
    """Where the stages of a round do not add up to the time it takes."""
    slower = [(row, row.identity_residual) for row in rows]
    faster = [(row, row.identity_measured / row.identity_predicted - 1) for row in rows]
    for sentence, shares in (
        ("Unexplained overhead, by which an arm is slower than its stages make it", slower),
        ("Stages took longer, timed one by one, than whole rounds did", faster),
    ):
        beyond = [f"{_name(row)} {100 * share:.0f} %" for row, share in shares if share > UNEXPLAINED]
        if beyond:
            yield f"{sentence}: {', '.join(beyond)}."


def _name(row: Any) -> str:
    """An arm, and the category where rows have one."""
    category = getattr(row, "category", None)
    return named(row) if category is None or pd.isna(category) else f"{named(row)} ({category})"


def _saturated(visible: Rows) -> Iterator[str]:
    """Arms whose server could not keep up with the arrivals of an open loop."""
    names = [named(row) for row in visible if pd.notna(row.saturated) and row.saturated]
    if names:
        yield f"Saturated ({', '.join(names)}): the queue kept growing, so that latencies say how long the load lasted."
    for row in visible:
        if row.preemptions > 0:
            yield f"The server of {named(row)} put {row.preemptions:.0f} requests off for lack of memory: fewer fit."
