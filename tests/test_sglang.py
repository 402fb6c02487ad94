"""SGLang's words: a real server's recorded answers, the order of verify steps, and, against a fake server, the whole
harness, every fault with its reason, no process left.

The recording is of SGLang 0.5.15 on a CPU, in float32 (`sglang_on_cpu`); `sglang_recorder.py` made it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from fake_sglang import STEPS, truth
from fake_world import TESTS, WORDS, FakeWorld
from hypothesis import given
from hypothesis import strategies as st
from sglang_recorder import CpuEngine, asked, stored

from harness.records import read_json, sitting_lines
from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, ModelSpec, Refusal, Request
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.environments import SGLANG
from methods.engines.http import ServerError
from methods.engines.served import Place, Told, rounds
from methods.engines.sglang import FAIR, SglangEngine, graphs
from methods.engines.sglang_client import SglangClient, chunk, log_probs, sampling, steps

PAIR = ModelSpec("tiny", "builtin:tiny/target", "builtin:tiny/drafter")
RECORDED = json.loads((TESTS / "test_sglang_recorded.json").read_text())
HYBRID = ModelSpec("tiny_hybrid", "builtin:tiny_hybrid/target", "builtin:tiny_hybrid/drafter")
TREES = (("disable_overlap_schedule", True), ("disable_decode_cuda_graph", True))
REQUEST = Request("p", (5, 6, 7), 40, (2,))


def events(raw: str) -> list[dict]:
    return [
        json.loads(line) for part in raw.split("\n\n") if (line := part.removeprefix("data: ")) not in ("", "[DONE]")
    ]


@pytest.mark.parametrize(
    ("arm", "prompt_id"),
    [(arm, prompt_id) for arm in ("autoregressive", "dflash") for prompt_id in RECORDED[arm]["answers"]],
)
def test_a_recorded_answer_is_the_built_in_engines(arm, prompt_id):
    """Its text, and what each round of it accepted."""
    answer, line = RECORDED[arm]["answers"][prompt_id], stored(arm)[prompt_id]
    assert answer["request"] == {**sampling(asked(line)), "stream": True}
    sizes: list[int] = []
    *chunks, last = [chunk(event, 0.0, sizes) for event in events(answer["raw"])]
    assert isinstance(last, Told) and last.decode_s > 0 and last.cached_tokens == 0
    output = [token for each in (*chunks, last) for token in each.token_ids]
    assert output == line["output_ids"] and last.finish_reason == line["finish_reason"]
    assert [list(one) for one in rounds(last.accepted, len(output), last.finish_reason)] == line["rounds"]


def test_recorded_log_probs_score_the_answer():
    teacher, decoded = RECORDED["prompt_log_probs"], RECORDED["decoded_log_probs"]
    output = RECORDED["autoregressive"]["answers"][teacher["prompt_id"]]["output_ids"]
    told = teacher["answer"]["meta_info"]
    rows = log_probs(told["input_token_logprobs"][1:], told["input_top_logprobs"][1:])
    assert len(rows) == len(output)
    assert all(max(row, key=row.get) == token for row, token in zip(rows, output, strict=True))
    figures = decoded["answer"]["meta_info"]
    narrow = log_probs(figures["output_token_logprobs"], figures["output_top_logprobs"])
    assert decoded["answer"]["output_ids"] == output
    for wide, row, token in zip(rows, narrow, output, strict=True):
        assert len(row) == 2 and wide[token] == pytest.approx(row[token], abs=1e-3)


def test_the_recorded_server_says_what_is_read_of_it():
    plain, drafting = (RECORDED[arm]["server_info"] for arm in ("autoregressive", "dflash"))
    assert RECORDED["version"] == SGLANG.version and plain["speculative_algorithm"] is None
    assert drafting["speculative_algorithm"] == "DFLASH" and drafting["speculative_num_draft_tokens"] == 16
    for told in (plain, drafting):
        assert all(name in told for name in FAIR) and graphs(told) == "eager"
        assert told["disable_radix_cache"] and told["max_running_requests"] == 1 and told["page_size"] == 1


def test_the_servers_own_acceptance_length_counts_the_prompts_token():
    """Why it is not used: it is too high by one token for each request, whatever the steps accepted."""
    for answer in RECORDED["dflash"]["answers"].values():
        told = events(answer["raw"])[-1]["meta_info"]
        counts = told["spec_correct_drafts_histogram"]
        whole = sum((accepted + 1) * count for accepted, count in enumerate(counts))
        assert sum(counts) == told["spec_verify_ct"] and whole >= told["completion_tokens"] - 1
        assert told["spec_accept_length"] == told["completion_tokens"] / told["spec_verify_ct"]


accepted_steps = st.lists(st.integers(0, 15), min_size=1, max_size=40)


def histogram(accepted: list[int]) -> list[int]:
    return [accepted.count(j) for j in range(max(accepted) + 1)]


@given(accepted_steps, st.data())
def test_steps_come_in_the_order_of_the_chunks(accepted, data):
    sizes = [count + 1 for count in accepted]
    lost = data.draw(st.integers(0, accepted[-1]))
    sizes[-1] -= lost
    assert steps([1, *sizes], histogram(accepted)) == tuple(accepted)
    assert steps([1 + sizes[0], *sizes[1:]], histogram(accepted)) == tuple(accepted)  # the prompt's token with them


@given(accepted_steps, st.data())
def test_merged_chunks_keep_every_step(accepted, data):
    sizes = [1]
    for count in accepted:
        if data.draw(st.booleans()):
            sizes[-1] += count + 1
        else:
            sizes.append(count + 1)
    found = steps(sizes, histogram(accepted))
    assert sorted(found) == sorted(accepted)
    assert 1 + sum(one.emitted for one in rounds(found, sum(sizes), "length")) == sum(sizes)


@pytest.mark.parametrize(("sizes", "counts"), [([1, 4], [0, 0, 1]), ([1, 1], [1, 0, 0, 0, 0, 0, 1])])
def test_steps_that_do_not_make_the_answer_are_an_error(sizes, counts):
    with pytest.raises(ServerError, match="verify steps of"):
        steps(sizes, counts)


def test_a_plain_answer_has_no_steps():
    assert steps([1, 1, 1], ()) == ()


def spec(**changes) -> EngineSpec:
    return EngineSpec(
        **{"model": PAIR, "device": "cuda", "dtype": "bfloat16", "max_length": 200, "python": sys.executable, **changes}
    )


def test_servers_differ_in_what_is_drafted_alone():
    plain, drafting = (SglangEngine(spec(concurrency=4)).arguments(method) for method in (Autoregressive(), DFlash()))
    assert drafting[: len(plain)] == plain and not any("speculative" in word for word in plain)
    added = drafting[len(plain) :]
    assert added[added.index("--speculative-num-draft-tokens") + 1] == "16"  # the block, its root counted
    assert added[added.index("--speculative-draft-attention-backend") + 1] == "triton"
    for words in (("--max-running-requests", "4"), ("--page-size", "1")):
        assert plain[plain.index(words[0]) + 1] == words[1]
    assert plain[plain.index("--cuda-graph-bs-decode") :] == ["--cuda-graph-bs-decode", "1", "2", "3", "4"]
    assert "--disable-radix-cache" in plain and "--skip-tokenizer-init" in plain


def test_arguments_of_the_user_replace_the_defaults_in_every_arm():
    given = (("attention_backend", "fa3"), ("disable_prefill_cuda_graph", False), ("disable_overlap_schedule", True))
    for method in (Autoregressive(), DFlash()):
        found = SglangEngine(spec(args=given)).arguments(method)
        assert found[found.index("--attention-backend") + 1] == "fa3" and "--disable-overlap-schedule" in found
        assert "--disable-prefill-cuda-graph" not in found
    assert found[found.index("--speculative-draft-attention-backend") + 1] == "fa3"


def test_end_ids_end_an_answer_only_where_eos_is_not_ignored():
    assert sampling(REQUEST)["sampling_params"] == {"max_new_tokens": 40, "temperature": 0.0, "stop_token_ids": [2]}
    assert sampling(Request("p", (5,), 4))["sampling_params"]["ignore_eos"]


@pytest.mark.parametrize(
    ("changes", "methods", "said"),
    [
        (
            {},
            (DDTree(64),),
            "ddtree is not accepted by engine=sglang without engine.args={disable_overlap_schedule: true",
        ),
        ({"args": (*TREES, ("attention_backend", "fa3"))}, (DDTree(64),), "attention_backend=fa3 is not accepted with"),
        ({"args": TREES, "model": HYBRID}, (DDTree(64),), "linear_attention layers is not accepted by DDTREE"),
        ({"device": "cpu"}, (Autoregressive(),), "device=cpu is not accepted: engine=sglang runs on cuda."),
        ({"max_length": 4094}, (DFlash(),), "do not fit tiny's window of 4096: engine=sglang needs 24 more"),
        ({"args": (("page_size", 16),)}, (DFlash(),), "engine.args.page_size=16 is not accepted: the harness sets"),
        ({"args": (("tp_size", 2),)}, (DFlash(),), "engine.args.tp_size=2 is not accepted: the harness sets"),
        ({"python": "/no/python"}, (DFlash(),), "engine.python=/no/python is not accepted"),
        ({"python": None}, (DFlash(),), "the environment sglang is not set up"),
        ({"tp": 3}, (DFlash(),), "tp=3 does not divide"),
        ({"dtype": "float32"}, (DFlash(),), "dtype=float32 is not accepted: SGLang turns what its drafter reads"),
        ({"urls": (("dflash", "ftp://x"),)}, (DFlash(),), "engine.url=ftp://x is not accepted"),
    ],
)
def test_what_it_cannot_do_is_refused_in_a_sentence(changes, methods, said, monkeypatch, tmp_path):
    monkeypatch.setenv("DRAFT_TREE_CACHE", str(tmp_path))
    with pytest.raises(Refusal) as refusal:
        SglangEngine.check(spec(**changes), methods)
    assert said in str(refusal.value)


def test_captured_passes_need_room_for_every_row():
    """Budget for budget and request for request, on each rank; less where nothing is captured."""
    few, many = spec(args=TREES[:1], concurrency=4), spec(args=TREES[:1], concurrency=16)
    needed = SglangEngine.memory_bytes
    assert needed(few, DDTree(16)) < needed(few, DDTree(64)) < needed(many, DDTree(64))
    assert needed(spec(args=TREES, concurrency=16), DDTree(64)) < needed(many, DDTree(64))
    assert needed(spec(args=TREES[:1], concurrency=16, tp=2), DDTree(64)) < needed(many, DDTree(64))


def wrapper(folder: Path) -> Path:
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {TESTS / "fake_sglang.py"} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def served(world: FakeWorld) -> FakeWorld:
    """A world with `engine=served`: SGLang behind a wrapper script that runs the fake."""
    python = wrapper(world.folder)
    world.write("conf/engine/served.yaml", f"_target_: sglang_recorder.CpuEngine\npython: {python}\nargs: null\n")
    return world


ASKED = ("engine=served", "model=tiny", "method=dflash", "repeats=1")


def test_a_served_cell_goes_through_the_whole_harness(served):
    done = served.started(*ASKED, "max_new_tokens=30")
    assert done.returncode == 0, done.stderr
    lines = sitting_lines(served.cell)
    assert all(line["true_violations"] == 0 and line["max_gap"] == 0.0 for line in lines)
    timed = [line for line in lines if line["phase"] == "timed"]
    assert {(line["arm"], line["prompt_id"]) for line in timed} == {
        (arm, word) for arm in ("autoregressive", "dflash") for word in WORDS
    }
    for line in lines:
        assert line["output_ids"] == truth(line["prompt_ids"], line["n_output"])
        accepted = [one[0] for one in line["rounds"][:-1]]
        wanted = [0] * len(accepted) if line["arm"] == "autoregressive" else [*STEPS, *STEPS][: len(accepted)]
        assert accepted == wanted
    engine = read_json(served.cell / "sittings/0/environment.json")["engine"]
    assert engine["sglang_version"] == "0.0.fake" and engine["graphs"] == "captured (full: 1)"
    assert "--speculative-algorithm DFLASH" in engine["server_dflash"] and engine["overlap"] == "on"
    served.assert_no_process_left()


def test_a_text_that_is_not_the_targets_makes_the_arm_invalid(served):
    done = served.run(*ASKED, FAKE_SGLANG="dflash:lie")
    assert done.returncode == 1 and served.arm("dflash")["status"] == "invalid"
    assert served.arm("autoregressive")["status"] == "complete"


FAULTS = {
    "cut": "the server ended the answer before its end|the server broke the answer off",
    "shape": "the server sent an event of another shape",
    "abort": "the server ended the request with abort: the batch was dropped",
    "error": "the server failed the request: the input is too long",
    "500": "the server answered 500",
    "die": "the sglang server of dflash ended with exit code 3",
    "exit": "exit code 1 before it was ready",
    "cached": "16 tokens of the prompt came from a cache, which has to be off",
    "retracted": "the server took the request back",
    "few": "verify steps of [0-9]* tokens, but 39 came in 9",
    "many": "the server counts 18 verify steps of 103 tokens, but 39 came in 9",
    "backend": "runs with attention_backend=fa3, the server before it with triton",
    "block": "the server verifies 15 rows a request, not 16",
    "crowd": "runs with max_running_requests=48, the server before it with 1",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_a_sentence_and_the_server_is_gone(served, fault, monkeypatch):
    monkeypatch.setenv("FAKE_SGLANG", f"dflash:{fault}")
    monkeypatch.setenv("FAKE_WORLD", str(served.folder))
    monkeypatch.setattr("methods.engines.server.POLL_S", 0.02)
    if fault != "die":  # the others do not end their server
        monkeypatch.setattr("methods.engines.served.LAST_S", 0.2)
    with CpuEngine(spec(device="cpu", python=str(served.folder / "python"))) as engine:
        engine.open((Autoregressive(), DFlash()))
        assert engine.generate(Autoregressive(), REQUEST).output_ids == tuple(truth([7], 40))
        with pytest.raises(ServerError, match=FAULTS[fault]):
            engine.generate(DFlash(), REQUEST)
    served.assert_no_process_left()


def test_trees_come_through_the_whole_harness(served):
    words = ("engine=served", "model=tiny", "method=ddtree,dflash", "budget=20", "repeats=1", "--multirun")
    done = served.run(*words, "engine.args={disable_overlap_schedule:true,disable_decode_cuda_graph:true}")
    assert done.returncode == 0, done.stderr
    engine = read_json(served.cell / "sittings/0/environment.json")["engine"]
    assert "--speculative-algorithm DDTREE" in engine["server_ddtree-20"]
    assert "--speculative-num-draft-tokens 21" in engine["server_ddtree-20"]
    for arm in ("autoregressive", "dflash", "ddtree-20"):
        assert served.arm(arm)["status"] == "complete"
        assert "--disable-decode-cuda-graph --disable-overlap-schedule" in engine[f"server_{arm}"]
    profiled = [line for line in sitting_lines(served.cell) if line["phase"] == "profile"]
    assert [line["arm"] for line in profiled] == ["ddtree-20"] * len(profiled) and profiled
    for line in profiled:
        steps = len(line["rounds"])
        assert line["stages"] == {"draft_s": steps / 4, "build_s": steps / 2, "verify_s": steps, "commit_s": 2 * steps}
        assert line["true_violations"] == 0 and line["shadow"] is None
    assert not any(line["stages"] for line in sitting_lines(served.cell) if line["phase"] == "timed")
    totals = {engine[f"server_{arm}"].split("--max-total-tokens ")[1].split()[0] for arm in ("dflash", "ddtree-20")}
    assert len(totals) == 1
    served.assert_no_process_left()


def test_rounds_are_looked_into_as_the_built_in_engine_does(served):
    words = ("engine=served", "model=tiny", "method=ddtree", "budget=20", "repeats=1", "shadow_linear=true")
    args = "engine.args={disable_overlap_schedule:true,disable_decode_cuda_graph:true}"
    done = served.run(*words, "dump_rounds=true", args)
    assert done.returncode == 0, done.stderr
    looked = [line for line in sitting_lines(served.cell) if line["phase"] == "profile"]
    dumped = sitting_lines(served.cell, "rounds.jsonl")
    assert {line["prompt_id"] for line in looked} == set(WORDS) and len(dumped) == sum(len(x["rounds"]) for x in looked)
    for line in looked:
        own = [one for one in dumped if one["prompt_id"] == line["prompt_id"]]
        accepted = [*STEPS, *STEPS, *STEPS][: len(own)]
        place = 1
        for one, count, shadow in zip(own, accepted, line["shadow"], strict=True):
            assert one["root_at"] == line["n_input"] + place - 1 and one["accepted"] == count
            assert one["tokens"][0] == line["output_ids"][place - 1] and one["path"] == list(range(count + 1))
            assert one["shadow_accepted"] == shadow == min(count, line["n_output"] - place)
            place += count + 1


def test_rounds_that_nobody_looked_into_are_owed(served):
    """A sitting of its own, without timed requests, where an earlier one ended before."""
    words = ("engine=served", "model=tiny", "method=ddtree", "budget=20", "repeats=1")
    args = "engine.args={disable_overlap_schedule:true,disable_decode_cuda_graph:true}"
    assert served.run(*words, args).returncode == 0
    for name in ("answered.jsonl", "requests.jsonl"):
        file = served.cell / "sittings/0" / name
        kept = [line for line in file.read_text().splitlines(keepends=True) if '"phase":"profile"' not in line]
        file.write_text("".join(kept))
    assert served.run(*words, args).returncode == 0
    later = [line for line in sitting_lines(served.cell) if line["sitting"] == 1]
    assert {line["phase"] for line in later} == {"warmup", "profile"}
    looked = [line for line in later if line["phase"] == "profile"]
    assert len(looked) == 3 and all(line["stages"] and line["true_violations"] == 0 for line in looked)
    served.assert_no_process_left()


def test_answers_that_nobody_scored_are_owed(served):
    """A sitting that asks nothing, where an earlier one ended between an arm's last answer and its score."""
    words = ("engine=served", "model=tiny", "method=ddtree", "budget=20", "repeats=1")
    args = "engine.args={disable_overlap_schedule:true,disable_decode_cuda_graph:true}"
    assert served.run(*words, args).returncode == 0
    file = served.cell / "sittings/0/requests.jsonl"
    whole = sitting_lines(served.cell)
    file.write_text(
        "".join(line for line in file.read_text().splitlines(keepends=True) if '"phase":"profile"' not in line)
    )
    assert len(sitting_lines(served.cell)) == len(whole) - 3
    assert served.run(*words, args).returncode == 0
    found = sitting_lines(served.cell)
    assert sorted(map(str, found)) == sorted(map(str, [*whole, *(line for line in found if line["sitting"] == 1)]))
    assert {line["phase"] for line in found if line["sitting"] == 1} <= {"warmup"}
    served.assert_no_process_left()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("method=dflash", "dump_rounds=true"), "cannot look into the rounds of dflash"),
        (("method=dflash", "oracle_rate=0.5"), "cannot look into the rounds of dflash"),
        (("method=ddtree", "oracle_rate=0.5", "concurrency=4"), "not accepted with requests in flight together"),
        (("method=ddtree", "dump_rounds=true", "concurrency=4"), "not accepted with requests in flight together"),
    ],
)
def test_what_cannot_be_looked_into_is_refused(served, words, said):
    done = served.run("engine=served", "model=tiny", *words)
    assert done.returncode != 0 and said in " ".join(done.stderr.split())


