"""Writes down what a real SGLang server answers, word for word, as the tests replay it.

    python tests/sglang_recorder.py OUT.json METHOD DTYPE PYTHON [NAME=VALUE …]

METHOD is autoregressive, dflash, ddtree-16 or ddtree-64 (which needs disable_overlap_schedule=true), PYTHON starts
SGLang, NAME=VALUE are further arguments of the server. The prompts
are those of the built-in engine's smoke run in `results/example`, whose texts and rounds the answers are set beside.
AR's server also tells the log-probs by which answers are scored; with `SCORE=OTHER.json` it waits for what another
recorder wrote there and scores those answers too; several, with commas between them. `DEVICE=cpu` runs where there is
no GPU, `MOST=4` asks four prompts alone, `TP=2` serves on two ranks, and `CROWD=7` also asks seven prompts at once, of
different lengths, of a server that takes twelve.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import sglang_on_cpu

from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, Inspect, ModelSpec, Request
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.environments import SGLANG, Environment
from methods.engines.served import is_plain
from methods.engines.sglang import SglangEngine
from methods.engines.sglang_client import sampling
from methods.engines.sglang_ddtree import entry

REPOSITORY = Path(__file__).parents[1]
STORED = REPOSITORY / "results/example/cells/5cf22cd58636/sittings/0/requests.jsonl"
PAIR = ModelSpec("tiny", "builtin:tiny/target", "builtin:tiny/drafter")
METHODS = {method.arm: method for method in (Autoregressive(), DFlash(), DDTree(16), DDTree(64))}
TOKENS, STOPS = 48, (2,)
WAIT_S = 170.0


def with_plugin(engine: SglangEngine, own: dict[str, str], module: str) -> dict[str, str]:
    """A server's variables and, before all else on its path, a plugin of the tests."""
    plugin = entry.plugin(engine._logs(), module.replace("_", "-"), module, REPOSITORY / "tests")
    return own | {"PYTHONPATH": os.pathsep.join(filter(None, [plugin, own.get("PYTHONPATH")]))}


class CpuEngine(SglangEngine):
    """SGLang on a CPU, slowly (`sglang_on_cpu`)."""

    environments: ClassVar[dict[str, Environment]] = {"cpu": SGLANG}
    drafts_in: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")

    def variables(self) -> dict[str, str]:
        own = with_plugin(self, super().variables(), "sglang_on_cpu")
        graphs = {} if dict(self.spec.args).get("disable_decode_cuda_graph") else {sglang_on_cpu.GRAPHS: "1"}
        cores = {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, range(self.spec.tp)))} if self.spec.tp > 1 else {}
        return own | sglang_on_cpu.VARIABLES | graphs | cores


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


def starts(rounds: Sequence[Sequence[Any]]) -> dict[int, tuple[int, bool]]:
    """By the number of tokens before a round: what it accepted, and whether the output's end cut it."""
    found, before = {}, 1
    for accepted, emitted, cut in rounds:
        found[before] = (accepted, bool(cut))
        before += emitted
    return found


def agreement(line: dict[str, Any], output: Sequence[int], rounds: Sequence[Sequence[Any]]) -> tuple[int, int]:
    """Of the whole rounds that start at the same place of the same text as one of the built-in engine's: how many
    accepted as much, and how many there are."""
    ours, theirs = starts(rounds), starts(line["rounds"])
    same = [
        ours[at][0] == theirs[at][0]
        for at in ours.keys() & theirs.keys()
        if list(output[:at]) == line["output_ids"][:at] and not ours[at][1] and not theirs[at][1]
    ]
    return sum(same), len(same)


def crowd(engine: SglangEngine, arm: str, most: int) -> dict[str, Any]:
    """The shortest prompts at once, whose answers end at different rounds."""
    lines = sorted(stored(arm).values(), key=lambda line: line["n_input"])[:most]
    requests = [replace(asked(line), max_new_tokens=TOKENS - 5 * at % 33) for at, line in enumerate(lines)]

    async def all_of_them(client: Any) -> list[list[Any]]:
        async def one(request: Request) -> list[Any]:
            return [each async for each in client.stream(request)]

        return await asyncio.gather(*map(one, requests))

    began = time.monotonic()
    chunks = engine.crowd(METHODS[arm], all_of_them)
    elapsed = time.monotonic() - began
    found = {}
    for line, each in zip(lines, chunks, strict=True):
        done = engine.finished(each, 1.0)
        found[line["prompt_id"]] = {"output_ids": done.output_ids, "rounds": done.rounds}
    tokens = sum(len(told["output_ids"]) for told in found.values())
    return {"answers": found, "tokens_per_s": tokens / elapsed}


