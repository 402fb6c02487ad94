"""What the literature expects of draft trees, and whether it held here.

Every expectation is judged cell by cell with an interval: it held, it did not hold, or the prompts are too few to
tell. A folder that does not have what an expectation is about has no data for it, which is no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from analysis.columns import count
from analysis.report.compared import Compared, between
from analysis.report.folder import Curve, Standing
from analysis.report.words import arm_name, budgets_said, times
from analysis.stats import Interval

NEAR = 0.99  # a budget that has at least so much of the smaller one's τ counts as not below it
BETWEEN = (64, 256)
LARGE = (512, 1024)
RARELY = 0.1


class Verdict(StrEnum):
    """What can be said of an expectation."""

    HELD = "held"
    NOT = "did not hold"
    PARTLY = "held in part"
    UNTOLD = "cannot be told"
    NO_DATA = "no data"


@dataclass(frozen=True)
class Finding:
    """One cell's (or pair of cells') part in a verdict: `said` has the figures, their intervals and the number of
    prompts."""

    where: str
    verdict: Verdict
    said: str


@dataclass(frozen=True)
class Expectation:
    """What is expected, who says so, how it is judged and what is needed for that, and what was found."""

    title: str
    source: str
    rule: str
    needs: str
    cases: str
    findings: tuple[Finding, ...]
    verdict: Verdict

    @property
    def tally(self) -> str:
        """How many findings say what; of a single one, what it says."""
        if not self.findings:
            return f"This folder lacks what it takes: {self.needs}."
        if len(self.findings) == 1:
            return f"{self.findings[0].where}: {self.findings[0].said}."
        counts = {verdict: sum(found.verdict is verdict for found in self.findings) for verdict in Verdict}
        said = ", ".join(f"{verdict.value} in {number}" for verdict, number in counts.items() if number)
        return f"Of {len(self.findings)} {self.cases}: {said}."


def verdict_of(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict from many: those that cannot be told do not count where others can."""
    told = set(verdicts)
    if not told:
        return Verdict.NO_DATA
    told -= {Verdict.UNTOLD}
    if not told:
        return Verdict.UNTOLD
    return told.pop() if len(told) == 1 else Verdict.PARTLY


def above(interval: Interval, limit: float = 1.0) -> Verdict:
    """Whether a figure is above a limit, as far as its interval tells; one without spread may be at it."""
    if interval.low > limit:
        return Verdict.HELD
    if interval.high < limit or interval.low == interval.high == limit:
        return Verdict.NOT
    return Verdict.UNTOLD


def never_below(steps: Collection[Interval], limit: float = NEAR) -> Verdict:
    """Whether no step falls below a limit: one that surely does is enough to say no, all must surely not to say yes."""
    if any(step.high < limit for step in steps):
        return Verdict.NOT
    return Verdict.HELD if steps and all(step.low >= limit for step in steps) else Verdict.UNTOLD


def within(tied: Collection[float], low: float, high: float) -> Verdict:
    """Whether the best of some budgets lies in a range, known to be one of `tied`."""
    inside = {low <= budget <= high for budget in tied}
    return Verdict.UNTOLD if len(inside) != 1 else Verdict.HELD if inside == {True} else Verdict.NOT


def lower(ours: Collection[float], theirs: Collection[float]) -> Verdict:
    """Whether one best budget is below another, where each is known to be one of several."""
    if max(ours) < min(theirs):
        return Verdict.HELD
    return Verdict.NOT if min(ours) >= max(theirs) else Verdict.UNTOLD


def rarely(pays: Collection[Verdict]) -> Verdict:
    """Whether something pays in at most a tenth of the cases that can be told."""
    told = [verdict for verdict in pays if verdict is not Verdict.UNTOLD]
    if not pays:
        return Verdict.NO_DATA
    if not told:
        return Verdict.UNTOLD
    return Verdict.HELD if told.count(Verdict.HELD) <= RARELY * len(told) else Verdict.NOT


def expectations(cells: list[Standing]) -> list[Expectation]:
    """Every expectation with its findings in these cells."""
    return [_judged(cells, *each) for each in _EXPECTED]


def _judged(
    cells: list[Standing],
    find: Callable[[list[Standing]], Iterator[Finding]],
    title: str,
    source: str,
    rule: str,
    needs: str,
    cases: str,
) -> Expectation:
    findings = tuple(find(cells))
    verdicts = [finding.verdict for finding in findings]
    if find is _large_budgets:  # of a case, HELD means that the large budget does pay
        verdict = rarely(verdicts)
        findings = tuple(Finding(found.where, _OPPOSITE[found.verdict], found.said) for found in findings)
    else:
        verdict = verdict_of(verdicts)
    return Expectation(title, source, rule, needs, cases, findings, verdict)


