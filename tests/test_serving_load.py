"""Many requests in flight at a served engine: loads through the whole harness against a fake vLLM, their figures, and
every fault while eight requests are at it."""

from __future__ import annotations

import time

import pytest
from fake_vllm import truth
from fake_world import WORDS
from test_serving import ASKED, FAILURES, FAULTS, run, served  # noqa: F401

from analysis import load_requests, load_runs
from analysis.load_figures import LOAD_FIGURES, load_traces
from analysis.load_window import Slos
from harness.crowd import LOADS, TRACES, check_load
from harness.load import ClosedLoop, drive
from harness.records import read_json, read_lines, sitting_lines
from methods.base import EngineSpec, ModelSpec, Request
from methods.dflash import DFlash
from methods.engines.http import ServerError
from methods.engines.vllm import VllmEngine, kv_space_gib

PAIR = ModelSpec("tiny", "builtin:tiny/target", "builtin:tiny/drafter")


def test_a_closed_loop_through_the_whole_harness(served):  # noqa: F811
    done = run(served, "concurrency=2", "repeats=3")
    assert done.returncode == 0, done.stderr
    assert "concurrency 2" in done.stdout
    timed = [line for line in sitting_lines(served.cell) if line["phase"] == "timed"]
    assert sorted((line["arm"], line["prompt_id"], line["repeat"]) for line in timed) == sorted(
        (arm, word, repeat) for arm in ("autoregressive", "dflash") for word in WORDS for repeat in range(3)
    )
    assert all(line["output_ids"] == truth(line["prompt_ids"], line["n_output"]) for line in timed)
    assert all(line["true_violations"] == 0 and line["energy_j"] is None for line in timed)
    assert served.arm("dflash")["verify"] == "exact" and served.arm("autoregressive")["verify"] is None
    engine = read_json(served.cell / "sittings/0/environment.json")["engine"]
    assert engine["max_running_requests"] == 2
    assert all("--max-num-seqs 2" in engine[f"server_{arm}"] for arm in ("autoregressive", "dflash"))
    loads = read_lines(served.cell / "sittings/0" / LOADS)
    assert [(load["arm"], load["load"], load["requests"]) for load in loads] == [
        ("autoregressive", 0, 8),
        ("dflash", 1, 15),
        ("autoregressive", 2, 7),
    ]
    assert all(load["preemptions"] == 0 and load["loop_lag_max_s"] >= load["loop_lag_p99_s"] for load in loads)
    served.assert_no_process_left()
    _figures_are_those_of_the_steady_windows(served)


def _figures_are_those_of_the_steady_windows(served):  # noqa: F811
    traces, requests = load_traces(served.results), load_requests(served.results)
    assert len(traces) == 30 and traces["error"].isna().all()
    steady = traces.groupby(["arm", "load"])["steady"].sum()
    assert steady.to_dict() == {("autoregressive", 0): 4, ("autoregressive", 2): 3, ("dflash", 1): 11}
    keys = ["cell_id", "sitting", "phase", "arm", "prompt_id", "turn", "repeat"]
    both = requests.merge(traces, on=keys, suffixes=("", "_traced"), validate="one_to_one")
    assert (both["n_output"] == both["n_output_traced"]).all()
    elapsed = (both["last_token_s"] - both["scheduled_s"]).where(both["steady"])
    assert both["e2e_s"].to_numpy() == pytest.approx(elapsed.to_numpy(), nan_ok=True)
    runs = load_runs(served.results, slos=Slos(ttft_s=30.0)).set_index("arm")
    assert (runs["n_requests"] == 15).all() and runs["n_steady"].to_dict() == {"autoregressive": 7, "dflash": 11}
    assert runs.loc[:, list(LOAD_FIGURES)].notna().all(axis=None)
    assert (runs["goodput_per_s"] == runs["requests_per_s"]).all() and (runs["preemptions"] == 0).all()
    assert (runs["tokens_per_s_per_gpu"] == runs["throughput_tokens_per_s"]).all() and runs["saturated"].isna().all()
    assert load_runs(served.results)["goodput_per_s"].isna().all()
    counted = both[both["steady"] & (both["arm"] == "dflash")]
    assert runs.loc["dflash", "ttft_s"] == pytest.approx(counted["ttft_s"].mean())
    assert load_runs(served.results, by="category")["throughput_tokens_per_s"].isna().all()


def test_an_open_loop_keeps_its_arrivals_whatever_the_server_does(served):  # noqa: F811
    done = run(served, "concurrency=4", "request_rate=40", "burstiness=2", "repeats=2")
    assert done.returncode == 0, done.stderr
    assert "40 requests/s" in done.stdout
    traces = load_traces(served.results)
    due = {place: list(load["scheduled_s"].sort_values()) for place, load in traces.groupby("load")}
    assert due[0] == due[1][:5] == due[2] and len(due[1]) == 10
    assert (traces["first_token_s"] > traces["scheduled_s"]).all()
    runs = load_runs(served.results)
    assert (runs["request_rate"] == 40).all() and runs["saturated"].notna().all()