def looked(engine: SglangEngine, arm: str) -> dict[str, Any]:
    """Milliseconds a round of each stage of a request, and how many accepted paths are not the first rows. Ranks
    compare their trees where they are looked into: the server fails where they differ."""
    request = asked(list(stored(arm).values())[1])
    done = engine.generate(METHODS[arm], request, profile=True, inspect=Inspect(dump_rounds=True))
    rounds = len(done.rounds)
    paths = [one.tree.path for one in done.inspected or () if one.tree]
    moved = sum(path != tuple(range(len(path))) for path in paths)
    stages = {name: round(1e3 * value / rounds, 3) for name, value in vars(done.stages).items()} if done.stages else {}
    return {"stages_ms": stages, "rounds": rounds, "moved": moved, "checksum": done.tree_checksum}


def told_of(arm: str, answers: dict[str, Any]) -> str:
    """Acceptance lengths of ours and the built-in engine's, and how far their rounds are the same."""
    lines = stored(arm)
    whole = {
        "ours": [one for told in answers.values() for one in told["rounds"] if not one[2]],
        "built-in": [one for name in answers for one in lines[name]["rounds"] if not one[2]],
    }
    taus = {name: 1 + sum(one[0] for one in rounds) / max(1, len(rounds)) for name, rounds in whole.items()}
    pairs = [agreement(lines[name], told["output_ids"], told["rounds"]) for name, told in answers.items()]
    same, all_ = (sum(part) for part in zip(*pairs, strict=True))
    return f"τ {taus['ours']:.3f} (built-in {taus['built-in']:.3f}), {same} of {all_} rounds accept as much"


async def _raw(http: Any, content: dict[str, Any]) -> str:
    async with http._asked("POST", "/generate", content) as body:
        return b"".join([piece async for piece in body]).decode()


def scored(engine: SglangEngine, other: Path) -> dict[str, Any]:
    """The largest gap of every answer that another recorder wrote, those of a crowd with them, by AR's server."""
    deadline = time.monotonic() + WAIT_S
    while not other.exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    if not other.exists():
        return {}
    lines = stored("autoregressive")
    told = json.loads(other.read_text())
    both = [*told["answers"].items(), *told.get("crowd", {}).get("answers", {}).items()]
    return {
        f"{place} {name}": engine.score(asked(lines[name]), one["output_ids"]).max_gap
        for place, (name, one) in enumerate(both)
    }


def main(argv: list[str]) -> None:
    out, arm, dtype, python, *rest = argv
    given = dict(word.split("=", 1) for word in rest)
    device, others = given.pop("DEVICE", "cuda"), [name for name in given.pop("SCORE", "").split(",") if name]
    most, tp, together = (int(given.pop(name, value)) for name, value in (("MOST", "99"), ("TP", "1"), ("CROWD", "0")))
    args = tuple((name, True if value == "true" else value) for name, value in given.items())
    engine_class = CpuEngine if device == "cpu" else SglangEngine
    if device == "cpu":
        args = (*sglang_on_cpu.ARGUMENTS.items(), *args)
    longest = max(line["n_input"] for line in stored(arm).values()) + TOKENS
    spec = EngineSpec(
        PAIR,
        device=device,
        dtype=dtype,
        max_length=longest,
        python=python,
        args=args,
        logs=os.path.dirname(out),
        tp=tp,
        concurrency=12 if together else 1,
    )  # type: ignore[arg-type]
    if device == "cuda":
        engine_class.check(spec, (METHODS[arm],))
    began = time.monotonic()
    with engine_class(spec) as engine:
        engine.open((METHODS[arm],))
        start_s = time.monotonic() - began
        found = record(engine, arm, most)
        found |= {"describe": engine.describe(), "start_s": start_s}
        if engine.profiles(METHODS[arm]):
            found["looked"] = looked(engine, arm)
        if together:
            found["crowd"] = crowd(engine, arm, together)
        part = Path(f"{out}.part")
        part.write_text(json.dumps(found))
        part.replace(out)
        if others:
            found["scores"] = {other: scored(engine, Path(other)) for other in others}
            Path(out).write_text(json.dumps(found))
    same = [(told["same_text"], told["same_rounds"]) for told in found["answers"].values()]
    worst = {
        Path(other).parent.name: max(gaps.values(), default=None) for other, gaps in found.get("scores", {}).items()
    }
    print(f"{arm} {dtype}: started in {start_s:.0f} s; {sum(text for text, _ in same)} of {len(same)} texts and "
          f"{sum(rounds for _, rounds in same)} of their rounds are the built-in engine's; "
          f"largest gaps {worst}; tolerance {found.get('gap_tolerance')}; "
          f"{found['describe'].get('graphs')}")  # fmt: skip
    if not is_plain(METHODS[arm]):
        told = found["answers"].values()
        speed = sum(len(one["output_ids"]) - 1 for one in told) / sum(one["decode_s"] for one in told)
        print(f"  one at a time: {told_of(arm, found['answers'])}, {speed:.0f} tokens/s")
        if "looked" in found:
            print(f"  looked into: {found['looked']}")
        if together:
            many = found["crowd"]
            print(f"  {together} at once: {told_of(arm, many['answers'])}, {many['tokens_per_s']:.0f} tokens/s")


if __name__ == "__main__":
    main(sys.argv[1:])