_OPPOSITE = {Verdict.HELD: Verdict.NOT, Verdict.NOT: Verdict.HELD, Verdict.UNTOLD: Verdict.UNTOLD}


def _curves(cells: Iterable[Standing]) -> Iterator[tuple[str, Standing, Curve]]:
    """Every curve over budgets with a name: its cell's, and the kind of tree where that has several."""
    for cell in cells:
        curves = cell.curves
        for curve in curves:
            yield cell.label + (f" · {arm_name(curve.kind)}" if len(curves) > 1 else ""), cell, curve


def _tied(curve: Mapping[float, str], compared: Compared) -> tuple[float, list[float], int] | None:
    """The fastest budget, those that cannot be told from it, and over how many prompts."""
    front = compared.front(curve.values())
    if front is None:
        return None
    budget_of = {arm: budget for budget, arm in curve.items()}
    return budget_of[front.best], sorted(budget_of[arm] for arm in front.tied), front.n


def _tau_rises(cells: list[Standing]) -> Iterator[Finding]:
    for where, cell, curve in _curves(cells):
        steps = {pair: cell.compared.lengths(curve.arms[pair[1]], curve.arms[pair[0]]) for pair in pairwise(curve.arms)}
        steps = {pair: step for pair, step in steps.items() if step.n}
        if not steps:
            continue
        least = min(steps, key=lambda pair: steps[pair].point)
        lengths = (f"{cell.compared.length(arm):.2f} at {budget:.0f}" for budget, arm in curve.arms.items())
        said = f"τ {', '.join(lengths)}; the least step, {least[1]:.0f} over {least[0]:.0f}: {times(steps[least])}"
        yield Finding(where, never_below(steps.values()), said)


def _peak_between(cells: list[Standing]) -> Iterator[Finding]:
    low, high = BETWEEN
    for where, cell, curve in _curves(cells):
        measured = list(curve.arms)
        inside = any(low <= budget <= high for budget in measured)
        if cell.hybrid or not (inside and min(measured) < low and max(measured) > high):
            continue
        found = _tied(curve.arms, cell.compared)
        if found is not None:
            yield Finding(where, within(found[1], low, high), _fastest_said(*found))


def _fastest_said(best: float, tied: list[float], n: int) -> str:
    others = [budget for budget in tied if budget != best]
    beside = f"; not told from it: {budgets_said(others)}" if others else ", faster than every other"
    return f"fastest at {best:.0f}{beside} ({count(n, 'prompt')})"


def _hybrid_lower(cells: list[Standing]) -> Iterator[Finding]:
    attention, hybrid = ([cell for cell in cells if cell.hybrid is kind] for kind in (False, True))
    without = ("model", "target", "drafter", "weights", "dtype")
    for ours in hybrid:
        for theirs in attention:
            if ours.alike(without) != theirs.alike(without):
                continue
            for curve in ours.curves:
                other = next((one for one in theirs.curves if one.kind == curve.kind), None)
                shared = [budget for budget in curve.arms if other is not None and budget in other.arms]
                if other is None or len(shared) < 2:
                    continue
                mine = _tied({budget: curve.arms[budget] for budget in shared}, ours.compared)
                its = _tied({budget: other.arms[budget] for budget in shared}, theirs.compared)
                if mine is not None and its is not None:
                    said = f"hybrid: {_fastest_said(*mine)}; attention: {_fastest_said(*its)}"
                    yield Finding(f"{ours.label} against {theirs.label}", lower(mine[1], its[1]), said)


def _large_budgets(cells: list[Standing]) -> Iterator[Finding]:
    for where, cell, curve in _curves(cells):
        smaller = {budget: arm for budget, arm in curve.arms.items() if budget < LARGE[0]}
        found = _tied(smaller, cell.compared)
        for budget in LARGE:
            if found is None or budget not in curve.arms:
                continue
            ratio = cell.compared.speed(curve.arms[budget], smaller[found[0]])
            if ratio.n:
                said = f"{budget} has {times(ratio)} the speed of {found[0]:.0f}, the fastest below {LARGE[0]}"
                yield Finding(f"{where} · budget {budget}", above(ratio), said)


def _deeper_than_chain(cells: list[Standing]) -> Iterator[Finding]:
    for where, cell, arms, chain in _beside_chain(cells):
        front = cell.compared.front(arms)
        arm = arms[-1] if front is None else front.best
        for category in sorted(set(cell.compared.categories)):
            ratio = cell.compared.lengths(arm, chain, category)
            if ratio.n:
                said = f"{arm_name(arm)} has {times(ratio)} the τ of {arm_name(chain)}"
                yield Finding(f"{where} · {category}", above(ratio), said)


