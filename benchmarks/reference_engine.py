"""How near the reference engine is to the hardware: floor, matrix products alone, and whole rounds, by method.

    python benchmarks/reference_engine.py [--model qwen3_8b] [--tp 1] [--context 512] [--budgets 64,256,1024]

Random weights of a published pair's shape, on GPUs. Three lines of defence against flattering oneself: the floor is
bytes over the copy bandwidth and operations over the matrix rate, both measured here and now; the products are all of
a round's matrix products through cuBLAS in one CUDA graph; a round is the product's own graph, draft to commit, on a
text that grows. The drafter computes its block, then its probabilities are replaced by ones of a realistic tree; the
target computes its choices, then they are replaced so that walks of mean depth 5.5 are committed. JSON comes last.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, Method, ModelSpec, Request, Sampling
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.reference.clock import STAGES, Clock, StageClock
from methods.reference.decode import Decoder
from methods.reference.ranks import Rank
from methods.reference.rounds import Cycle
from methods.reference.tree import Candidates

WALKS = (3, 8, 5, 7, 4, 6)  # depths accepted, in turn
ROUNDS, REPEATS = 20, 4  # rounds on a text before it begins anew, and how often


class ForcedCycle(Cycle):
    """A round that computes everything and then takes a realistic tree and a walk of a given depth."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        device, vocabulary = self._target.device, self._target.config.vocabulary
        self._walks = torch.tensor(WALKS, device=device)
        self._stranger = torch.full((1,), vocabulary - 1, device=device)  # a token no tree holds
        generator = torch.Generator().manual_seed(1)
        flatness = torch.linspace(0.45, 1.6, max(self._depth_limit, 1))[:, None]  # later positions are less sure
        ranks = torch.arange(1, 1025, dtype=torch.float32)
        noise = torch.rand(len(flatness), len(ranks), generator=generator) * 0.3
        mass = torch.softmax(-(ranks.log() / flatness) * 1.5 - noise.cumsum(1) * 0.02, dim=-1)
        self._log_probs = mass.sort(dim=-1, descending=True).values.log().to(device)
        self._ids = torch.stack([torch.randperm(vocabulary - 1, generator=generator)[:1024] for _ in flatness]).to(
            device
        )

    def propose(self, seen: int) -> Candidates:
        found = super().propose(seen)
        k = found.ids_lk.shape[1]
        self._spent = found.log_probs_lk.sum() + found.ids_lk.sum()  # the drafter's own work stays in the graph
        return Candidates(self._log_probs[:, :k].contiguous(), self._ids[:, :k].contiguous())

    def choose(self, logits_nv: Tensor) -> Tensor:
        chosen = super().choose(logits_nv)
        if not self._depth_limit:
            return chosen
        depths = torch.arange(self._depth_limit + 1, device=chosen.device)
        rows_d = (self.draft.depths_n == depths[:, None]).to(torch.int64).argmax(dim=1)  # the chain of first choices
        there_d = self.draft.depths_n[rows_d] == depths
        wanted = self._walks[self._state.rounds % len(self._walks)]
        next_d = torch.where(there_d[1:] & (depths[1:] <= wanted), self.draft.tokens_n[rows_d[1:]], self._stranger)
        return self._stranger.expand(len(chosen)).index_copy(0, rows_d[:-1], next_d)


@dataclass(frozen=True)
class Row:
    """One method's figures, in milliseconds."""

    arm: str
    width: int
    floor: float
    products: float
    round: float
    stages: dict[str, float]
    accepted: float
    peak_gib: float

    @property
    def overhead(self) -> float:
        """Build and commit: what is neither the drafter's pass nor the target's."""
        return self.stages["build"] + self.stages["commit"]


