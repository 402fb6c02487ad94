"""Statistics: acceptance in all its words, pairing, and intervals that cover what they claim."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records_fixture import AR, PROMPTS, WATCHED, profile, record, sentinel, speed, timed

from analysis import stats
from analysis.records import requests_frame, rounds_frame


def frame(records):
    return requests_frame(records).assign(results="r")


def two_unlike_requests():
    """Pooled and per-request acceptance differ; the cut round counts for tokens per round alone."""
    short = record("ddtree-16", "code-1", 0, rounds=[[3, 4, ""]], n_output=5)
    long = record("ddtree-16", "code-2", 0, rounds=[[0, 1, ""], [1, 2, ""], [0, 1, ""], [2, 2, "length"]], n_output=7)
    return [short, long]


def test_acceptance_words():
    requests = frame(two_unlike_requests())
    assert stats.acceptance_length(requests) == pytest.approx(1 + 4 / 4)
    assert stats.acceptance_length_per_request(requests) == pytest.approx(1 + (3 / 1 + 1 / 3) / 2)
    assert stats.tokens_per_round(requests) == pytest.approx(10 / 5)


def test_no_uncut_round_gives_nan_and_not_a_warning():
    requests = frame([record("dflash", "code-1", 0, rounds=[[1, 1, "stop"]], n_output=2)])
    assert math.isnan(stats.acceptance_length(requests))
    assert math.isnan(stats.acceptance_length_per_request(requests))
    assert stats.tokens_per_round(requests) == 1
    assert math.isnan(stats.tokens_per_round(requests.iloc[:0]))


def test_acceptance_by_depth_adds_up():
    rounds = rounds_frame(two_unlike_requests())
    by_depth = stats.acceptance_by_depth(rounds)
    assert by_depth["depth"].tolist() == [1, 2, 3]
    assert by_depth["rounds"].tolist() == [2, 1, 1]
    assert by_depth["marginal"].tolist() == [0.5, 0.25, 0.25]
    assert by_depth["conditional"].tolist() == [0.5, 0.5, 1.0]
    assert 1 + by_depth["marginal"].sum() == stats.acceptance_length(frame(two_unlike_requests()))
    histogram = stats.acceptance_histogram(rounds)
    assert histogram["rounds"].tolist() == [2, 1, 0, 1]
    assert histogram["share"].sum() == 1
    assert len(stats.acceptance_by_depth(rounds.iloc[:0])) == 0


def test_speedup_is_the_geometric_mean_of_paired_ratios():
    requests = frame(timed([AR, "ddtree-16"]) + timed([AR, "dflash"], sitting=1))
    pairs = stats.pair(requests)
    for arm in ("ddtree-16", "dflash"):
        mine = pairs[pairs["arm"] == arm]
        expected = math.exp(np.mean([math.log(speed(arm, i)) for i in range(len(PROMPTS))]))
        point, low, high, n = stats.speedup(mine)
        assert (point, n) == (pytest.approx(expected), len(PROMPTS))
        assert low < point < high
        assert stats.ratio_of_means(mine) != pytest.approx(point, rel=1e-6)
    assert stats.speedup(pairs[pairs["arm"] == AR])[:3] == (1, 1, 1)


def test_repeats_do_not_narrow_the_interval():
    once = stats.pair(frame(timed([AR, "dflash"])))
    once = once[once["arm"] == "dflash"]
    often = pd.concat([once.assign(repeat=once["repeat"] + 10 * k) for k in range(5)])
    assert stats.speedup(often) == pytest.approx(stats.speedup(once))


def test_the_turns_of_a_prompt_are_one_cluster():
    turns = [one | {"turn": turn} for turn in (0, 1, 2) for one in timed([AR, "dflash"])]
    pairs = stats.pair(frame(turns))
    once, thrice = (stats.speedup(some[some["arm"] == "dflash"]) for some in (pairs[pairs["turn"] == 0], pairs))
    assert len(pairs) == 3 * 2 * 2 * len(PROMPTS) and thrice.n == len(PROMPTS)
    assert thrice == pytest.approx(once)


def test_accuracy_is_of_prompts_with_an_answer():
    lines = [record(AR, "math-1", r, correct=r == 0) for r in (0, 1)] + [record(AR, "math-2", 0, correct=True)]
    lines += [record(AR, "math-1", 0, turn=1), record(AR, "code-1", 0)]
    assert stats.accuracy(frame(lines)) == (2, 0.75)
    n, share = stats.accuracy(frame([record(AR, "code-1", 0)]))
    assert n == 0 and math.isnan(share)


def test_a_prompt_answered_again_counts_once_and_with_its_own_baseline():
    """The first sitting was killed before AR answered code-2; the second asked both again."""
    first = [record(AR, "code-1", 0), record("dflash", "code-1", 0), record("dflash", "code-2", 0)]
    second = [record(arm, p, 0, sitting=1) for arm, p in [(AR, "code-1"), (AR, "code-2"), ("dflash", "code-2")]]
    requests = frame(first + second)
    kept = stats.one_each(requests)
    assert sorted(zip(kept["arm"], kept["prompt_id"], kept["sitting"], strict=True)) == [
        (AR, "code-1", 0),
        (AR, "code-2", 1),
        ("dflash", "code-1", 0),
        ("dflash", "code-2", 1),
    ]
    pairs = stats.pair(requests)
    assert np.exp(pairs.loc[pairs["arm"] == "dflash", "log_speedup"]).tolist() == pytest.approx([1.5, 1.65])


def test_single_tokens_and_missing_partners_leave_the_ratio():
    lonely = [record("dflash", "code-3", 0)]
    single = [record(arm, "code-2", 0, tpot_s=None, decode_s=0.0) for arm in (AR, "dflash")]
    pairs = stats.pair(frame([record(AR, "code-1", 0), record("dflash", "code-1", 0), *single, *lonely]))
    point, low, high, n = stats.speedup(pairs[pairs["arm"] == "dflash"])
    assert (point, n) == (pytest.approx(1.5), 1)
    assert math.isnan(low) and math.isnan(high)


def test_intervals_of_few_values():
    assert stats.bootstrap_ci([]).n == 0 and math.isnan(stats.bootstrap_ci([]).point)
    one = stats.bootstrap_ci([0.5, math.nan])
    assert (one.point, one.n) == (0.5, 1) and math.isnan(one.low) and math.isnan(one.high)
    two = stats.bootstrap_ci([0.0, 1.0])
    assert (two.low, two.high) == (pytest.approx(0.5 - 12.7062 / 2), pytest.approx(0.5 + 12.7062 / 2))
    assert stats.bootstrap_ci([0.3] * 7) == (pytest.approx(0.3), pytest.approx(0.3), pytest.approx(0.3), 7)


def test_intervals_are_reproducible_and_move_with_the_values():
    values = np.random.default_rng(3).gamma(2, 1, 20)
    first = stats.bootstrap_ci(values)
    stats.bootstrap_ci(np.arange(50.0))
    assert stats.bootstrap_ci(values) == first
    moved = stats.bootstrap_ci(values * 2 + 1)
    assert moved[:3] == pytest.approx([2 * x + 1 for x in first[:3]], rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=4, max_size=40))
def test_an_interval_holds_its_mean(values):
    point, low, high, _ = stats.bootstrap_ci(values)
    assert low <= point + 1e-9 and point - 1e-9 <= high


def test_large_samples_are_drawn_in_blocks(monkeypatch):
    values = np.random.default_rng(0).normal(size=40)
    whole = stats.bootstrap_ci(values)
    monkeypatch.setattr(stats, "_BLOCK", 40 * 999)
    assert stats.bootstrap_ci(values)[1:3] == pytest.approx(whole[1:3], abs=0.03)


def simulated(rng, n, repeats, skewed):
    """Logarithms of one cell's speed-ups, [n, repeats], whose expectation is 0.7.

    Prompts differ (skewed: most gain little, some much). Times have errors as on a busy machine: lognormal, and one in
    ten requests held up by a lognormal factor more. AR and the arm are as noisy as each other.
    """
    prompts = rng.lognormal(0, 0.5, n) - np.exp(0.125) if skewed else rng.normal(0, 0.3, n)

    def noise():
        held_up = (rng.random((n, repeats)) < 0.1) * rng.lognormal(-1.5, 0.5, (n, repeats))
        return rng.normal(0, 0.05, (n, repeats)) + held_up

    return 0.7 + prompts[:, None] + noise() - noise()


@pytest.mark.parametrize("n", [24, 100])
@pytest.mark.parametrize("skewed", [False, True])
def test_coverage(n, skewed):
    """95 % intervals hold the true speed-up in 93 to 97 % of simulated cells, repeats nested in prompts."""
    rng = np.random.default_rng(7)
    covered, cells, prompts = 0, 1500, np.repeat(np.arange(n), 3)
    for _ in range(cells):
        logs = simulated(rng, n, 3, skewed).ravel()
        _, low, high, found = stats.speedup({"prompt_id": prompts, "log_speedup": logs}, resamples=2000)
        covered += math.log(low) <= 0.7 <= math.log(high)
    assert found == n and 0.93 <= covered / cells <= 0.97


def test_repeats_taken_for_prompts_would_not_cover():
    """What nesting is for: the same simulation with every request as its own prompt."""
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(300):
        _, low, high, _ = stats.bootstrap_ci(simulated(rng, 24, 3, False).ravel(), resamples=1000)
        covered += low <= 0.7 <= high
    assert covered / 300 < 0.85


def drift_of(*lines):
    return stats.drift(frame([line for some in lines for line in some]))


def test_drift_beyond_three_percent_and_its_noise():
    found = drift_of(sentinel(0, (1, 1.02, 0.98)), sentinel(1, (1, 1.01, 1.05)))
    assert found[["sitting", "place"]].values.tolist() == [[0, "middle"], [0, "end"], [1, "middle"], [1, "end"]]
    assert found["shift"].tolist() == pytest.approx([math.log(x) for x in (1.02, 0.98, 1.01, 1.05)])
    assert found["standard_error"].tolist() == pytest.approx([0] * 4, abs=1e-12)
    assert found["drifted"].tolist() == [False, False, False, True]
    assert drift_of(sentinel(0, (1, 0.9)))["drifted"].tolist() == [True]  # faster is drift too; killed before its end


def test_drift_within_its_noise_is_not_drift():
    """Prompts move by 20, 0 and −5 %: 5 % on average, with a standard error of 7."""
    moves = sentinel(0, (1, 1, 1))
    for line, move in zip(moves[-3:], (1.2, 1.0, 0.95), strict=True):
        line["tpot_s"] *= move
    end = drift_of(moves).set_index("place").loc["end"]
    logs = np.log([1.2, 1.0, 0.95])
    assert end["shift"] == pytest.approx(logs.mean())
    assert end["standard_error"] == pytest.approx(logs.std(ddof=1) / math.sqrt(3))
    assert end["shift"] > 0.03 and not end["drifted"]


def test_drift_without_what_it_needs():
    columns = ["results", "cell_id", "sitting", "place", "shift", "standard_error", "drifted"]
    assert drift_of(timed([AR])).columns.tolist() == columns and drift_of(timed([AR])).empty
    assert drift_of(sentinel(0, (1,))).empty  # killed before the middle
    single = [line | {"tpot_s": None} for line in sentinel()]
    assert drift_of(single).empty
    lone = [line for line in sentinel(0, (1, 1.1, 1.02)) if line["prompt_id"] == "code-1"]
    assert drift_of(lone).set_index("place")["drifted"].to_dict() == {"middle": True, "end": False}


def identity_of(*lines):
    requests = frame([line for some in lines for line in some])
    return stats.identity(requests, stats.pair(requests)).set_index(["arm", "prompt_id"]).sort_index()


def test_the_identity_holds_where_stages_are_all_there_is():
    arms = [AR, "dflash"]
    found = identity_of(timed(arms), profile(arms))
    drawn_out = identity_of(timed(arms), profile([AR]), profile(["dflash"], whole=0.8))
    assert len(found) == 2 * len(WATCHED)
    assert found.loc["dflash", "log_measured"].tolist() == pytest.approx(
        [math.log(speed("dflash", i)) for i in range(3)]
    )
    slow = math.log(1.01) / 2  # repeat 1 is slower, and was not profiled
    assert (found["log_predicted"] - found["log_measured"]).tolist() == pytest.approx([slow] * 6)
    residual = drawn_out["log_predicted"] - drawn_out["log_measured"]
    assert residual["dflash"].tolist() == pytest.approx([slow - math.log(0.8)] * 3)


def test_a_sitting_of_profiling_alone_has_the_sentinel_to_compare_with():
    """The machine is half as fast in sitting 1, which the identity does not show."""
    arms = [AR, "dflash"]
    found = identity_of(timed(arms), sentinel(1, (1.0,)), profile(arms, sitting=1))
    assert (found["log_predicted"] - found["log_measured"]).tolist() == pytest.approx([0] * 6)
    unknown = identity_of(timed(arms), profile(arms, sitting=1))
    assert unknown["log_predicted"].isna().all() and unknown["log_measured"].notna().all()


def test_a_move_before_the_profiled_pass_does_not_show_in_the_identity():
    arms = [AR, "dflash"]
    slowed = profile(arms)
    for line in slowed:
        line["stages"] = {name: 3 * seconds for name, seconds in line["stages"].items()}
    found = identity_of(timed(arms), sentinel(0, (1, 1, 3)), slowed)
    assert (found["log_predicted"] - found["log_measured"]).tolist() == pytest.approx([0] * 6)


def test_acceptance_at_chance():
    def judged(accepted, rounds=100, budget=64, vocabulary=math.nan):
        columns = {"uncut_rounds": np.array([rounds]), "accepted_uncut_sum": np.array([accepted])}
        return stats.at_chance(columns, budget, vocabulary)

    assert judged(0) and judged(4) and not judged(5)
    assert not judged(0, rounds=19)  # too few to tell
    assert judged(30, budget=1024, vocabulary=4096) and not judged(39, budget=1024, vocabulary=4096)
    assert judged(300, budget=4096, vocabulary=4096) is False  # every token is a candidate, so that some match
    assert not judged(5, budget=math.nan, vocabulary=4096)


def test_tokens_per_target_forward():
    assert stats.tokens_per_target_forward(frame(two_unlike_requests())) == pytest.approx(12 / 7)
    assert math.isnan(stats.tokens_per_target_forward(frame([])))


def test_rates_reach_as_deep_as_asked():
    rounds = rounds_frame(two_unlike_requests())
    by_depth = stats.acceptance_by_depth(rounds, deepest=5)
    assert by_depth["rounds"].tolist() == [2, 1, 1, 0, 0]
    assert by_depth["conditional"].tolist()[:4] == [0.5, 0.5, 1.0, 0.0] and math.isnan(by_depth["conditional"][4])
    assert stats.acceptance_histogram(rounds, deepest=5)["rounds"].tolist() == [2, 1, 0, 1, 0, 0]