def test_rounds_that_are_not_told_are_a_fault(served, monkeypatch):
    monkeypatch.setenv("FAKE_SGLANG", "ddtree:silent")
    monkeypatch.setattr("methods.engines.served.LAST_S", 0.2)  # the server goes on
    monkeypatch.setenv("FAKE_WORLD", str(served.folder))
    with CpuEngine(spec(device="cpu", python=str(served.folder / "python"), args=TREES)) as engine:
        engine.open((DDTree(20),))
        assert engine.generate(DDTree(20), REQUEST).stages is None
        with pytest.raises(ServerError, match="but tells of others"):
            engine.generate(DDTree(20), REQUEST, profile=True)


def test_a_server_without_the_plugin_fails_its_arm(served, monkeypatch):
    monkeypatch.setenv("FAKE_SGLANG", "ddtree:unloaded")
    monkeypatch.setenv("FAKE_WORLD", str(served.folder))
    wanted = spec(device="cpu", python=str(served.folder / "python"), args=TREES)
    with (
        CpuEngine(wanted) as engine,
        pytest.raises(ServerError, match="the plugin is in 1 of the server's 2 processes"),
    ):
        engine.open((DDTree(20),))


def test_merged_chunks_and_the_gate(served, monkeypatch):
    monkeypatch.setenv("FAKE_MERGED", "1")
    with CpuEngine(spec(device="cpu", python=str(served.folder / "python"))) as engine:
        engine.open((Autoregressive(), DFlash()))
        generation = engine.generate(DFlash(), REQUEST)
        assert generation.output_ids == tuple(truth([7], 40))
        assert sorted(one.accepted for one in generation.rounds[:-1]) == sorted([*STEPS, 0, 3, 1])
        assert engine.score(REQUEST, generation.output_ids).max_gap == 0.0
        wrong = (*generation.output_ids[:4], 1, *generation.output_ids[5:])
        assert engine.score(REQUEST, wrong).true_violations(0.5) >= 1
        assert engine.gap_tolerance((REQUEST,)) == 2.0**-3  # a rounding step at logits of 16 to 32


