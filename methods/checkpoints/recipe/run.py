"""Makes a built-in pair from nothing: `python -m methods.checkpoints.recipe --out FOLDER` (one GPU, 8 minutes).

`--pair tiny_hybrid` makes the hybrid one, with the first pair's tokenizer and text.

Steps: tokenizer and held-out prompts (skipped where they exist), corpus in worker processes beside the target's
training, the target's own text, the drafter, the evaluation. `--toy` runs every step in a minute on a CPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from methods.checkpoints.recipe import evaluation, generation, heldout, tokenizer
from methods.checkpoints.recipe.corpus import Plan, write_shards
from methods.checkpoints.recipe.folders import load_drafter, load_target, save_drafter, save_target
from methods.checkpoints.recipe.shapes import PAIRS
from methods.checkpoints.recipe.training import Budget, Machine, train_drafter, train_target

ROOT = Path(__file__).resolve().parents[3]


def _data(plan: Plan, folder: Path, prompts: int, workers: int) -> None:
    """All text that training needs, in the order it needs it (a process of its own)."""
    os.nice(10)
    start = time.monotonic()
    if plan.shards:
        counts = write_shards(plan, folder, workers)
        print("corpus:", json.dumps(counts), f"{time.monotonic() - start:.1f} s", flush=True)
    generation.self_prompts(plan, prompts, workers, folder)
    print(f"prompts for self-generated text after {time.monotonic() - start:.1f} s", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m methods.checkpoints.recipe", description=__doc__)
    parser.add_argument("--pair", choices=list(PAIRS), default="tiny")
    parser.add_argument(
        "--out", type=Path, required=True, help="where target/, drafter/ and evaluation.json are written"
    )
    parser.add_argument("--work", type=Path, default=Path("/tmp/tiny-recipe"), help="where shards are kept")
    parser.add_argument("--tokenizer", type=Path, default=ROOT / "methods/checkpoints/tiny/target")
    parser.add_argument("--held-out", type=Path, default=ROOT / "workloads/builtin")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shards", type=int, default=220)
    parser.add_argument("--prompts", type=int, default=180_000, help="prompts that the target answers for the drafter")
    parser.add_argument("--target-seconds", type=float, default=210.0)
    parser.add_argument("--target-steps", type=int, default=0, help="a fixed number of steps instead of seconds")
    parser.add_argument("--drafter-seconds", type=float, default=140.0)
    parser.add_argument("--drafter-steps", type=int, default=0)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--answer-seconds", type=float, default=60.0, help="at most, for the self-generated text")
    parser.add_argument(
        "--evaluate",
        type=int,
        default=96,
        help="generated held-out prompts a type, beside the built-in ones; 0: measure later",
    )
    parser.add_argument("--target", type=Path, help="a trained target's folder: train the drafter alone")
    parser.add_argument("--only-measure", action="store_true", help="evaluate the pair that lies in --out, no more")
    parser.add_argument("--toy", action="store_true", help="every step at a size for a CPU; the result is useless")
    return parser.parse_args()


def main() -> None:
    """Runs all steps and prints the figures."""
    from tokenizers import Tokenizer

    options = _arguments()
    if not (options.tokenizer / "tokenizer.json").exists():
        tokenizer.build(options.tokenizer, options.seed)
    words = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    if not (options.held_out / "chat.jsonl").exists():
        heldout.write(options.held_out, words)
    cuda = torch.cuda.is_available()
    # Float32 products are the delta rule's; its training bears TF32. What is measured is IEEE.
    torch.set_float32_matmul_precision("high")
    if cuda:
        # cuDNN's attention plans anew for every shape; the flash kernel does not.
        torch.backends.cuda.enable_cudnn_sdp(False)
    machine = Machine("cuda" if cuda else "cpu", torch.bfloat16 if cuda else torch.float32)
    if options.only_measure:
        measure(options, machine.device, words)
        return
    if options.toy:
        options.shards, options.prompts, options.evaluate = 2, 120, 2
        options.target_steps, options.drafter_steps = 6, 6
    plan = Plan(options.seed, 0 if options.target else options.shards, options.tokenizer, options.held_out)
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    workers = max(1, (os.cpu_count() or 2) - 3)
    spawn = multiprocessing.get_context("spawn")
    data = spawn.Process(target=_data, args=(plan, options.work, options.prompts, workers))
    data.start()
    batch = 4096 if options.toy else 32768
    if options.target:
        target = load_target(options.target)
    else:
        budget = Budget(options.target_steps, options.target_seconds, options.rate, batch)
        target = train_target(PAIRS[options.pair].target, plan, options.work, machine, budget)
    save_target(target, options.out / "target", options.tokenizer)
    data.join()
    draft(options, plan, machine, Budget(options.drafter_steps, options.drafter_seconds, options.rate * 0.6, batch, 2))
    if options.evaluate:
        measure(options, machine.device, words)


def draft(options: argparse.Namespace, plan: Plan, machine: Machine, budget: Budget) -> None:
    """Lets the saved target answer prompts, and trains the drafter on its answers."""
    start = time.monotonic()
    target = load_target(options.out / "target").to(machine.device)
    prompts = generation.load_prompts(options.work)
    limit = 32 if options.toy else 320
    samples = generation.self_generate(target, prompts, machine.dtype, plan.seed, limit, options.answer_seconds)
    made = sum(len(ids) - n for ids, n in samples) / 1e6
    spent = time.monotonic() - start
    print(f"self-generated: {len(samples)} answers, {made:.2f}M tokens, {spent:.1f} s", flush=True)
    drafter = train_drafter(PAIRS[options.pair], target, samples, machine, budget, plan.seed)
    save_drafter(drafter, options.out / "drafter", target.shape.layers)


def measure(options: argparse.Namespace, device: str, words: Any) -> None:
    """Evaluates the saved pair on the built-in prompts, then on more held-out ones, and writes evaluation.json."""
    torch.set_float32_matmul_precision("highest")
    start = time.monotonic()
    target = load_target(options.out / "target").to(device)
    drafter = load_drafter(options.out / "drafter").to(device)
    sets = {
        "built_in": evaluation.built_in(options.held_out)[:: 14 if options.toy else 1],
        "held_out": evaluation.generated(options.evaluate, options.seed),
    }
    report = {}
    for name, talks in sets.items():
        report[name] = evaluation.evaluate(target, drafter, talks, words, 24 if options.toy else 320)
        text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
        (options.out / "evaluation.json").write_text(text, encoding="utf-8")
        print(name, json.dumps({k: v for k, v in report[name].items() if k != "samples"}), flush=True)
    print(f"evaluation: {time.monotonic() - start:.1f} s", flush=True)
