"""Where a round's time goes: draft, build, verify and commit by method and budget, on the built-in pair.

    python benchmarks/round_stages.py [--device cuda] [--tokens 64]

The floor printed first is what reading the weights once costs on this machine: their bytes over the copy bandwidth
measured here and now. Stages are timed in a profiled pass (synchronised); `round` is the unprofiled time of the same
request divided by its rounds, so stages and round can be compared.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Literal, cast

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, Method, ModelSpec, Request
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.reference import ReferenceEngine
from methods.locate import resolve
from workloads import load, render

METHODS: list[Method] = [Autoregressive(), DFlash(), *(DDTree(b) for b in (16, 32, 64, 128, 256, 512, 1024))]


def bandwidth(device: torch.device) -> float:
    """Bytes per second that a copy reads and writes, the best of ten."""
    source = torch.empty(64 * 2**20, dtype=torch.float32, device=device)
    target, best = torch.empty_like(source), float("inf")
    for _ in range(10):
        begin = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return 2 * source.nbytes / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    device = cast(Literal["cpu", "cuda"], options.device)
    model = ModelSpec("tiny", "builtin:tiny/target", "builtin:tiny/drafter")
    tokenizer = AutoTokenizer.from_pretrained(resolve(model.target))
    prompts = load("smoke").prompts[:6]
    requests = [Request(p.id, render(tokenizer, p), options.tokens) for p in prompts]
    length = max(len(r.prompt_ids) for r in requests) + options.tokens
    console = Console()
    with ReferenceEngine(EngineSpec(model, device=device, max_length=length)) as engine:
        engine.open(METHODS)
        size = int(engine.describe()["weights_bytes_rank0"])
        rate = bandwidth(torch.device(device))
        console.print(
            f"floor: {size / 1e6:.1f} MB of weights at {rate / 1e9:.1f} GB/s = {size / rate * 1e3:.3f} ms a round "
            f"({device}, {os.cpu_count()} cores)"
        )
        table = Table("arm", "draft", "build", "verify", "commit", "sum", "round", "ms per token", title="ms per round")
        for method in METHODS:
            engine.generate(method, requests[0])
            plain = [engine.generate(method, request) for request in requests]
            profiled = [engine.generate(method, request, profile=True) for request in requests]
            rounds = sum(len(g.rounds) for g in plain)
            stages = [g.stages for g in profiled if g.stages]
            parts = [sum(getattr(s, f"{name}_s") for s in stages) for name in ("draft", "build", "verify", "commit")]
            decode = sum(g.decode_s for g in plain)
            tokens = sum(len(g.output_ids) - 1 for g in plain)
            cells = [*parts, sum(parts), decode]
            table.add_row(method.arm, *(f"{c / rounds * 1e3:.2f}" for c in cells), f"{decode / tokens * 1e3:.2f}")
        console.print(table)


if __name__ == "__main__":
    main()
