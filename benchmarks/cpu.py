"""The built-in pair on this machine's CPU, this checkout against another: is it slower than it was?

    git worktree add --detach /tmp/before COMMIT
    python benchmarks/cpu.py --before /tmp/before [--rounds 4] [--prompts 3] [--new-tokens 48]

Both checkouts answer the same token ids with this checkout's weights, each in processes of its own that take turns, the
first of them in turn too; within a process the arms take turns prompt by prompt, after one untimed answer each. A
round of two processes gives one ratio an arm: the geometric mean over prompts of this checkout's time per round over
the other's. Rounds are what the interval is over. Time is an answer's on its one processor, the prefill included, which
others on the machine disturb less than the clock's; per round and not per token, so that a checkout which drafts
otherwise is not thereby faster. Whether the texts are the same is said. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
BUDGETS = (64, 1024)
Answers = dict[str, list[dict[str, Any]]]  # by arm, one a prompt


def answers(job: dict[str, Any]) -> Answers:
    """What a process does: every arm's processor seconds per round and text, with what the first engine had already."""
    import time

    import torch

    from methods.autoregressive import Autoregressive
    from methods.base import EngineSpec, ModelSpec, Request
    from methods.ddtree import DDTree
    from methods.dflash import DFlash
    from methods.engines.reference import ReferenceEngine

    torch.set_num_threads(1)
    methods = [Autoregressive(), DFlash(), *(DDTree(budget) for budget in BUDGETS)]
    new_tokens = job["new_tokens"]
    length = max(map(len, job["prompts"])) + new_tokens
    spec = EngineSpec(ModelSpec("tiny", job["target"], job["drafter"]), dtype="float32", max_length=length)
    found: Answers = {method.arm: [] for method in methods}
    with ReferenceEngine(spec) as engine:
        engine.open(methods)
        for number, prompt in enumerate([job["prompts"][0], *job["prompts"]]):
            request = Request(str(number), tuple(prompt), new_tokens)
            for method in methods:
                begin = time.process_time()
                one = engine.generate(method, request)
                seconds = (time.process_time() - begin) / len(one.rounds)
                if number:  # the first is warm-up
                    found[method.arm].append({"round_s": seconds, "ids": list(one.output_ids)})
    return found


def in_process(checkout: Path, job: Path) -> Answers:
    """`answers` of a checkout, in a process that sees no other one."""
    words = [sys.executable, str(Path(__file__).resolve()), "--job", str(job)]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{checkout} cannot run this benchmark:\n{done.stderr.strip()[-2000:]}")
    found: Answers = json.loads(done.stdout.splitlines()[-1])
    return found


def prompts(count: int) -> list[list[int]]:
    """Token ids of the first built-in prompts of the main types."""
    from transformers import AutoTokenizer

    import workloads
    from methods.locate import resolve

    tokenizer = AutoTokenizer.from_pretrained(resolve("builtin:tiny/target"))
    return [list(workloads.render(tokenizer, prompt)) for prompt in workloads.load("smoke").prompts[:count]]


def compare(before: Path, after: Path, job: dict[str, Any], rounds: int) -> dict[str, dict[str, Any]]:
    """By arm: milliseconds a round of both checkouts, their ratio with its interval, and whether texts agree."""
    import numpy as np

    from analysis import stats

    sides: dict[str, list[Answers]] = {"before": [], "after": []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        for turn in range(rounds):
            order = [("before", before), ("after", after)]
            for side, checkout in order[:: 1 if turn % 2 == 0 else -1]:
                sides[side].append(in_process(checkout, file))
            print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
    rows = {}
    for arm in sides["after"][0]:
        times = {side: np.log([[one["round_s"] for one in found[arm]] for found in sides[side]]) for side in sides}
        ratio = stats.bootstrap_ci((times["after"] - times["before"]).mean(axis=1))
        texts = [[one["ids"] for one in sides[side][0][arm]] for side in ("before", "after")]
        rows[arm] = {
            **{f"{side}_ms": float(np.exp(np.median(times[side]))) * 1e3 for side in sides},
            **dict(zip(("ratio", "low", "high"), np.exp(ratio[:3]).tolist(), strict=True)),
            "same_texts": texts[0] == texts[1],
        }
    return rows


def show(rows: dict[str, dict[str, Any]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("arm", "before", "after", "after / before", "same texts", title=title)
    for arm, row in rows.items():
        ratio = f"{row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        table.add_row(arm, f"{row['before_ms']:.2f}", f"{row['after_ms']:.2f}", ratio, str(row["same_texts"]).lower())
    console = Console(width=110)
    console.print(table)
    console.print(
        "milliseconds of one processor a round, medians; below 1: this checkout is faster; 95 % interval over rounds"
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--before", type=Path, metavar="PATH", help="the other checkout")
    parser.add_argument("--rounds", type=int, default=4, help="of two processes (%(default)s)")
    parser.add_argument("--prompts", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--new-tokens", type=int, default=48, help="a prompt (%(default)s)")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.job:
        print(json.dumps(answers(json.loads(options.job.read_text(encoding="utf-8")))))
        return
    if options.before is None or not (options.before / "methods" / "base.py").is_file():
        raise SystemExit(f"--before {options.before} is not accepted: the folder of a checkout of this project is.")
    sys.path.insert(0, str(HERE))
    from methods.locate import resolve

    pair = {side: str(resolve(f"builtin:tiny/{side}").resolve()) for side in ("target", "drafter")}
    job = {**pair, "prompts": prompts(options.prompts), "new_tokens": options.new_tokens}
    rows = compare(options.before.resolve(), HERE, job, options.rounds)
    asked = f"{options.prompts} prompts, {options.new_tokens} tokens, {options.rounds} rounds"
    show(rows, f"tiny, float32, one CPU thread, {asked}")
    facts = {"before": str(options.before), "rounds": options.rounds, "prompts": options.prompts}
    arms = {arm: {name: None if value != value else value for name, value in row.items()} for arm, row in rows.items()}
    print(json.dumps({**facts, "new_tokens": options.new_tokens, "arms": arms}))


if __name__ == "__main__":
    main()
