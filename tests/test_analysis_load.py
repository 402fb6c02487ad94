"""The three tables: columns, what counts, running folders, several folders, and damage."""

import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from records_fixture import AR, ARMS, CELL, N_OUTPUT, OTHER, PROMPTS, REPEATS, STAGES, make_results, speed, timed

from analysis import load_requests, load_rounds, load_runs
from analysis.records import KEYS
from methods.base import Refusal

PROMISED = {
    *("cell_id", "arm", "method", "budget", "engine", "tp", "model", "drafter", "dtype", "workload", "temperature"),
    *("concurrency", "status", "n_requests", "acceptance_length", "acceptance_length_per_request", "tokens_per_round"),
    *("speedup", "speedup_low", "speedup_high", "speedup_e2e", "ttft_s", "tpot_s", "tpot_p50_s", "tpot_p95_s"),
    *("tpot_p99_s", "e2e_s", "tokens_per_s", "peak_mem_bytes", "true_violations", "oracle_rounds", "oracle_max_gap"),
    "oracle_disagreements",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def results(tmp_path):
    return make_results(tmp_path)


def arm_of(runs, arm):
    return runs.set_index("arm").loc[arm]


def test_runs_have_the_promised_columns_in_the_order_of_tables(shared):
    runs = load_runs(shared)
    assert set(runs.columns) >= PROMISED
    assert runs["arm"].tolist() == [AR, "dflash", "ddtree-16", "ddtree-64", "ddtree-256", "ddtree-1024"]
    assert runs["status"].tolist() == ["complete"] * 4 + ["invalid", "failed"]
    assert runs["budget"].dtype == "float64"
    assert runs["budget"].tolist()[2:] == [16, 64, 256, 1024] and runs["budget"].isna().tolist()[:2] == [True, True]
    assert set(runs["dtype"]) == {"float32"}  # asked for as auto
    assert (runs["oracle_rounds"] == 0).all() and runs["oracle_max_gap"].isna().all()
    assert runs["peak_mem_bytes"].isna().all() and (runs["concurrency"] == 1).all()


def test_the_figures_of_an_arm(shared):
    arm = arm_of(load_runs(shared), "dflash")
    tpots = [line["tpot_s"] for line in timed(["dflash"])]
    assert arm["n_requests"] == len(PROMPTS) * REPEATS
    assert arm["acceptance_length"] == 2
    assert arm["tokens_per_round"] == pytest.approx(29 / 15)
    assert arm["tpot_s"] == pytest.approx(np.mean(tpots))
    assert arm["tpot_p99_s"] == pytest.approx(np.quantile(tpots, 0.99))
    whole = [0.05 + tpot * (N_OUTPUT - 1) for tpot in tpots]
    assert arm["e2e_s"] == pytest.approx(np.mean(whole))
    assert arm["tokens_per_s"] == pytest.approx(N_OUTPUT * len(whole) / sum(whole))


def test_speedups_are_formed_within_a_sitting(shared):
    """ddtree-64 was added when the machine was half as fast, which its speed-up does not show."""
    runs = load_runs(shared)
    for arm in ("dflash", "ddtree-16", "ddtree-64"):
        expected = math.exp(np.mean([math.log(speed(arm, i)) for i in range(len(PROMPTS))]))
        assert arm_of(runs, arm)["speedup"] == pytest.approx(expected)
    assert arm_of(runs, AR)["speedup"] == 1
    assert arm_of(runs, AR)["n_requests"] == len(PROMPTS) * REPEATS  # asked again in sitting 1, counted once
    assert arm_of(runs, "ddtree-64")["sittings"] == "1"
    slowed = arm_of(runs, "ddtree-64")
    assert slowed["speedup_e2e"] < slowed["speedup"]


def test_runs_by_category(shared):
    runs = load_runs(shared, by="category")
    assert runs["category"].tolist() == ["code"] * 6 + ["math"] * 6
    chosen = runs[(runs["arm"] == "ddtree-16") & (runs["category"] == "math")].iloc[0]
    assert chosen["n_prompts"] == 3
    assert chosen["speedup"] == pytest.approx(math.exp(np.mean([math.log(speed("ddtree-16", i)) for i in (3, 4, 5)])))


def test_an_invalid_or_failed_baseline_gives_no_speedups(results):
    file = results / "cells" / CELL / "arms" / f"{AR}.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"status": "invalid"}))
    runs = load_runs(results)
    assert runs["speedup"].isna().all() and runs["tpot_s"].notna().sum() == 6


def test_violations_make_an_arm_invalid_whatever_was_written(results):
    file = results / "cells" / CELL / "arms" / "ddtree-256.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"status": "complete"}))
    arm = arm_of(load_runs(results), "ddtree-256")
    assert (arm["status"], arm["true_violations"]) == ("invalid", 1)


def test_unfinished_arms_are_shown_on_request(shared):
    assert OTHER not in set(load_runs(shared)["cell_id"])
    runs = load_runs(shared, unfinished=True)
    running = runs[runs["cell_id"] == OTHER]
    assert running["status"].tolist() == ["pending", "pending"] and running["n_requests"].tolist() == [4, 3]


def test_requests_are_unique_and_complete(shared):
    requests = load_requests(shared)
    assert not requests.duplicated(list(KEYS)).any()
    assert set(requests["phase"]) == {"warmup", "timed", "profile"}
    profile = requests[requests["phase"] == "profile"].iloc[0]
    assert profile[list(STAGES)].to_dict() == STAGES
    assert requests.loc[requests["phase"] == "timed", "draft_s"].isna().all()
    line = requests[requests["prompt_id"] == "math-1"].iloc[0]
    assert line["prompt_ids"] == [5, 6, 10] and len(line["output_ids"]) == N_OUTPUT and line["answer"] == "12"
    assert line["tree_checksum"] == -(2**62)
    broken = requests[(requests["arm"] == "ddtree-256") & (requests["true_violations"] > 0)]
    assert broken["max_gap"].tolist() == [math.inf]
    assert requests["answer"].isna().sum() > 0


def test_exact_match_is_known_before_the_tables_are_folded(results):
    (results / "cells" / CELL / "requests.parquet").unlink()
    requests = load_requests(results)
    timed_ones = requests[(requests["phase"] == "timed") & (requests["arm"] == "ddtree-16")]
    assert timed_ones.loc[timed_ones["prompt_id"] == "math-1", "exact_match"].tolist() == [False, False]
    assert timed_ones.loc[timed_ones["prompt_id"] != "math-1", "exact_match"].all()
    alone = requests[(requests["phase"] == "warmup") & (requests["arm"] == AR)]
    assert alone["exact_match"].tolist() == [True]


def test_parquet_and_lines_give_the_same_tables(results):
    cell = results / "cells" / CELL
    tables = load_runs(results), load_requests(results), load_rounds(results)
    for sitting in cell.glob("sittings/*/requests.jsonl"):
        sitting.rename(sitting.with_suffix(".away"))
    packed = load_runs(cell), load_requests(cell), load_rounds(cell)
    for sitting in cell.glob("sittings/*/requests.away"):
        sitting.rename(sitting.with_suffix(".jsonl"))
    (cell / "requests.parquet").unlink()
    plain = load_runs(cell), load_requests(cell), load_rounds(cell)
    for one, other, both in zip(packed, plain, tables, strict=True):
        assert len(one) > 0
        pd.testing.assert_frame_equal(one, other)
        pd.testing.assert_frame_equal(one, both[both["cell_id"] == CELL].reset_index(drop=True))


def test_stale_tables_are_passed_over(results):
    file = results / "cells" / CELL / "sittings" / "1" / "requests.jsonl"
    extra = json.dumps(timed(["ddtree-16"], sitting=1)[0])
    before = len(load_requests(results))
    file.write_text(file.read_text() + extra + "\n")
    assert len(load_requests(results)) == before + 1


def test_a_torn_last_line_is_not_yet_a_record(results):
    file = results / "cells" / OTHER / "sittings" / "0" / "requests.jsonl"
    whole = file.read_bytes()
    before = len(load_requests(results))
    file.write_bytes(whole + whole.split(b"\n")[0])  # readable, yet without its end
    assert len(load_requests(results)) == before
    file.write_bytes(whole + whole[:40])
    assert len(load_requests(results)) == before
    file.write_bytes(whole[:40] + b"\n" + whole)
    with pytest.raises(Refusal, match=r"requests\.jsonl, line 1 is damaged"):
        load_requests(results)


def test_rounds(shared):
    rounds = load_rounds(shared)
    requests = load_requests(shared)
    assert rounds.columns.tolist() == [*KEYS, "round", "accepted", "emitted", "cut", "results"]
    assert len(rounds) == requests["n_rounds"].sum()
    one = rounds[(rounds["arm"] == "dflash") & (rounds["prompt_id"] == "code-1") & (rounds["phase"] == "timed")]
    one = one[one["repeat"] == 0]
    assert one["round"].tolist() == list(range(15))
    assert one["cut"].tolist() == [""] * 14 + ["length"]
    assert 1 + one["emitted"].sum() == N_OUTPUT


def test_several_folders_are_kept_apart(tmp_path):
    make_results(tmp_path / "a")
    make_results(tmp_path / "b")
    runs = load_runs(tmp_path)
    assert sorted(set(runs["results"])) == ["a/results", "b/results"]
    assert len(runs) == 2 * len(ARMS) and runs["n_requests"].max() == len(PROMPTS) * REPEATS
    assert not load_requests(tmp_path).duplicated([*KEYS, "results"]).any()


def test_cells_without_a_request_give_empty_tables_with_all_columns(results):
    for file in results.glob("cells/*/sittings/*/requests.jsonl"):
        file.unlink()
    for file in results.glob("cells/*/*.parquet"):
        file.unlink()
    assert len(load_requests(results)) == 0 and "n_rounds" in load_requests(results).columns
    assert len(load_rounds(results)) == 0 and "cut" in load_rounds(results).columns
    runs = load_runs(results)
    assert runs["n_requests"].tolist() == [0] * len(ARMS) and runs["speedup"].isna().all()
    assert len(load_runs(results, by="category")) == len(ARMS)


def test_refusals_are_sentences(tmp_path, results):
    with pytest.raises(Refusal, match="does not exist"):
        load_runs(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(Refusal, match="holds no results"):
        load_runs(tmp_path / "empty")
    cell = results / "cells" / CELL / "cell.json"
    content = json.loads(cell.read_text())
    cell.write_text(json.dumps(content | {"schema_version": 2}))
    with pytest.raises(Refusal, match="schema_version 2"):
        load_runs(results)
    del content["settings"]["tp"]
    cell.write_text(json.dumps(content))
    with pytest.raises(Refusal, match=r"settings\.tp is missing"):
        load_runs(results)
    cell.write_text("{")
    with pytest.raises(Refusal, match="is damaged"):
        load_runs(results)


def test_importing_the_loaders_is_light():
    heavy = "[m for m in ('torch', 'transformers', 'matplotlib', 'rich') if m in sys.modules]"
    code = f"from analysis import load_runs, load_requests, load_rounds; import sys; print({heavy})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