def test_a_server_that_runs_already_is_read_back(served, monkeypatch):
    python = str(served.folder / "python")
    with CpuEngine(spec(device="cpu", python=python)) as own:
        running = own.serving(Autoregressive())
        url = f"http://127.0.0.1:{running.http.port}"
        with CpuEngine(spec(device="cpu", urls=(("autoregressive", url),))) as engine:
            engine.open((Autoregressive(),))
            assert engine.generate(Autoregressive(), REQUEST).output_ids == tuple(truth([7], 40))
            assert "'max_running_requests': 1" in engine.describe()["arguments_autoregressive"]
        with (
            CpuEngine(spec(device="cpu", urls=(("dflash", url),))) as engine,
            pytest.raises(Refusal, match="speculative_algorithm=None, so it is no server of dflash"),
        ):
            engine.open((DFlash(),))


def test_many_streams_run_at_once(served):
    async def all_of_them(client: SglangClient):
        async def one(last: int):
            return [each async for each in client.stream(Request("p", (last,), 20))]

        return await asyncio.gather(*(one(last) for last in range(8)))

    with CpuEngine(spec(device="cpu", python=str(served.folder / "python"), concurrency=8)) as engine:
        for last, chunks in enumerate(engine.crowd(DFlash(), all_of_them)):
            assert engine.finished(chunks, 1.0).output_ids == tuple(truth([last], 20))


def test_a_deployed_server_has_a_tokenizer_and_the_arms_own_settings():
    engine = SglangEngine(spec(concurrency=4))
    measured = engine.arguments(DFlash())
    found = engine.deployment(DFlash(), Place("tiny", "0.0.0.0", 8001))
    for word in ("--skip-tokenizer-init", "--grammar-backend"):
        assert word in measured and word not in found
    assert found[found.index("--tool-call-parser") + 1] == "hermes" and "--disable-radix-cache" in found
    for name, value in (("--host", "0.0.0.0"), ("--port", "8001"), ("--served-model-name", "tiny")):
        assert found[found.index(name) + 1] == value
    assert found[found.index("--speculative-algorithm") :] == measured[measured.index("--speculative-algorithm") :]
