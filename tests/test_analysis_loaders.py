"""Pairs, intervals and frontiers are those of the tables, and say what is wrong in a sentence."""

from __future__ import annotations

import doctest
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import records_fixture
from records_fixture import AR, CELL

import analysis
from analysis import bootstrap_ci, frontier, load_requests, load_runs, loaders, pair, stats
from methods.base import Refusal

EXAMPLE = Path(__file__).parents[1] / "results" / "example"


@pytest.fixture(scope="module")
def requests(tmp_path_factory):
    return load_requests(records_fixture.make_results(tmp_path_factory.mktemp("made")))


def test_the_examples_in_the_docstrings_hold(monkeypatch):
    monkeypatch.chdir(EXAMPLE.parents[1])
    names = {name: getattr(analysis, name) for name in analysis.__all__}
    done = doctest.testmod(loaders, extraglobs=names)
    assert done.attempted >= 7 and not done.failed


def test_a_pair_is_a_request_beside_the_baselines(requests):
    pairs = pair(requests, "dflash")
    assert len(pairs) == pairs[["prompt_id", "turn", "repeat"]].drop_duplicates().shape[0]
    assert set(pairs["arm"]) == {"dflash"} and set(pairs["baseline"]) == {AR}
    for index, prompt in enumerate(records_fixture.PROMPTS):
        mine = pairs[pairs["prompt_id"] == prompt]
        assert len(mine) == records_fixture.REPEATS
        assert np.allclose(mine["speedup"], records_fixture.speed("dflash", index))
        assert np.allclose(mine["tpot_baseline_s"] / mine["tpot_s"], mine["speedup"])
        assert np.allclose(np.exp(mine["log_speedup"]), mine["speedup"])
    assert np.allclose(pairs["acceptance_length"], 1 + records_fixture.ARMS["dflash"].accepted)


def test_any_arm_of_the_same_sittings_can_be_the_baseline(requests):
    there, back = pair(requests, "ddtree-16", "dflash"), pair(requests, "dflash", "ddtree-16")
    assert len(there) and np.allclose(there["speedup"] * back["speedup"], 1)
    assert pair(requests, "ddtree-64", "dflash").empty  # of another sitting


def test_an_arm_that_is_not_there_is_named_with_those_that_are(requests):
    with pytest.raises(Refusal, match=r"arm ddtree-17 has no requests here: .*ddtree-16"):
        pair(requests, "ddtree-17")


@pytest.mark.parametrize("cell_id", [None, "5cf22cd58636"])
def test_the_interval_of_pairs_is_the_one_of_the_tables(cell_id):
    cell = EXAMPLE if cell_id is None else EXAMPLE / "cells" / cell_id
    requests = load_requests(cell)
    for (name, arm), row in load_runs(cell).set_index(["cell_id", "arm"]).iterrows():
        if arm == AR:
            continue
        pairs = pair(requests[requests["cell_id"] == name], arm)
        found = bootstrap_ci(pairs)
        assert np.allclose(found[:3], row[["speedup", "speedup_low", "speedup_high"]].astype(float), rtol=1e-6)
        assert np.allclose(found, bootstrap_ci(pairs["speedup"], pairs["prompt_id"], geometric=True), rtol=1e-4)


def test_clusters_count_once_however_often_they_were_asked():
    once = bootstrap_ci([1.0, 2.0, 4.0, 8.0, 3.0])
    often = bootstrap_ci([1.0, 2.0, 4.0, 8.0, 3.0] * 7, clusters=["a", "b", "c", "d", "e"] * 7)
    assert np.allclose(often, once) and often.n == 5
    assert bootstrap_ci([1.0, 2.0, 4.0, 8.0, 3.0] * 7).n == 35
    assert bootstrap_ci([1.0, math.nan, 3.0], clusters=["a", "b", "c"]).n == 2
    assert bootstrap_ci([1.0, 2.0]) == stats.bootstrap_ci([1.0, 2.0])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: bootstrap_ci([1.0, 0.0], geometric=True), "mean of 0 is not accepted"),
        (lambda: bootstrap_ci([1.0, 2.0], clusters=["a"]), "1 clusters for 2 numbers"),
        (lambda: bootstrap_ci(pd.DataFrame(), clusters=["a"]), "bring their prompts"),
        (lambda: frontier(pd.DataFrame({"a": [1], "b": [1]}), "a", "b", lower=["c"]), "lower=c"),
    ],
)
def test_what_makes_no_sense_is_refused(call, said):
    with pytest.raises(Refusal, match=said):
        call()


def test_the_frontier_holds_what_nothing_beats():
    runs = pd.DataFrame(
        {
            "arm": list("abcdefg"),
            "status": ["complete"] * 5 + ["invalid", "drifted"],
            "x": [1.0, 2.0, 3.0, 2.0, math.nan, 9.0, 0.5],
            "y": [5.0, 4.0, 1.0, 4.0, 9.0, 9.0, 5.0],
        }
    )
    assert list(frontier(runs, "x", "y")["arm"]) == ["a", "b", "d", "c"]
    assert list(frontier(runs, "x", "y", lower=["x"])["arm"]) == ["g"]
    assert list(frontier(runs.drop(columns="status"), "x", "y")["arm"]) == ["f"]
    assert frontier(runs.iloc[:0], "x", "y").empty


def test_the_frontier_of_the_example_joins_arms_of_it():
    runs = load_runs(EXAMPLE)
    best = frontier(runs[(runs["workload"] == "smoke") & (runs["engine"] == "reference")])
    assert len(best) and set(best["cell_id"]) == {"5cf22cd58636"}
    assert CELL not in set(best["cell_id"])


def test_the_frontier_of_the_served_cells_joins_their_concurrencies():
    runs = load_runs(EXAMPLE)
    best = frontier(runs[runs["engine"] == "vllm"])
    assert list(best["arm"]) == ["dflash", "dflash"] and list(best["concurrency"]) == [4, 1]
    loaded = best[best["concurrency"] == 4]
    assert (loaded["tokens_per_s_per_gpu"] == loaded["throughput_tokens_per_s"]).all()