def test_what_a_killed_load_left_the_next_sitting_asks(served):  # noqa: F811
    process = served.start(*ASKED, "concurrency=2", "repeats=3", FAKE_VLLM="dflash:hang")
    served.wait_for(f"cells/*/sittings/0/{TRACES}")
    served.wait_for("cells/*/sittings/0/server-1-dflash.log")
    process.kill()
    process.communicate(timeout=20)
    served.assert_no_process_left()
    assert run(served, "concurrency=2", "repeats=3").returncode == 0
    assert served.arm("dflash")["status"] == served.arm("autoregressive")["status"] == "complete"
    timed = load_requests(served.results).query("phase == 'timed' and sitting == 0")
    assert len(timed) == 8 and (timed["arm"] == "autoregressive").all()
    assert (load_runs(served.results)["n_requests"] == 15).all()


def test_a_fault_among_many_fails_its_arm_alone(served):  # noqa: F811
    done = run(served, "concurrency=8", "repeats=7", fault="dflash:die", after=40)
    assert done.returncode == 1
    failed = served.arm("dflash")
    assert failed["status"] == "failed" and FAILURES["die"] in failed["reason"]
    assert "Error: CUDA" in failed["log_tail"]
    errors = load_traces(served.results).query("arm == 'dflash'")["error"]
    assert errors.notna().any()  # what was in flight when the first of them failed is not told
    assert served.arm("autoregressive")["status"] == "complete"
    served.assert_no_process_left()


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ("exit", "mute")])
def test_a_fault_among_eight_is_a_sentence_at_once(served, fault, monkeypatch):  # noqa: F811
    monkeypatch.setenv("FAKE_VLLM", f"dflash:{fault}")
    monkeypatch.setenv("FAKE_WORLD", str(served.folder))
    monkeypatch.setattr("methods.engines.served.LAST_S", 0.2)  # none of these ends its server
    monkeypatch.setattr("methods.engines.server.POLL_S", 0.02)
    monkeypatch.setattr(VllmEngine, "stall_s", 1.0 if fault == "hang" else 60.0)
    asked = [Request(f"p{index}", (5, 6, index), 20, (2,)) for index in range(40)]

    def whole(answer):
        if answer.trace.error:
            raise ServerError(answer.trace.error)
        engine.finished(answer.chunks, answer.trace.e2e_s)

    with VllmEngine(EngineSpec(PAIR, python=str(served.folder / "python"), concurrency=8)) as engine:
        engine.open((DFlash(),))
        began = time.monotonic()
        with pytest.raises(ServerError, match=FAULTS[fault].replace("0.5 s", "1 s")):
            engine.crowd(DFlash(), lambda client: drive(client, asked, ClosedLoop(8), whole, 60))
        assert time.monotonic() - began < 20
    served.assert_no_process_left()


def test_ctrl_c_with_eight_in_flight_leaves_no_server(served):  # noqa: F811
    process = served.start(*ASKED, "concurrency=8", "repeats=7", FAKE_VLLM="dflash:hang")
    served.wait_for("cells/*/sittings/0/server-1-dflash.log")
    process.send_signal(2)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130 and "repeat the command to continue" in out
    served.assert_no_process_left()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("engine=reference", "concurrency=2"), "concurrency=2 is not accepted: engine=reference answers one request"),
        (("request_rate=0",), "request_rate=0 is not accepted: a number above 0 or null is."),
        (("request_rate=1", "burstiness=-1"), "burstiness=-1 is not accepted: a number above 0 is."),
        (("concurrency=4",), "concurrency=4 is not accepted with 5 prompts and repeats=1: blocks of 2 requests end"),
    ],
)
def test_what_is_no_load_is_refused(served, words, said):  # noqa: F811
    done = served.run(*ASKED, *words)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not served.results.exists()


@pytest.mark.parametrize("slots", [2, 3, 8, 64])
def test_the_repeats_that_a_refusal_names_are_enough_and_fewer_are_not(slots):
    from dataclasses import replace

    from test_cells import CELL

    from methods.base import Refusal

    settings = replace(CELL, concurrency=slots, repeats=1)
    with pytest.raises(Refusal, match=r"repeats=\d+ or more") as refused:
        check_load(settings, 5)
    enough = int(str(refused.value).rsplit("repeats=", 1)[1].split()[0])
    check_load(replace(settings, repeats=enough), 5 * enough)
    with pytest.raises(Refusal):
        check_load(replace(settings, repeats=enough - 1), 5 * (enough - 1))


def test_room_for_keys_and_values_grows_with_the_requests_at_once():
    sizes = [kv_space_gib(EngineSpec(PAIR, max_length=4000, concurrency=slots)) for slots in (1, 64)]
    assert sizes[0] == 1 and sizes[1] > 4
