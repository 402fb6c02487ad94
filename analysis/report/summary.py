"""What came of it, in words: whether the tree is worth it, at which budget, how sure that is, and what to trust."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from analysis.columns import count
from analysis.records import BASELINE
from analysis.report.compared import Front
from analysis.report.expectations import Verdict, above
from analysis.report.folder import Folder, Standing
from analysis.report.words import arm_name, bounds, counted, listed, times
from analysis.stats import DRIFT, Interval


class Answer(NamedTuple):
    """One cell's answer: the fastest tree, its speed over AR and over the fastest arm without a tree, and which trees
    cannot be told from it. `worth` says whether it beats the latter; without trees there is no answer."""

    standing: Standing
    tree: str
    over_baseline: Interval
    other: str
    over_other: Interval
    tied: tuple[str, ...]
    worth: Verdict


def answers(cells: Sequence[Standing]) -> list[Answer]:
    """An answer for every cell with a tree, in their order."""
    return [answer for cell in cells if (answer := _answer(cell)) is not None]


def _answer(cell: Standing) -> Answer | None:
    trees = cell.compared.front(cell.trees)
    others = cell.compared.front(cell.others)
    if trees is None or others is None:
        return None
    over = cell.compared.speed(trees.best, others.best)
    baseline = over if others.best == BASELINE else cell.compared.speed(trees.best, BASELINE)
    return Answer(cell, trees.best, baseline, others.best, over, _beside(trees), above(over))


def _beside(front: Front) -> tuple[str, ...]:
    return tuple(arm for arm in front.tied if arm != front.best)


def summary(folder: Folder, found: Sequence[Answer]) -> list[str]:
    """The report's first paragraph, sentence by sentence."""
    said = [_state(folder), *_worth(folder, found)]
    return [one for one in (*said, lossless(folder.measured), drift(folder.measured), null_test(folder)) if one]


def _state(folder: Folder) -> str:
    if not folder.running:
        return ""
    arms = int((folder.runs["status"] == "pending").sum())
    return f"{counted(arms, 'arm is', 'arms are')} still unfinished: the figures are so far."


def _worth(folder: Folder, found: Sequence[Answer]) -> Iterator[str]:
    if not found:
        yield "Nothing here says whether a tree is worth it: no cell has a valid AR and a valid tree to compare."
    elif len(found) == 1:
        yield from _of_one(found[0])
    else:
        yield from _of_many(found)


def _of_one(answer: Answer) -> Iterator[str]:
    tree, other = arm_name(answer.tree), arm_name(answer.other)
    where = answer.standing.label
    ratio, n = answer.over_other, count(answer.over_other.n, "prompt")
    figure = f"{ratio.point:.2f} times the speed of {other} {bounds(ratio.low, ratio.high)}"
    chain = ", the fastest arm without a tree" if answer.other != BASELINE else ""
    figure += f"{chain}, over {n}"
    if answer.worth is Verdict.HELD:
        yield f"The tree is worth it on {where}: the fastest arm is {tree}, with {figure}."
    elif answer.worth is Verdict.NOT:
        yield f"The tree is not worth it on {where}: its best arm, {tree}, has {figure}."
    else:
        yield f"Whether the tree is worth it cannot be told on {where}: {tree}, the fastest tree, has {figure}."
    if answer.other != BASELINE:
        yield f"Over AR {tree} is {times(answer.over_baseline)}."
    yield _tied_said(answer)


def _tied_said(answer: Answer) -> str:
    trees = len(answer.standing.trees)
    if trees < 2:
        return "It is the only tree here."
    if not answer.tied:
        return "It is faster than every other tree here."
    return f"Not to be told from it on these prompts: {listed([arm_name(arm) for arm in answer.tied])}."


def _of_many(found: Sequence[Answer]) -> Iterator[str]:
    by = {verdict: [one for one in found if one.worth is verdict] for verdict in Verdict}
    parts = [
        f"in {len(by[Verdict.HELD])} the tree is faster than every arm without one",
        f"in {len(by[Verdict.NOT])} it is not",
        f"in {len(by[Verdict.UNTOLD])} that cannot be told",
    ]
    yield f"Of {len(found)} cells with trees: {', '.join(parts)}."
    ordered = sorted(found, key=lambda one: one.over_other.point)
    for word, one in (("largest", ordered[-1]), ("smallest", ordered[0])):
        yield (
            f"The {word} gain over the fastest arm without a tree is that of {arm_name(one.tree)} over "
            f"{arm_name(one.other)} on {one.standing.label}: {times(one.over_other)}."
        )
    fastest = pd.Series([one.tree for one in found]).value_counts()
    yield f"Fastest tree: {listed([f'{arm_name(str(arm))} in {cells}' for arm, cells in fastest.items()])}."
    several = sum(bool(one.tied) for one in found)
    if several:
        yield f"In {several} of the cells another tree cannot be told from the fastest."


