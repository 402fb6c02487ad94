"""The real SGLang 0.5.15, on a CPU (`sglang_on_cpu`), where `SGLANG_PYTHON` names an interpreter that has it.

Its command line, chats and tool calls, and AR, DFlash and DDTree against the built-in engine, text for text and round
for round. Those with `sglang_faults` run on a GPU too, where `SGLANG_DEVICE=cuda` says so; there AR's server judges.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from dataclasses import replace

import pytest
import sglang_on_cpu
from fake_world import TESTS
from sglang_recorder import METHODS, TOKENS, CpuEngine, asked, stored, with_plugin
from test_sglang import PAIR, spec

from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, Inspect, Request
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.http import Http, ServerError
from methods.engines.reference import ReferenceEngine
from methods.engines.served import Place
from methods.engines.server import Launch, Server, free_port
from methods.engines.sglang import SglangEngine
from methods.engines.sglang_client import SglangClient, sampling

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def python() -> str:
    found = os.environ.get("SGLANG_PYTHON")
    if found is None:
        pytest.skip("SGLANG_PYTHON names no interpreter with SGLang")
    return found


PARSED = """
import json, sys
from sglang.srt.server_args import prepare_server_args
for words in json.load(sys.stdin):
    told = prepare_server_args(words)
    graphs = told.cuda_graph_config.decode
    print("PARSED", json.dumps([told.speculative_algorithm, told.speculative_num_draft_tokens, told.attention_backend,
        told.speculative_draft_attention_backend, told.disable_overlap_schedule, graphs.backend, graphs.bs]))
"""


def test_it_reads_the_command_lines_as_meant(python):
    engine = SglangEngine(spec(concurrency=12, args=(("device", "cuda"),)))
    lines = [engine.arguments(method)[2:] for method in (Autoregressive(), DFlash())]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | engine.variables()
    done = subprocess.run(
        [python, "-c", PARSED], input=json.dumps(lines), env=environment, capture_output=True, text=True
    )
    told = [json.loads(line.removeprefix("PARSED ")) for line in done.stdout.splitlines() if line.startswith("PARSED")]
    sizes = [1, 2, 3, 4, 8, 12]
    assert told == [
        [None, None, "triton", None, False, "full", sizes],
        ["DFLASH", 16, "triton", "triton", False, "full", sizes],
    ], done.stderr


def test_it_chats_and_calls_tools(python, tmp_path):
    """A server for others, on a CPU."""
    given = tuple(
        (
            sglang_on_cpu.ARGUMENTS
            | {"attention_backend": "torch_native"}
            | {"grammar_backend": "none", "sampling_backend": "pytorch"}
        ).items()
    )
    engine = CpuEngine(spec(device="cpu", dtype="float32", max_length=1000, python=python, args=given))
    port = free_port()
    command = (python, *engine.deployment(Autoregressive(), Place("tiny", "127.0.0.1", port)))
    server, http = Server(Launch("the server", command, engine.variables(), tmp_path / "log")), Http(port)

    def ask(**content) -> dict:
        asked = {"model": "tiny", "temperature": 0, "chat_template_kwargs": {"enable_thinking": False}, **content}
        (choice,) = asyncio.run(http.post("/v1/chat/completions", asked))["choices"]
        return choice

    def answers() -> bool:
        try:
            return asyncio.run(engine.ready(http, "tiny"))
        except ServerError:
            return False

    try:
        server.wait(answers, 300)
        said = ask(messages=[{"role": "user", "content": "Why do we write tests?"}], max_tokens=24)
        assert said["message"]["content"] and not said["message"]["tool_calls"]
        prompt = json.loads((TESTS.parent / "workloads/builtin/tool_calls.jsonl").read_text().splitlines()[1])
        called = ask(messages=prompt["messages"], tools=prompt["tools"], max_tokens=400)
    finally:
        server.close()
    names = {tool["function"]["name"] for tool in prompt["tools"]}
    assert called["finish_reason"] == "tool_calls"
    for call in called["message"]["tool_calls"]:
        assert call["function"]["name"] in names and isinstance(json.loads(call["function"]["arguments"]), dict)


def agrees_on_its_rounds(generation, method, request: Request, inspect: Inspect) -> None:
    """The built-in engine's trees, node by node, and its linear shadow."""
    stages = generation.stages
    assert min(vars(stages).values()) > 0 and sum(vars(stages).values()) < generation.decode_s
    with ReferenceEngine(EngineSpec(PAIR, max_length=400)) as engine:
        engine.open((method,))
        wanted = engine.generate(method, request, profile=True, inspect=inspect).inspected
    for mine, theirs in zip(generation.inspected, wanted, strict=True):
        near, right = mine.tree.log_probs, theirs.tree.log_probs
        assert near == pytest.approx(right, abs=1e-3)
        assert mine._replace(tree=mine.tree._replace(log_probs=right)) == theirs


