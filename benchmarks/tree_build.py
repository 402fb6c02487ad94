"""How long a draft tree takes to build, by budget: whole depths at a time, and a plain Python heap.

    python benchmarks/tree_build.py [--device cuda] [--repeats 50]

Both builders get the same candidates and return the same tree, bit for bit. The heap's time includes bringing the
candidates to the host and the tree back, as it must. Times are medians; the two are measured in turns, in one run,
and the ratio is the heap's time over the other's. `tree.build` takes the heap on a CPU, where one row at a time is
cheaper than many small tensor operations, and the other on a GPU, where the heap would stop the stream every round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from methods.reference import tree

POSITIONS, VOCABULARY = 15, 4096
BUDGETS = (16, 32, 64, 128, 256, 512, 1024)


def drafts(count: int, device: torch.device) -> list[tree.Candidates]:
    """Candidates as sharp as a trained drafter's: each position less certain than the one before."""
    generator = torch.Generator().manual_seed(0)
    sharpness = torch.linspace(6.0, 2.0, POSITIONS)[:, None]
    made = []
    for _ in range(count):
        logits = torch.randn(POSITIONS, VOCABULARY, generator=generator) * sharpness
        top = torch.log_softmax(logits, dim=-1).topk(max(BUDGETS), dim=-1)
        made.append(tree.Candidates(top.values.to(device), top.indices.to(device)))
    return made


def timed(action: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    device = torch.device(options.device)
    root = torch.tensor(0, device=device)
    made = drafts(8, device)
    table = Table("budget", "by depth (ms)", "heap (ms)", "heap / by depth", title=f"tree build on {device.type}")
    for budget in BUDGETS:
        ours, heap = [], []
        for repeat in range(options.repeats + 3):
            whole = made[repeat % len(made)]
            part = tree.Candidates(*(c[:, :budget].contiguous() for c in whole))
            ours.append(timed(lambda part=part, budget=budget: tree.build_by_depth(part, root, budget), device))
            heap.append(timed(lambda part=part, budget=budget: tree.build_by_heap(part, root, budget), device))
        fast, slow = (statistics.median(times[3:]) for times in (ours, heap))  # the first three warm up
        table.add_row(str(budget), f"{fast * 1e3:.3f}", f"{slow * 1e3:.3f}", f"{slow / fast:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
