"""The real SGLang 0.5.15, on a CPU (`sglang_on_cpu`), where `SGLANG_PYTHON` names an interpreter that has it.

Its command line, chats and tool calls, and AR, DFlash and DDTree against the built-in engine, text for text and round
for round.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess

import pytest
import sglang_on_cpu
from fake_world import TESTS
from sglang_recorder import METHODS, TOKENS, CpuEngine, asked, stored
from test_sglang import spec

from methods.autoregressive import Autoregressive
from methods.base import Request
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.http import Http, ServerError
from methods.engines.served import Place
from methods.engines.server import Launch, Server, free_port
from methods.engines.sglang import SglangEngine
from methods.engines.sglang_client import SglangClient

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
            generation = engine.generate(method, asked(line))
            assert list(generation.output_ids) == line["output_ids"]
            assert [list(one) for one in generation.rounds] == line["rounds"]
            if arm == "autoregressive":
                assert engine.score(asked(line), generation.output_ids).max_gap == 0.0


def test_trees_of_a_mixed_batch_are_the_built_in_engines(python, tmp_path):
    """Three requests at once that end at different rounds, text for text and round for round."""
    lines = [line for line in stored("ddtree-16").values() if line["n_input"] < 70][:3]
    requests = [
        Request(line["prompt_id"], tuple(line["prompt_ids"]), most, (2,))
        for line, most in zip(lines, (24, 12, 18), strict=True)
    ]

    async def all_of_them(client: SglangClient):
        async def one(request: Request):
            return [each async for each in client.stream(request)]

        return await asyncio.gather(*map(one, requests))

    given = tuple(sglang_on_cpu.ARGUMENTS.items())
    wanted = spec(device="cpu", dtype="float32", python=python, args=given, logs=str(tmp_path), concurrency=3)
    with CpuEngine(wanted) as engine:
        engine.open((DDTree(16),))
        found = [engine.finished(chunks, 1.0) for chunks in engine.crowd(DDTree(16), all_of_them)]
    for line, request, generation in zip(lines, requests, found, strict=True):
        assert list(generation.output_ids) == line["output_ids"][: request.max_new_tokens]
        *whole, last = generation.rounds
        assert [list(one) for one in whole] == line["rounds"][: len(whole)]
        assert last.accepted <= line["rounds"][len(whole)][0]
