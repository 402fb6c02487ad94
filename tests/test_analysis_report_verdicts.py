"""What the report judges: verdicts from intervals, expectations of cells made for a known answer, paired ratios."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.records import Cell
from analysis.report.compared import Compared, between
from analysis.report.expectations import Verdict, above, expectations, lower, never_below, rarely, verdict_of, within
from analysis.report.folder import Standing
from analysis.report.summary import answers
from analysis.stats import Interval

bounds = st.tuples(st.floats(0.5, 2), st.floats(0, 0.5)).map(
    lambda pair: Interval(pair[0], pair[0] - pair[1], pair[0] + pair[1], 5)
)
NOWHERE = Interval(1.2, math.nan, math.nan, 1)


@given(st.lists(bounds, min_size=1), bounds)
def test_one_more_step_never_turns_a_no_into_a_yes(steps, more):
    before, after = never_below(steps), never_below([*steps, more])
    assert not (before is Verdict.NOT and after is not Verdict.NOT)
    assert not (after is Verdict.HELD and before is not Verdict.HELD)
    if after is Verdict.HELD:
        assert all(step.low >= 0.99 for step in [*steps, more])


@given(bounds)
def test_above_tells_only_what_the_interval_does(interval):
    verdict = above(interval)
    assert (verdict is Verdict.HELD) == (interval.low > 1)
    if interval.low < 1 < interval.high:
        assert verdict is Verdict.UNTOLD


budgets = st.sets(st.sampled_from([16, 32, 64, 128, 256, 512, 1024]), min_size=1)


@given(budgets)
def test_within_takes_all_or_none(tied):
    inside = {64, 128, 256}
    expected = Verdict.HELD if tied <= inside else Verdict.NOT if not tied & inside else Verdict.UNTOLD
    assert within(tied, 64, 256) is expected


@given(budgets, budgets)
def test_lower_is_never_told_both_ways(ours, theirs):
    assert not (lower(ours, theirs) is lower(theirs, ours) is Verdict.HELD)
    assert lower(ours, ours) is not Verdict.HELD
    if lower(ours, theirs) is Verdict.HELD:
        assert lower(theirs, ours) is Verdict.NOT


@given(st.lists(st.sampled_from(Verdict)))
def test_untold_findings_never_decide(verdicts):
    told = [one for one in verdicts if one in (Verdict.HELD, Verdict.NOT)]
    found = verdict_of([*told, *[Verdict.UNTOLD] * len(verdicts)])
    if told:
        assert found is (told[0] if len(set(told)) == 1 else Verdict.PARTLY)
    else:
        assert found is (Verdict.UNTOLD if verdicts else Verdict.NO_DATA)


def test_no_interval_tells_nothing():
    assert above(NOWHERE) is Verdict.UNTOLD
    assert never_below([NOWHERE]) is Verdict.UNTOLD
    assert rarely([Verdict.UNTOLD]) is Verdict.UNTOLD
    assert rarely([]) is Verdict.NO_DATA
    assert rarely([Verdict.NOT] * 9 + [Verdict.HELD]) is Verdict.HELD
    assert rarely([Verdict.NOT] * 8 + [Verdict.HELD]) is Verdict.NOT


# Cells made for a known answer


def made(arms: dict[str, tuple[float, float]], prompts: int = 20, noise: float = 0.02, label: str = "here", **settings):
    """A cell whose arms have these speed-ups and acceptance lengths, some noise a prompt, all of one category."""
    draw = np.random.default_rng(len(arms) + prompts)
    rows = []
    for arm, (speed, length) in {"autoregressive": (1.0, 1.0), **arms}.items():
        for prompt in range(prompts):
            own = 0 if arm == "autoregressive" else draw.normal(0, noise)
            rows.append(("r", label, f"p{prompt:02d}", arm, "math", (length - 1) * 50, 50, math.log(speed) + own))
    names = ["results", "cell_id", "prompt_id", "arm", "category", "accepted", "rounds", "log_speedup"]
    table = pd.DataFrame(rows, columns=names)
    budget = [float(arm.split("-")[1]) if "-" in arm else math.nan for arm in table["arm"].unique()]
    method = [arm.split("-")[0] for arm in table["arm"].unique()]
    sound = pd.DataFrame({"arm": table["arm"].unique(), "method": method, "budget": budget})
    settings = {"target": "builtin:tiny/target", "temperature": 0.0, "model": "tiny", **settings}
    cell = Cell("r", Path("nowhere"), label, settings, None, ())
    return Standing(("r", label), label, cell, sound, Compared(table))


def tree(*figures: tuple[int, float, float]) -> dict[str, tuple[float, float]]:
    return {f"ddtree-{budget}": (speed, length) for budget, speed, length in figures}


USUAL = tree((16, 2.0, 4), (64, 2.6, 5), (128, 2.7, 5.5), (512, 2.2, 6), (1024, 1.6, 6.2))


def verdicts(*cells: Standing) -> list[Verdict]:
    return [one.verdict for one in expectations(list(cells))]


def test_expectations_that_hold():
    greedy = made({"dflash": (2.1, 3.5), **USUAL})
    slower = {arm: (speed * 0.8, length) for arm, (speed, length) in USUAL.items()}
    sampled = made({"dflash": (1.8, 3.2), **slower}, label="sampled", temperature=1.0)
    early = tree((16, 2.4, 4), (64, 2.0, 5), (128, 1.6, 5.5), (512, 0.9, 6), (1024, 0.5, 6.2))
    hybrid = {"target": "builtin:tiny_hybrid/target", "model": "tiny_hybrid"}
    third = made({"dflash": (2.0, 3.5), **early}, label="hybrid", **hybrid)
    assert third.hybrid and not greedy.hybrid
    assert verdicts(greedy, sampled, third) == [Verdict.HELD] * 6


def test_expectations_that_do_not_hold():
    rising = tree((16, 2.0, 6), (64, 2.3, 5), (256, 2.6, 5), (512, 3.0, 5), (1024, 3.5, 5))
    greedy = made({"dflash": (2.1, 7), **rising})
    faster = {arm: (speed * 1.2, length) for arm, (speed, length) in rising.items()}
    sampled = made({"dflash": (2.1, 7), **faster}, label="sampled", temperature=1.0)
    hybrid = {"target": "builtin:tiny_hybrid/target", "model": "tiny_hybrid"}
    third = made({"dflash": (2.1, 7), **rising}, label="hybrid", **hybrid)
    assert verdicts(greedy, sampled, third) == [Verdict.NOT] * 6


def test_expectations_that_cannot_be_told_or_have_no_data():
    noisy = made({"dflash": (2.1, 3.5), **USUAL}, prompts=3, noise=1.0)
    assert verdicts(noisy)[1] is Verdict.UNTOLD
    one = made({"dflash": (2.1, 3.5), "ddtree-64": (2.5, 5)})
    assert verdicts(one) == [Verdict.NO_DATA] * 4 + [Verdict.HELD, Verdict.NO_DATA]
    assert verdicts() == [Verdict.NO_DATA] * 6


def test_answer_in_words():
    def first(cell):
        (answer,) = answers([cell])
        return answer

    better = first(made({"dflash": (2.1, 3.5), **USUAL}))
    assert (better.tree, better.other, better.worth) == ("ddtree-128", "dflash", Verdict.HELD)
    assert better.over_other.low > 1
    worse = first(made({"dflash": (3.5, 6), **USUAL}))
    assert worse.worth is Verdict.NOT
    close = first(made({**tree((64, 2.00, 5), (128, 2.001, 5))}, noise=0.05))
    assert close.other == "autoregressive" and len(close.tied) == 1
    assert answers([made({"dflash": (2.1, 3.5)})]) == []


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), min_size=3, max_size=8), st.integers(0, 2**16))
def test_ratio_of_lengths_is_of_the_pooled_ones(counts, seed):
    draw = np.random.default_rng(seed)
    other = [(int(draw.integers(0, 60)), int(draw.integers(1, 8))) for _ in counts]
    rows = [
        ("r", "c", f"p{i}", arm, "math", a, n, 0.0)
        for arm, all_ in (("a", counts), ("b", other))
        for i, (a, n) in enumerate(all_)
    ]
    names = ["results", "cell_id", "prompt_id", "arm", "category", "accepted", "rounds", "log_speedup"]
    compared = Compared(pd.DataFrame(rows, columns=names))
    found = compared.lengths("a", "b")
    assert found.point == pytest.approx(compared.length("a") / compared.length("b"))
    assert not found.low > found.point * (1 + 1e-9) and not found.high < found.point * (1 - 1e-9)


def test_between_pairs_by_prompt():
    left, right = made(USUAL, prompts=20), made(USUAL, prompts=12)
    assert between(left.compared, right.compared, "ddtree-64").n == 12
    assert between(left.compared, right.compared, "ddtree-64").point == pytest.approx(1, abs=0.05)
    assert between(left.compared, right.compared, "nothing").n == 0