@pytest.mark.parametrize("arm", ["autoregressive", "dflash", "ddtree-16"])
def test_it_decodes_as_the_built_in_engine_does(arm, python, tmp_path):
    """Text for text and round for round, on a CPU."""
    backend = {"attention_backend": "torch_native"} if arm == "autoregressive" else {}
    given = tuple((sglang_on_cpu.ARGUMENTS | backend).items())
    method, lines = METHODS[arm], list(stored(arm).values())[: 1 if arm == "ddtree-16" else 3]
    longest = max(line["n_input"] for line in lines) + TOKENS  # a text that fills it can be scored
    wanted = {"python": python, "args": given, "logs": str(tmp_path), "max_length": longest}
    with CpuEngine(spec(device="cpu", dtype="float32", **wanted)) as engine:
        engine.open((method,))
        for line in lines:
            inspect = Inspect(shadow_linear=True, dump_rounds=True) if engine.profiles(method) else None
            generation = engine.generate(method, asked(line), profile=True, inspect=inspect)
            assert list(generation.output_ids) == line["output_ids"]
            assert [list(one) for one in generation.rounds] == line["rounds"]
            if inspect:
                agrees_on_its_rounds(generation, method, asked(line), inspect)
                assert len((tmp_path / f"rounds-{arm}.jsonl").read_text().splitlines()) == len(line["rounds"])
            if arm == "autoregressive":
                assert engine.score(asked(line), generation.output_ids).max_gap == 0.0


def test_ars_server_finds_the_built_in_oracles_nodes_right(python, tmp_path):
    """Node for node as many, in every round; and one whose choice was another is found."""
    request = replace(short()[1], max_new_tokens=6)
    method, inspect = DDTree(6), Inspect(oracle_rate=1.0, tolerance=1e-3)
    wanted = spec(device="cpu", dtype="float32", python=python, logs=str(tmp_path))
    trees, plain = sglang_on_cpu.ARGUMENTS, sglang_on_cpu.ARGUMENTS | {"attention_backend": "torch_native"}
    with CpuEngine(replace(wanted, args=tuple(trees.items()))) as engine:
        engine.open((method,))
        generation = engine.generate(method, request, inspect=inspect)
    with ReferenceEngine(EngineSpec(PAIR, max_length=400)) as engine:
        engine.open((method,))
        theirs = engine.generate(method, request, inspect=inspect).inspected
    text = (*request.prompt_ids, *generation.output_ids)
    with CpuEngine(replace(wanted, args=tuple(plain.items()))) as engine:
        engine.open((Autoregressive(),))
        for mine, right in zip(generation.inspected, theirs, strict=True):
            found = engine.oracle(text, mine.unchecked, 1e-3)
            assert found.nodes == right.oracle.nodes and found.max_gap < 1e-3 and not found.disagreements
        *others, last = mine.unchecked.choices
        wrong = mine.unchecked._replace(choices=(*others, last + 1))
        found = engine.oracle(text, wrong, 1e-3)
        assert found.nodes == right.oracle.nodes and found.disagreements == 1


@pytest.mark.parametrize("graphs", [False, True])
def test_trees_of_a_mixed_batch_are_the_built_in_engines(graphs, python, tmp_path):
    """Requests at once that end at different rounds, text for text and round for round. With graphs the batches of
    five are filled up to the eight that SGLang captures, those of fewer are not. One asks for its rounds' figures."""
    lines = [line for line in stored("ddtree-16").values() if line["n_input"] < 70][: 5 if graphs else 3]
    requests = [
        Request(line["prompt_id"], tuple(line["prompt_ids"]), most, (2,))
        for line, most in zip(lines, (24, 12, 18, 33, 6), strict=False)
    ]

    async def all_of_them(client: SglangClient):
        async def one(request: Request):
            asking = replace(client, asked=("stages",)) if request is requests[1] else client
            return [each async for each in asking.stream(request)]

        return await asyncio.gather(*map(one, requests))

    given = tuple((sglang_on_cpu.ARGUMENTS | {"disable_decode_cuda_graph": not graphs}).items())
    most = 12 if graphs else 3
    wanted = spec(device="cpu", dtype="float32", python=python, args=given, logs=str(tmp_path), concurrency=most)
    with CpuEngine(wanted) as engine:
        engine.open((DDTree(16),))
        found = [engine.finished(chunks, 1.0) for chunks in engine.crowd(DDTree(16), all_of_them)]
    assert [place for place, generation in enumerate(found) if generation.stages] == [1]
    for line, request, generation in zip(lines, requests, found, strict=True):
        assert list(generation.output_ids) == line["output_ids"][: request.max_new_tokens]
        *whole, last = generation.rounds
        assert [list(one) for one in whole] == line["rounds"][: len(whole)]
        assert last.accepted <= line["rounds"][len(whole)][0]
    (log,) = tmp_path.glob("server-*.log")
    assert ("replayed 8 requests" in log.read_text()) == ("replayed 3 requests" in log.read_text()) == graphs


