"""How long the analysis takes, and how much memory, on a large made result set.

    python benchmarks/analysis.py [--keep FOLDER] [--cells 200] [COMMAND …]

Makes a results folder of 200 cells × 200 timed requests × some 60 rounds in a temporary place (`--keep` takes it from
a folder, or makes it there for the next time), then runs each COMMAND of `python -m analysis`, in which `{}` stands
for that folder, in a process of its own and prints its wall time, its time on a processor (what counts
where others work on the machine) and its peak memory. Without a COMMAND: every table.
Its cells are two models, ten workloads and two temperatures, at tp 1, 2 and 4 and at concurrency 4 and 16.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

from harness.records import fold, write_json

ARMS: dict[str, tuple[str, int | None, float]] = {  # method, budget, tokens a round accepts
    "autoregressive": ("autoregressive", None, 0.0),
    "dflash": ("dflash", None, 2.6),
    **{f"ddtree-{budget}": ("ddtree", budget, 2.6 + 0.3 * step) for step, budget in enumerate((16, 32, 64, 128), 1)},
    **{f"ddtree-{budget}": ("ddtree", budget, 3.6 + 0.1 * step) for step, budget in enumerate((256, 512, 1024), 1)},
    "ddtree-16-chain": ("ddtree", 16, 3.0),
}
MODELS = ("qwen3_4b", "qwen3_8b")
WORKLOADS = ("gsm8k", "math500", "humaneval", "mbpp", "mt_bench", "alpaca", "chat", "code", "tool_calls", "aime24")
PLACES = ((1, 1), (2, 1), (4, 1), (1, 4), (1, 16))  # tp, concurrency
N_OUTPUT, DEEPEST, WATCHED = 241, 15, 3


def make_results(folder: Path, cells: int = 200, requests: int = 200) -> Path:
    """A finished results folder; the same one each time."""
    factors = product(MODELS, (0.0, 1.0), PLACES, WORKLOADS)
    for number, (model, temperature, (tp, concurrency), workload) in enumerate(islice(factors, cells)):
        settings = {"model": model, "temperature": temperature, "tp": tp, "concurrency": concurrency}
        _make_cell(folder / "cells" / f"{number:012x}", requests, settings | {"workload": workload})
    return folder


def _make_cell(folder: Path, requests: int, settings: dict[str, Any]) -> None:
    sitting = folder / "sittings" / "0"
    for place in (sitting, folder / "arms"):
        place.mkdir(parents=True)
    content = {"schema_version": 1, "cell_id": folder.name, "settings": SETTINGS | settings}
    write_json(folder / "cell.json", content | {"workload_name": settings["workload"]})
    for arm, (method, budget, _) in ARMS.items():
        stored = {"arm": arm, "method": method, "budget": budget, "settings": {}, "status": "complete", "reason": None}
        write_json(folder / "arms" / f"{arm}.json", stored)
    write_json(sitting / "environment.json", ENVIRONMENT)
    with (sitting / "requests.jsonl").open("w") as file:
        for record in _records(folder.name, max(1, requests // len(ARMS)), settings):
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
    fold(folder)
    write_json(folder / "status.json", {"status": "complete", "arms": dict.fromkeys(ARMS, "complete")})


def _records(cell_id: str, prompts: int, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    draw = random.Random(cell_id)
    names = [f"{settings['workload']}-{prompt:03d}" for prompt in range(prompts)]
    for name in names:
        for arm in ARMS:
            yield _record(draw, cell_id, settings, name, arm, "timed", 0)
    for place in range(3):
        for name in names[:WATCHED]:
            yield _record(draw, cell_id, settings, name, "autoregressive", "sentinel", place)
    for name in names[:WATCHED]:
        for arm in ARMS:
            yield _record(draw, cell_id, settings, name, arm, "profile", 0)


def _record(
    draw: random.Random, cell_id: str, settings: dict[str, Any], name: str, arm: str, phase: str, repeat: int
) -> dict[str, Any]:
    _, budget, accepted = ARMS[arm]
    rounds = _rounds(draw, accepted)
    text = random.Random(name)  # the same prompt and answer wherever they are asked
    prompt_ids = [text.randrange(150_000) for _ in range(120)]
    round_s = (0.004 + 4e-6 * (budget or 1) + (0.001 if accepted else 0)) * settings["concurrency"] ** 0.3
    round_s *= (0.3 + 0.7 / settings["tp"]) * (1 if phase == "sentinel" else draw.gauss(1, 0.02))
    decode = round_s * len(rounds)
    shares = {"draft_s": 0.2, "build_s": 0.05, "verify_s": 0.7, "commit_s": 0.05}
    return {
        "cell_id": cell_id,
        "sitting": 0,
        "phase": phase,
        "arm": arm,
        "prompt_id": name,
        "turn": 0,
        "repeat": repeat,
        "order_index": 0,
        "category": ("easy", "hard")[int(name[-3:]) % 2],
        "prompt_text": f"What about {name}? " * 10,
        "prompt_ids": prompt_ids,
        "output_ids": [text.randrange(150_000) for _ in range(N_OUTPUT)],
        "text": f"The answer to {name} is 12. " * 30,
        "finish_reason": "length",
        "correct": bool(text.randrange(2)),
        "answer": "12",
        "n_input": len(prompt_ids),
        "n_output": N_OUTPUT,
        "ttft_s": 0.03,
        "decode_s": decode,
        "e2e_s": 0.03 + decode,
        "tpot_s": decode / (N_OUTPUT - 1),
        "rounds": rounds,
        "tree_checksum": 7,
        "exact_match": None,
        "first_divergence": None,
        "near_ties": 0,
        "true_violations": 0,
        "max_gap": 0.0,
        "gap_tolerance": 0.25,
        "peak_mem_bytes": 17_000_000_000,
        "energy_j": 0.5 * N_OUTPUT,
        "oracle_rounds": 0,
        "oracle_nodes": 0,
        "oracle_max_gap": None,
        "oracle_disagreements": 0,
        "shadow": None,
        "stages": {stage: share * decode for stage, share in shares.items()} if phase == "profile" else None,
        "started_utc": "2026-11-29T12:00:00.000+00:00",
    }


def _rounds(draw: random.Random, accepted: float) -> list[list[Any]]:
    """Rounds that each go one token deeper with the same chance, until the length limit."""
    chance, left, made = accepted / (1 + accepted), N_OUTPUT - 1, []
    while left > 0:
        depth = 0
        while depth < DEEPEST and draw.random() < chance:
            depth += 1
        made.append([depth, depth + 1, ""] if depth < left else [left, left, "length"])
        left -= made[-1][1]
    return made


def measure(command: str, folder: Path) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak MiB of one command of the analysis; what it prints is not shown."""
    words = [sys.executable, "-m", "analysis", *(word.replace("{}", str(folder)) for word in shlex.split(command))]
    begin = time.perf_counter()
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{shlex.join(words)} ended with {child.returncode}.")
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("commands", metavar="COMMAND", nargs="*", help="such as 'table {} --stages'")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="of the result set, for the next time")
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--requests", type=int, default=200, help="timed ones a cell (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary) / "results"
        if not (folder / "cells").is_dir():
            begin = time.perf_counter()
            make_results(folder, options.cells, options.requests)
            print(f"made {options.cells} cells of {options.requests} requests in {time.perf_counter() - begin:.0f} s")
        for command in options.commands or COMMANDS:
            seconds, busy, mebibytes = measure(command, folder)
            print(f"{seconds:6.1f} s ({busy:5.1f} s busy) {mebibytes:6.0f} MiB   {command}", flush=True)


COMMANDS = (
    *("table {}", "table {} --by category", "table {} --stages", "table {} --latency", "table {} --acceptance"),
    *("table {} --paper", "table {} --paper --published", "table {} --budgets", "table {} --scaling"),
    *("table {} --categories", "table {} --format csv", "compare {} {}"),
)
ENVIRONMENT: dict[str, Any] = {"engine": {"dtype": "bfloat16", "vocab_size": 151_936}, "gap_tolerance": 0.25}
SETTINGS: dict[str, Any] = {
    "engine": "reference",
    "engine_target": "methods.engines.reference.ReferenceEngine",
    "target": "made/target",
    "drafter": "made/drafter",
    "weights": "random",
    "device": "cuda",
    "dtype": "bfloat16",
    "workload_path": None,
    "top_p": 1.0,
    "top_k": 0,
    "max_new_tokens": N_OUTPUT,
    "seed": 0,
    "repeats": 1,
}

if __name__ == "__main__":
    main()
