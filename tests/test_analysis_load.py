"""The three tables: columns, what counts, running folders, several folders, and damage."""

import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from records_fixture import (
    AR,
    ARMS,
    CELL,
    JOULES,
    N_OUTPUT,
    OTHER,
    PROMPTS,
    REPEATS,
    STAGES,
    make_results,
    profile,
    sentinel,
    speed,
    timed,
    write_cell,
)

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


def test_the_latency_words_of_an_arm(shared):
    arm = arm_of(load_runs(shared), "dflash")
    lines = timed(["dflash"])
    steps = [line["decode_s"] / 15 for line in lines]  # 15 rounds each
    assert arm["step_s"] == pytest.approx(np.mean(steps))
    assert arm["step_p50_s"] == pytest.approx(np.median(steps))
    assert arm["step_p95_s"] == pytest.approx(np.quantile(steps, 0.95))
    assert arm["tokens_per_target_forward"] == pytest.approx(30 / 16)
    assert arm["tokens_per_s_per_user"] == pytest.approx(29 * 12 / sum(line["decode_s"] for line in lines))
    assert arm["tokens_per_s_per_gpu"] == arm["tokens_per_s"]
    assert arm["energy_j_per_token"] == pytest.approx(JOULES)
    running = load_runs(shared, unfinished=True)
    running = running[running["cell_id"] == OTHER]  # at tp 2
    assert running["tokens_per_s_per_gpu"].tolist() == pytest.approx((running["tokens_per_s"] / 2).tolist())


def test_energy_is_of_the_requests_that_have_one_and_of_no_overlapping_ones(tmp_path):
    lines = timed([AR, "dflash"])
    for line in lines:
        if line["repeat"] == 1 or line["arm"] == "dflash":
            line["energy_j"] = None
    for cell, slots in ("e1", 1), ("e4", 4):
        found = [line | {"cell_id": cell} for line in lines]
        write_cell(
            tmp_path / "results", cell, [found], dict.fromkeys([AR, "dflash"], "complete"), {}, concurrency=slots
        )
    runs = load_runs(tmp_path / "results").set_index(["cell_id", "arm"])
    assert runs["energy_j_per_token"].fillna(-1).tolist() == pytest.approx([JOULES, -1, -1, -1])
    assert runs.loc["e4", "tokens_per_s_per_gpu"].tolist() == pytest.approx(
        (4 * runs.loc["e4", "tokens_per_s"]).tolist()
    )


def test_stages_and_the_identity(shared):
    runs = load_runs(shared)
    for arm, residual in (AR, 0), ("dflash", 0), ("ddtree-64", 0.1):
        row = arm_of(runs, arm)
        lines = profile([arm], sitting=int(arm == "ddtree-64"), whole=1 / (1 + residual))
        assert row["n_profiled"] == 3
        for name in STAGES:
            total = sum(line["stages"][name] for line in lines)
            assert row[name] == pytest.approx(total / sum(len(line["rounds"]) for line in lines))
        measured = math.exp(np.mean([math.log(speed(arm, i)) for i in range(3)]))
        assert row["identity_measured"] == pytest.approx(measured)
        assert row["identity_residual"] == pytest.approx((1 + residual) * 0.99 - 1)  # AR's last sentinel
        assert row["identity_predicted"] == pytest.approx(measured * (1 + row["identity_residual"]))
    by_category = load_runs(shared, by="category").set_index(["category", "arm"])
    assert by_category.loc["math", "n_profiled"].tolist() == [0] * 6
    assert by_category.loc["math", "draft_s"].isna().all()


def test_speedup_over_requests_with_the_baselines_output(shared):
    arm = arm_of(load_runs(shared), "ddtree-16")
    same = [math.log(speed("ddtree-16", i)) for i, prompt in enumerate(PROMPTS) if prompt != "math-1"]
    assert arm["n_differing"] == 2
    assert arm["speedup_matched"] == pytest.approx(math.exp(np.mean(same)))
    assert arm["speedup_matched_low"] < arm["speedup_matched"] < arm["speedup_matched_high"]
    other = arm_of(load_runs(shared), "dflash")
    assert other["n_differing"] == 0 and other["speedup_matched"] == other["speedup"]


def drifted_cell(root, moves, arms=(AR, "dflash")):
    lines = [timed(list(arms)) + sentinel(0, moves), timed([AR, "ddtree-16"], sitting=1) + sentinel(1)]
    return write_cell(root / "results", CELL, lines, dict.fromkeys([*arms, "ddtree-16"], "complete"), {})


def test_arms_of_a_sitting_in_which_the_machine_moved_are_drifted(tmp_path):
    runs = load_runs(drifted_cell(tmp_path, (1, 1.05, 0.96)))
    assert runs["status"].tolist() == ["drifted", "drifted", "complete"]
    assert runs["drift"].tolist() == pytest.approx([0.05, 0.05, -0.01])
    assert runs["drift_sitting"].tolist() == [0, 0, 1] and runs["drift_place"].tolist() == ["middle", "middle", "end"]
    assert runs["speedup"].notna().all()