class Retracting(CpuEngine):
    """SGLang that takes the last request of a batch back every few passes, as it does where slots run out."""

    def variables(self) -> dict[str, str]:
        return super().variables() | {"SGLANG_TEST_RETRACT": "true", "SGLANG_TEST_RETRACT_INTERVAL": "3"}


def test_requests_that_are_taken_back_go_on_with_ars_text(python, tmp_path):
    """What they had written is read anew, by the drafter too, and the rounds after it accept drafted tokens again."""
    lines = sorted(stored("ddtree-16").values(), key=lambda line: line["n_input"])[:3]
    requests = [Request(line["prompt_id"], tuple(line["prompt_ids"]), 44, (2,)) for line in lines]

    async def all_of_them(client: SglangClient):
        return await asyncio.gather(*(client.http.post("/generate", sampling(request)) for request in requests))

    given = tuple(sglang_on_cpu.ARGUMENTS.items())
    wanted = spec(device="cpu", dtype="float32", python=python, args=given, logs=str(tmp_path), concurrency=3)
    with Retracting(wanted) as engine:
        engine.open((DDTree(16),))
        answers = engine.crowd(DDTree(16), all_of_them)
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) >= 2
    for line, answer in zip(lines, answers, strict=True):
        assert answer["output_ids"] == line["output_ids"][:44]
        assert answer["meta_info"]["spec_verify_ct"] < 22  # of 43 tokens after the first


def test_two_ranks_make_the_built_in_engines_trees(python, tmp_path):
    """Each from its half of the vocabulary; the plugin compares them where rounds are looked into."""
    line = next(line for line in stored("ddtree-16").values() if line["n_input"] < 70)
    request = Request(line["prompt_id"], tuple(line["prompt_ids"]), 20, (2,))
    given = tuple(sglang_on_cpu.ARGUMENTS.items())
    with CpuEngine(spec(device="cpu", dtype="float32", python=python, args=given, logs=str(tmp_path), tp=2)) as engine:
        engine.open((DDTree(16),))
        generation = engine.generate(DDTree(16), request, inspect=Inspect(dump_rounds=True))
    assert list(generation.output_ids) == line["output_ids"][:20]
    *whole, _ = generation.rounds
    assert [list(one) for one in whole] == line["rounds"][: len(whole)] and generation.tree_checksum


ON_GPU = os.environ.get("SGLANG_DEVICE") == "cuda"


class FaultyEngine(SglangEngine if ON_GPU else CpuEngine):  # type: ignore[misc]
    """SGLang whose trees have a fault."""

    fault = ""

    def variables(self) -> dict[str, str]:
        own = super().variables()
        if not isinstance(self._method, DDTree):
            return own
        return with_plugin(self, own, "sglang_faults") | {"SGLANG_FAULT": self.fault}


def with_fault(fault: str, python: str, folder) -> FaultyEngine:
    given = {"disable_overlap_schedule": True} if ON_GPU else sglang_on_cpu.ARGUMENTS
    device = {"device": "cuda", "dtype": "bfloat16"} if ON_GPU else {"device": "cpu", "dtype": "float32"}
    engine = FaultyEngine(spec(**device, python=python, args=tuple(given.items()), logs=str(folder)))
    engine.fault = fault
    return engine


def is_ars(engine: FaultyEngine, line: dict, request: Request, output: tuple[int, ...]) -> bool:
    """Whether a text is AR's: on a CPU the very one, on a GPU as far as near ties leave it open."""
    if not ON_GPU:
        return list(output) == line["output_ids"][: request.max_new_tokens]
    return engine.score(request, output).max_gap <= engine.gap_tolerance((request,))


def test_a_wrong_mask_gives_another_text(python, tmp_path):
    """The mask reaches the target's attention: trees whose rows do not see their ancestors are verified wrongly."""
    with with_fault("mask", python, tmp_path) as engine:
        engine.open((DDTree(6),))
        line, request = short()
        assert not is_ars(engine, line, request, engine.generate(DDTree(6), request).output_ids)


def test_a_text_by_the_second_choices_is_ars(python, tmp_path):
    """The drafter's first choice is made wrong, so that accepted paths do not lie side by side and have to be moved."""
    with with_fault("swapped", python, tmp_path) as engine:
        engine.open((DDTree(6),))
        line, request = short()
        found = engine.generate(DDTree(6), request, inspect=Inspect(dump_rounds=True))
        assert is_ars(engine, line, request, found.output_ids)
    paths = [one.tree.path for one in found.inspected if one.accepted]
    apart = [path for path in paths if path != tuple(range(len(path)))]
    assert len(paths) >= 3 and 2 * len(apart) >= len(paths), paths


def short() -> tuple[dict, Request]:
    line = min(stored("ddtree-16").values(), key=lambda line: line["n_input"])
    return line, Request(line["prompt_id"], tuple(line["prompt_ids"]), 12, (2,))
