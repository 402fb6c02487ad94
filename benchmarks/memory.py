"""The memory that a round takes at a long context, held against what its caches need.

    python benchmarks/memory.py [--shape qwen3_8b | --pair tiny] [--context 32768] [--budget 1024] [--device cuda]

The pair is loaded (random weights in a published shape, or a built-in pair), its prompt of random tokens is taken as
read, and rounds of DDTree run as they do in a request: on a GPU as the captured graph, on a CPU as calls. `caches` are
keys and values of target and drafter and the recurrent state, by the tensors' own bytes; `weights` likewise. `round` is
what the most memory in use was beyond both and beyond the buffers of a request: on a GPU the allocator's peak, in which
a graph's pool is held for good; on a CPU the growth of the process's resident memory. `computed` is what
methods/reference/memory.py asks to be free for the arm, which decides whether it is started. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from methods.base import EngineSpec, ModelSpec, Request, Sampling
from methods.ddtree import DDTree
from methods.reference.clock import Clock, StageClock
from methods.reference.decode import Decoder
from methods.reference.memory import rank_bytes
from methods.reference.ranks import Rank

ROUNDS = 3
GIB = 2**30


def tensors(part: object, found: dict[int, int] | None = None) -> dict[int, int]:
    """Bytes of the tensors under an object of the reference engine, by storage: views count once."""
    found = {} if found is None else found
    if isinstance(part, Tensor):
        found[part.untyped_storage().data_ptr()] = part.untyped_storage().nbytes()
    elif isinstance(part, list | tuple):
        for item in part:
            tensors(item, found)
    elif isinstance(part, dict):
        for item in part.values():
            tensors(item, found)
    elif type(part).__module__.startswith("methods.reference"):
        for value in vars(part).values():
            tensors(value, found)
    return found


def caches(decoder: Decoder) -> int:
    """Bytes that hold a text: keys, values, recurrent states."""
    parts = [decoder.target.cache, decoder.target.snapshot(), decoder.drafter.cache if decoder.drafter else None]
    return sum(sum(tensors(part).values()) for part in parts)


def in_use(device: torch.device) -> int:
    """Bytes at this moment (CUDA), or the most so far (CPU)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak(decoder: Decoder, method: DDTree, context: int) -> tuple[int, int]:
    """Bytes held before the rounds, and the most that was held during them beyond that."""
    device, state = decoder.device, decoder._state
    runner, slots = decoder._runner(method, Sampling()), decoder.target.cache.slots
    gc.collect()
    held = in_use(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    runner.prepare(slots, by_stage=False)
    prompt = Request("long", (1,) * context, ROUNDS * decoder.block_size)
    state.begin(prompt, torch.ones((), dtype=torch.int64, device=device))  # the caches' contents do not matter here
    state.features_at.fill_(context - decoder.block_size)
    for _ in range(ROUNDS):
        runner.run(slots, StageClock(Clock(device), on=False), by_stage=False)
    highest = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else in_use(device)
    return held, highest - held


@torch.inference_mode()
def measure(spec: EngineSpec, dtype: str, budget: int) -> dict[str, Any]:
    """One line of the table, in bytes."""
    method = DDTree(budget)
    rank = Rank(spec, dtype, (method,), 0, 0, None)
    decoder = rank._decoder
    context = spec.max_length - ROUNDS * decoder.block_size
    held, beyond = peak(decoder, method, context)
    return {
        "arm": method.arm,
        "context": context,
        "weights_bytes": rank.weights_bytes,
        "caches_bytes": caches(decoder),
        "held_bytes": held,
        "round_bytes": beyond,
        "computed_bytes": rank_bytes(spec, dtype, method),
    }


def show(row: dict[str, Any], title: str) -> None:
    names = ("weights", "caches", "round", "round / caches", "held + round", "computed")
    table = Table("arm", "context", *names, title=title)
    total, share = row["held_bytes"] + row["round_bytes"], row["round_bytes"] / row["caches_bytes"]
    sizes = [f"{row[f'{name}_bytes'] / GIB:.3f} GiB" for name in ("weights", "caches", "round")]
    rest = (f"{share:.2f}", f"{total / GIB:.3f} GiB", f"{row['computed_bytes'] / GIB:.3f} GiB")
    table.add_row(row["arm"], str(row["context"]), *sizes, *rest)
    Console(width=130).print(table)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    pair = parser.add_mutually_exclusive_group()
    pair.add_argument("--shape", default="qwen3_8b", help="of methods/checkpoints/shapes (%(default)s)")
    pair.add_argument("--pair", choices=("tiny", "tiny_hybrid"), help="a built-in pair instead")
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args(argv)
    kind = f"builtin:{options.pair}" if options.pair else f"shape:{options.shape}"
    name = options.pair or options.shape
    model = ModelSpec(name, f"{kind}/target", f"{kind}/drafter", "checkpoint" if options.pair else "random")
    # Rounds of the largest block follow the context.
    spec = EngineSpec(model, device=options.device, dtype=options.dtype, max_length=options.context + ROUNDS * 16)
    row = measure(spec, options.dtype, options.budget)
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    show(row, f"{name}, {options.dtype}, {where}, torch {torch.__version__}")
    print(json.dumps({"model": name, "dtype": options.dtype, "device": where, "torch": torch.__version__, **row}))


if __name__ == "__main__":
    main()