def lossless(runs: pd.DataFrame) -> str:
    """What the losslessness gate found, over all arms that have begun."""
    begun = runs[runs["n_requests"] > 0]
    if begun.empty:
        return ""
    invalid = begun[begun["status"] == "invalid"]
    checked = begun[begun["true_violations"].notna() & (begun["status"] != "invalid")]
    requests, ties = int(checked["n_requests"].sum()), int(checked["near_ties"].fillna(0).sum())
    said = []
    if len(checked):
        held = (
            "every token is its own choice" if not ties else f"no token is beyond a near tie, of which there are {ties}"
        )
        said.append(f"Lossless: {count(requests, 'request')} checked against the plain target, and {held}.")
    if len(invalid):
        said.append(f"{counted(len(invalid), 'arm is', 'arms are')} invalid and out of all figures.")
    if unchecked := int(begun["true_violations"].isna().sum()):
        said.append(f"{counted(unchecked, 'arm was', 'arms were')} not checked.")
    return " ".join(said)


def drift(runs: pd.DataFrame) -> str:
    """Whether the machine moved while it was measured."""
    watched = runs[runs["drift"].notna()]
    if watched.empty:
        return "Whether the machine drifted was not watched." if (runs["n_requests"] > 0).any() else ""
    drifted = int((watched["status"] == "drifted").sum())
    largest = f"{100 * watched['drift'].abs().max():.1f} %"
    if drifted:
        arms = counted(drifted, "arm was", "arms were")
        return f"The machine drifted while {arms} measured: AR's TPOT moved by up to {largest} within a sitting."
    if math.log1p(watched["drift"].abs().max()) > DRIFT:
        return f"AR's TPOT moved by up to {largest} within a sitting, which its noise does not tell from drift."
    return f"The machine did not drift: within a sitting AR's TPOT moved by {largest} at most."


def null_test(folder: Folder) -> str:
    """What AR against itself says of the smallest effect that can be told, where it was asked for."""
    runs = folder.runs
    twins = runs[(runs["method"] == BASELINE) & (runs["arm"] != BASELINE) & runs["speedup_low"].notna()]
    if twins.empty:
        return "There is no null test here."
    outside = twins[(twins["speedup_low"] > 1) | (twins["speedup_high"] < 1)]
    widths = 50 * (twins["speedup_high"] - twins["speedup_low"]) / twins["speedup"]
    if len(twins) == 1:
        (row,) = twins.itertuples()
        stands = "outside" if len(outside) else "inside"
        return (
            f"Null test: AR over itself {row.speedup:.4f} [{row.speedup_low:.4f}, {row.speedup_high:.4f}], 1 is "
            f"{stands}; effects below ± {widths.iloc[0]:.2g} % cannot be told here."
        )
    said = f"Null tests: 1 is outside of the interval in {len(outside)} of {len(twins)} (one in twenty is by chance)"
    return f"{said}; effects below ± {widths.min():.2g} to {widths.max():.2g} % cannot be told here."


class Glance(NamedTuple):
    """A row of the table of cells: its cells as text, and the answer's verdict for its colour."""

    cells: tuple[str, ...]
    verdict: str


GLANCE = (
    "cell",
    "fastest tree",
    "over AR",
    "fastest without a tree",
    "tree over that",
    "worth it",
    "prompts",
    "not told apart",
)


def at_a_glance(folder: Folder, found: Sequence[Answer]) -> Iterator[Glance]:
    """Every cell in a row, those without an answer too."""
    by_place = {answer.standing.place: answer for answer in found}
    for place, label in folder.labels.items():
        answer = by_place.get(place)
        if answer is None:
            yield Glance((label, *["–"] * (len(GLANCE) - 1)), Verdict.NO_DATA)
            continue
        tied = listed([arm_name(arm) for arm in answer.tied], most=3) if answer.tied else "–"
        worth = {Verdict.HELD: "yes", Verdict.NOT: "no"}.get(answer.worth, "cannot be told")
        row = (arm_name(answer.tree), _short(answer.over_baseline), arm_name(answer.other), _short(answer.over_other))
        yield Glance((label, *row, worth, str(answer.over_other.n), tied), answer.worth)


def _short(interval: Interval) -> str:
    return f"{interval.point:.2f} {bounds(interval.low, interval.high)}"