def test_what_is_invalid_or_pending_stays_so_on_a_drifting_machine(tmp_path):
    cell = drifted_cell(tmp_path, (1, 1.5))
    for arm, status in (AR, "pending"), ("dflash", "failed"):
        file = cell / "arms" / f"{arm}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"status": status}))
    assert load_runs(cell, unfinished=True)["status"].tolist() == ["pending", "failed", "complete"]


def test_acceptance_at_chance_needs_the_vocabulary_where_the_budget_is_large(tmp_path):
    rounds = [*[[0, 1, ""]] * 20, *[[1, 2, ""]] * 5]
    lines = timed([AR], rounds=[[0, 1, ""]] * 30) + timed(["ddtree-1024", "dflash"], rounds=rounds)
    cell = write_cell(tmp_path / "results", CELL, [lines], dict.fromkeys([AR, "dflash", "ddtree-1024"], "complete"), {})
    judged = load_runs(cell).set_index("arm")["at_chance"]
    assert judged.isna().tolist() == [True, False, False] and judged.tolist()[1:] == [False, False]
    (cell / "sittings" / "0" / "environment.json").write_text(json.dumps({"engine": {"vocab_size": 4096}}))
    assert load_runs(cell)["at_chance"].tolist()[1:] == [False, True]


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
    assert set(requests["phase"]) == {"warmup", "timed", "sentinel", "profile"}
    profile = requests[(requests["phase"] == "profile") & (requests["arm"] == "dflash")].iloc[0]
    assert (profile[list(STAGES)] / profile["decode_s"]).to_dict() == pytest.approx(STAGES)
    assert requests["energy_j"].tolist() == (JOULES * requests["n_output"]).tolist()
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


def test_damaged_rounds_name_their_record(results):
    file = results / "cells" / OTHER / "sittings" / "0" / "requests.jsonl"
    whole = [json.loads(line) for line in file.read_text().splitlines()]
    for changes, said in (
        ({"rounds": [[0, 1, ""]]}, r"1 \+ 1 emitted tokens and 30 output ids, yet n_output 30"),
        ({"rounds": [[3, 3, ""]]}, "number 0 and uncut, that accepted 3 and emitted 3"),
        ({"rounds": [[-1, 0, ""]]}, "accepted -1"),
        ({"rounds": [[4, 3, "stop"]]}, "cut by stop, that accepted 4 and emitted 3"),
        ({"output_ids": [1]}, "1 output ids, yet n_output 30"),
    ):
        lines = [whole[0], whole[1] | changes, *whole[2:]]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for load in (load_requests, load_rounds, load_runs):
            with pytest.raises(Refusal, match=said) as caught:
                load(results)
        assert "timed request of ddtree-64 for code-1 (sitting 0, turn 0, repeat 0)" in str(caught.value)
    del whole[1]["energy_j"]
    file.write_text("".join(json.dumps(line) + "\n" for line in whole))
    with pytest.raises(Refusal, match="a record lacks energy_j"):
        load_requests(results)


@pytest.mark.parametrize(
    ("name", "column", "said"),
    [
        ("requests", "n_output", "yet n_output 31"),
        ("requests", "accepted_uncut_sum", "accepted tokens in"),
        ("rounds", "emitted", "uncut, that accepted 0 and emitted 2"),
        ("rounds", "round", "does not hold the rounds of requests.parquet"),
    ],
)
def test_damaged_tables_name_their_record(results, name, column, said):
    file = results / "cells" / CELL / f"{name}.parquet"
    table = pq.read_table(file)
    values = table[column].to_pylist()
    values[0] += 1
    index = table.schema.get_field_index(column)
    pq.write_table(
        table.set_column(index, column, pa.array(values)).replace_schema_metadata(table.schema.metadata), file
    )
    with pytest.raises(Refusal, match=said) as caught:
        load_rounds(results)
    assert str(file.parent) in str(caught.value)


def test_rounds_of_parquet_add_up_to_the_output(results):
    file = results / "cells" / CELL / "rounds.parquet"
    table = pq.read_table(file)
    frame = table.to_pandas()
    last = frame.index[frame["cut"] == "length"][0]
    frame.loc[last, "emitted"] += 1
    pq.write_table(pa.Table.from_pandas(frame, table.schema, preserve_index=False), file)
    with pytest.raises(Refusal, match=r"1 \+ 30 emitted tokens, yet n_output 30"):
        load_rounds(results)


def test_rounds(shared):
    rounds = load_rounds(shared)
    requests = load_requests(shared)
    assert rounds.columns.tolist() == [
        *KEYS,
        "round",
        "accepted",
        "emitted",
        "cut",
        "shadow_accepted",
        "width",
        "results",
    ]
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
