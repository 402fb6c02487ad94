"""Statistics: acceptance in all its words, pairing, and intervals that cover what they claim."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records_fixture import AR, PROMPTS, record, speed, timed

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


@pytest.mark.parametrize("n", [24, 100])
@pytest.mark.parametrize("skewed", [False, True])
def test_coverage(n, skewed):
    """95 % intervals hold the true speed-up in 93 to 97 % of simulated cells: prompts differ, repeats are noisy."""
    rng = np.random.default_rng(7)
    covered, cells = 0, 1500
    for _ in range(cells):
        prompts = rng.gamma(2, 0.2, n) - 0.4 if skewed else rng.normal(0, 0.3, n)
        values = 0.7 + prompts + rng.normal(0, 0.05, (3, n)).mean(axis=0)
        _, low, high, _ = stats.bootstrap_ci(values, resamples=2000)
        covered += low <= 0.7 <= high
    assert 0.93 <= covered / cells <= 0.97