def timed(run: Callable[[], object], times: int = 20) -> float:
    """Median milliseconds of a call on the device, captured in a CUDA graph."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return statistics.median(between(graph.replay, times))


def between(step: Callable[[], object], times: int) -> list[float]:
    step()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in pairwise(events)]


def ceilings(device: torch.device) -> tuple[float, float]:
    """Copy bandwidth in bytes/s and bf16 matrix rate in operations/s, measured."""
    source = torch.randn(2**28, device=device, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    bandwidth = 2 * source.nbytes / timed(lambda: target.copy_(source)) * 1e3
    left, right = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    rate = 2 * 8192**3 / timed(lambda: left @ right) * 1e3
    return bandwidth, rate


def matrices(part: object, found: list[Tensor] | None = None) -> list[Tensor]:
    """The weight matrices under an object, in the order of its attributes."""
    found = [] if found is None else found
    if isinstance(part, Tensor):
        if part.dim() == 2 and part.is_cuda and part.numel() > 2**20:
            found.append(part)
    elif isinstance(part, list | tuple):
        for item in part:
            matrices(item, found)
    elif type(part).__module__.startswith("methods.reference"):
        for value in vars(part).values():
            matrices(value, found)
    return found


def products(decoder: Decoder, method: Method, width: int) -> tuple[list[tuple[Tensor, int]], int]:
    """The weights a round multiplies with and how many rows each sees; and their bytes."""
    target, drafter = decoder.target, decoder.drafter
    used = [(weight, width) for layer in target._layers for weight in matrices(layer)]
    used.append((target._head, width))
    if drafter and method.uses_drafter:
        block = decoder.block_size
        used += [(weight, block) for layer in drafter._layers for weight in matrices(layer)]
        used += [(drafter._fc, block), (target._head, block - 1)]
    return used, sum(weight.nbytes for weight, _ in used)


def measure(decoder: Decoder, method: Method, request: Request, bandwidth: float, rate: float) -> Row:
    device, width = decoder.device, method.width(decoder.block_size)
    used, size = products(decoder, method, width)
    operations = sum(2 * weight.numel() * rows for weight, rows in used)
    rows = {
        (weight.shape[1], n): torch.randn(n, weight.shape[1], device=device, dtype=weight.dtype) for weight, n in used
    }

    def multiply() -> None:
        for weight, n in used:
            F.linear(rows[weight.shape[1], n], weight)

    alone = timed(multiply)
    runner = decoder._runner(method, Sampling())
    slots = decoder.target.cache.slots
    runner.prepare(slots, by_stage=False)
    runner.prepare(slots, by_stage=True)
    torch.cuda.reset_peak_memory_stats()
    whole: list[float] = []
    off = StageClock(Clock(device), on=False)
    for _ in range(REPEATS):
        decoder._feed(decoder._prefill(method, request))
        whole += between(lambda: runner.run(slots, off, by_stage=False), ROUNDS)
    log = decoder._state.log[: ROUNDS + 1, 0].float().mean()
    decoder._feed(decoder._prefill(method, request))
    clock = StageClock(Clock(device), on=True)
    for _ in range(ROUNDS):
        runner.run(slots, clock, by_stage=True)
    total = clock.total(ROUNDS)
    assert total is not None
    stages = {name: getattr(total, f"{name}_s") / ROUNDS * 1e3 for name in STAGES}
    floor = max(size / bandwidth, operations / rate) * 1e3
    peak = torch.cuda.max_memory_allocated() / 2**30
    return Row(method.arm, width, floor, alone, statistics.median(whole), stages, float(log), peak)


def report(rows: list[Row], title: str, facts: dict[str, Any]) -> None:
    table = Table(
        "arm", "width", "floor", "products", "round", "÷ floor", "÷ products", *STAGES, "accepted", title=title
    )
    for row in rows:
        times = [row.floor, row.products, row.round, row.round / row.floor, row.round / row.products]
        cells = [f"{value:.2f}" for value in (*times, *row.stages.values(), row.accepted)]
        table.add_row(row.arm, str(row.width), *cells)
    console = Console(width=150)
    console.print(table)
    console.print("milliseconds a round; stages as graphs of their own; accepted: drafted tokens committed a round")
    print(json.dumps({**facts, "rows": [{**vars(row), "overhead": row.overhead} for row in rows]}))


def work(rank: int, options: argparse.Namespace, port: int) -> None:
    methods = [Autoregressive(), DFlash(), *(DDTree(int(b)) for b in options.budgets.split(","))]
    model = ModelSpec(options.model, f"shape:{options.model}/target", f"shape:{options.model}/drafter", "random")
    length = options.context + ROUNDS * 17 + 64
    spec = EngineSpec(model, options.tp, "cuda", options.dtype, max_length=length)
    torch.cuda.set_device(rank)
    bandwidth, rate = ceilings(torch.device("cuda", rank))
    decoder = Rank(spec, options.dtype, tuple(methods), rank, port, None)._decoder
    decoder.cycle_type = ForcedCycle
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, decoder.target.config.vocabulary - 1, (options.context,), generator=generator).tolist()
    request = Request("benchmark", tuple(ids), ROUNDS * 17 + 17)
    rows = []
    with torch.inference_mode():
        for method in methods:
            rows.append(measure(decoder, method, request, bandwidth, rate))
    if rank == 0:
        facts = {"model": options.model, "tp": options.tp, "context": options.context, "dtype": options.dtype}
        facts |= {"gpu": torch.cuda.get_device_name(), "bandwidth_bytes_per_s": bandwidth, "operations_per_s": rate}
        title = f"{options.model}, {options.dtype}, tp {options.tp}, {options.context} tokens, {facts['gpu']}: "
        report(rows, title + f"{bandwidth / 1e12:.2f} TB/s, {rate / 1e12:.0f} TFLOP/s", facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="qwen3_8b")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--budgets", default="16,32,64,128,256,512,1024")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("a CUDA device is needed: on a CPU use benchmarks/cpu.py")
    if options.tp == 1:
        work(0, options, 0)
    else:
        start_processes(work, (options, 29501), nprocs=options.tp, start_method="spawn")


if __name__ == "__main__":
    main()
