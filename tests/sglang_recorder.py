"""Writes down what a real SGLang server answers, word for word, as the tests replay it.

    python tests/sglang_recorder.py OUT.json METHOD DTYPE PYTHON [NAME=VALUE …]

METHOD is autoregressive, dflash, ddtree-16 or ddtree-64 (which needs disable_overlap_schedule=true
and disable_decode_cuda_graph=true), PYTHON starts SGLang, NAME=VALUE are further arguments of the server. The prompts
are those of the built-in engine's smoke run in `results/example`, whose texts and rounds the answers are set beside.
AR's server also tells the log-probs by which answers are scored; with `SCORE=OTHER.json` it waits for what another
recorder wrote there and scores those answers too. `DEVICE=cpu` runs where there is no GPU, `MOST=4` asks four prompts
alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import sglang_on_cpu

from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, ModelSpec, Request
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.environments import SGLANG, Environment
from methods.engines.served import is_plain
from methods.engines.sglang import SglangEngine
from methods.engines.sglang_client import sampling

REPOSITORY = Path(__file__).parents[1]
STORED = REPOSITORY / "results/example/cells/5cf22cd58636/sittings/0/requests.jsonl"
PAIR = ModelSpec("tiny", "builtin:tiny/target", "builtin:tiny/drafter")
METHODS = {method.arm: method for method in (Autoregressive(), DFlash(), DDTree(16), DDTree(64))}
TOKENS, STOPS = 48, (2,)
WAIT_S = 170.0


class CpuEngine(SglangEngine):
    """SGLang on a CPU, slowly (`sglang_on_cpu`)."""

    environments: ClassVar[dict[str, Environment]] = {"cpu": SGLANG}
    drafts_in: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")

    def variables(self) -> dict[str, str]:
        own = super().variables()
        path = [sglang_on_cpu.path(self._logs()), *([own["PYTHONPATH"]] if "PYTHONPATH" in own else [])]
        return own | sglang_on_cpu.VARIABLES | {"PYTHONPATH": os.pathsep.join(path)}


def stored(arm: str) -> dict[str, dict[str, Any]]:
    """The built-in engine's timed requests of an arm, by prompt."""
    lines = [json.loads(line) for line in STORED.read_text().splitlines()]
    return {line["prompt_id"]: line for line in lines if line["arm"] == arm and line["phase"] == "timed"}


def asked(line: dict[str, Any]) -> Request:
    return Request(line["prompt_id"], tuple(line["prompt_ids"]), TOKENS, STOPS)


def record(engine: SglangEngine, arm: str, most: int) -> dict[str, Any]:
    """Streamed answers as they came off the socket, and, of AR, the log-probs of two of them."""
    method = METHODS[arm]
    running = engine.serving(method)
    found: dict[str, Any] = {"server_info": engine.within(running, running.http.get("/server_info")), "answers": {}}
    for prompt_id, line in list(stored(arm).items())[:most]:
        request = asked(line)
        content = {**sampling(request), "stream": True}
        raw = engine.within(running, _raw(running.http, content))
        generation = engine.generate(method, request)
        found["answers"][prompt_id] = {
            "request": content,
            "raw": raw,
            "output_ids": generation.output_ids,
            "rounds": generation.rounds,
            "ttft_s": generation.ttft_s,
            "decode_s": generation.decode_s,
            "same_text": list(generation.output_ids) == line["output_ids"],
            "same_rounds": [list(one) for one in generation.rounds] == line["rounds"],
        }
    if is_plain(method):
        request = asked(next(iter(stored(arm).values())))
        output = found["answers"][request.prompt_id]["output_ids"]
        teacher = {
            "input_ids": [*request.prompt_ids, *output],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": len(request.prompt_ids) - 1,
            "top_logprobs_num": 1,
        }
        decoded = {**sampling(request), "return_logprob": True, "top_logprobs_num": 2}
        for name, content in (("prompt_log_probs", teacher), ("decoded_log_probs", decoded)):
            told = engine.within(running, running.http.post("/generate", content))
            found[name] = {"prompt_id": request.prompt_id, "request": content, "answer": told}
        found["gap_tolerance"] = engine.gap_tolerance((request,))
    return found


async def _raw(http: Any, content: dict[str, Any]) -> str:
    async with http._asked("POST", "/generate", content) as body:
        return b"".join([piece async for piece in body]).decode()


def scored(engine: SglangEngine, other: Path) -> dict[str, Any]:
    """The largest gap of every answer that another recorder wrote, by AR's server."""
    deadline = time.monotonic() + WAIT_S
    while not other.exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    if not other.exists():
        return {}
    lines = stored("autoregressive")
    answers = json.loads(other.read_text())["answers"]
    return {name: engine.score(asked(lines[name]), told["output_ids"]).max_gap for name, told in answers.items()}


def main(argv: list[str]) -> None:
    out, arm, dtype, python, *rest = argv
    given = dict(word.split("=", 1) for word in rest)
    device, other = given.pop("DEVICE", "cuda"), given.pop("SCORE", None)
    most = int(given.pop("MOST", "99"))
    args = tuple((name, True if value == "true" else value) for name, value in given.items())
    engine_class = CpuEngine if device == "cpu" else SglangEngine
    if device == "cpu":
        args = (*sglang_on_cpu.ARGUMENTS.items(), *args)
    longest = max(line["n_input"] for line in stored(arm).values()) + TOKENS
    spec = EngineSpec(
        PAIR, device=device, dtype=dtype, max_length=longest, python=python, args=args, logs=os.path.dirname(out)
    )  # type: ignore[arg-type]
    if device == "cuda":
        engine_class.check(spec, (METHODS[arm],))
    began = time.monotonic()
    with engine_class(spec) as engine:
        engine.open((METHODS[arm],))
        start_s = time.monotonic() - began
        found = record(engine, arm, most)
        found |= {"describe": engine.describe(), "start_s": start_s}
        part = Path(f"{out}.part")
        part.write_text(json.dumps(found))
        part.replace(out)
        if other:
            found["scores"] = scored(engine, Path(other))
            Path(out).write_text(json.dumps(found))
    same = [(told["same_text"], told["same_rounds"]) for told in found["answers"].values()]
    print(f"{arm} {dtype}: started in {start_s:.0f} s; {sum(text for text, _ in same)} of {len(same)} texts and "
          f"{sum(rounds for _, rounds in same)} of their rounds are the built-in engine's; "
          f"scores {found.get('scores')}; tolerance {found.get('gap_tolerance')}")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