def _beside_chain(cells: list[Standing]) -> Iterator[tuple[str, Standing, list[str], str]]:
    """Cells with DFlash and trees beside it."""
    for cell in cells:
        if "dflash" in set(cell.sound["arm"]) and cell.trees:
            yield cell.label, cell, cell.trees, "dflash"


def _less_when_sampled(cells: list[Standing]) -> Iterator[Finding]:
    without = ("temperature", "top_p", "top_k")
    greedy = {cell.alike(without): cell for cell in cells if cell.cell.settings.get("temperature") == 0}
    for cell in cells:
        beside = greedy.get(cell.alike(without))
        if beside is None or cell.cell.settings.get("temperature") != 1:
            continue
        shared = [arm for arm in beside.trees if arm in cell.trees]
        front = beside.compared.front(shared)
        if front is None:
            continue
        ratio = between(cell.compared, beside.compared, front.best)
        if ratio.n:
            gains = (f"{_gain(one.compared, front.best):.2f} at T = {t}" for one, t in ((beside, 0), (cell, 1)))
            said = f"{arm_name(front.best)} over AR: {', '.join(gains)}; the second has {times(ratio)} the first"
            yield Finding(cell.label, _reversed(above(ratio)), said)


def _gain(compared: Compared, arm: str) -> float:
    speeds = compared.log_speeds(arm)
    there = speeds[~(speeds != speeds)]
    return math.exp(float(there.mean())) if len(there) else math.nan


def _reversed(verdict: Verdict) -> Verdict:
    """Of a figure that is expected to be below its limit."""
    return _OPPOSITE[verdict]


_EXPECTED = (
    (
        _tau_rises,
        "Acceptance length rises with the budget, or nearly",
        "DDTree (arXiv 2604.12989): τ rises with every budget from 16 to 1024. A larger tree holds the smaller one, so "
        "in one round it cannot accept less; over a whole text the rounds start elsewhere, which can cost a little.",
        f"Each budget's pooled τ over that of the next smaller one, paired by prompt: held where no interval reaches "
        f"below {NEAR}, did not hold where one lies below it.",
        "a cell with two budgets",
        "cells",
    ),
    (
        _peak_between,
        "Speed peaks in between: at 64–256 for attention targets",
        "DDTree's own figure has the peak at 256–512 (H200, an eager loop); re-runs have it at 64–256, the lower the "
        "less bandwidth there is (64 or less on a DGX Spark).",
        "The fastest budget and all that cannot be told from it: held where they lie within 64–256, did not hold "
        "where none does. The fastest is picked on the same prompts.",
        "a cell of an attention target with budgets below 64, within 64–256 and above 256",
        "cells",
    ),
    (
        _hybrid_lower,
        "A hybrid target's best budget is lower than an attention target's",
        "Every node of the tree needs a recurrent state of its own, so a node costs more (Luce keeps to about 26 on a "
        "24 GB card).",
        "The best budgets of two cells alike but for the model, each with those that cannot be told from it: held "
        "where all of the hybrid's are lower, did not hold where it is the other way round or they are equal.",
        "two cells, one of a hybrid target, alike but for the model, with the same budgets",
        "pairs of cells",
    ),
    (
        _large_budgets,
        "Budgets of 512 and 1024 rarely pay",
        "DDTree: 1024 is slower than 256–512 although τ still rises; verifying gets dear once a pass is no longer "
        "bound by reading the weights.",
        "Speed at 512 and at 1024 over the fastest smaller budget, paired by prompt: a large budget pays where the "
        f"whole interval is above 1. Held where that is so in at most {RARELY:.0%} of the cases that can be told. Of a "
        "single case, “held” says that it does not pay.",
        "a cell with a budget of 512 or 1024 and a smaller one",
        "large budgets",
    ),
    (
        _deeper_than_chain,
        "DDTree's acceptance length is above DFlash's in every category",
        "DDTree: in all 60 of its cells (10 datasets, 3 models, 2 temperatures) the tree at its best budget is ahead "
        "of the chain.",
        "The fastest tree's pooled τ over DFlash's, paired by prompt, in each category.",
        "a cell with DFlash and a tree",
        "cells and categories",
    ),
    (
        _less_when_sampled,
        "The gain is smaller at T = 1 than at T = 0",
        "DDTree, Qwen3-8B on MATH-500: 7.5 times AR at T = 0, 6.6 at T = 1; all of JetSpec's re-runs agree.",
        "The speed-up over AR at T = 1 over that at T = 0, of the tree that is fastest at T = 0, paired by prompt: "
        "held where the interval is below 1.",
        "two cells alike but for temperatures of 0 and 1",
        "pairs of cells",
    ),
)
