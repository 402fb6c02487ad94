"""How near the reference engine is to the hardware: floor, matrix products alone, and whole rounds, by method.

    python benchmarks/reference_engine.py [--model qwen3_8b] [--tp 1,2] [--context 512] [--budgets 64,256,1024]

Random weights of a published pair's shape, on GPUs. Three lines of defence against flattering oneself: the floor is
bytes over the copy bandwidth and operations over the matrix rate, both measured here and now; the products are all of
a round's matrix products through cuBLAS in one CUDA graph; a round is the product's own graph, draft to commit, on a
text that grows. The drafter computes its block, then its probabilities are replaced by ones of a realistic tree; the
target computes its choices, then they are replaced so that walks of mean depth 5.5 are committed. Over several ranks
floor and products are one rank's, and the round is timed a second time with all collectives left out: the difference
is what the ranks' meeting costs. At the end the methods answer prompts on the built-in pair, and every token is checked
against the target's own. JSON comes last.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from multiprocessing import get_context
from typing import Any, Literal
from unittest.mock import patch

import torch
import torch.nn.functional as F
from built_in import pair, requests
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, Method, ModelSpec, Request, Sampling
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.reference import ReferenceEngine
from methods.reference.clock import STAGES, Clock, StageClock
from methods.reference.decode import Decoder
from methods.reference.parallel import Group
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
        wanted = self._walks.index_select(0, self._state.rounds[None] % len(self._walks))  # [rounds] would be read
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
    apart: float | None = None  # a round of ranks that do not meet
    round_by_rank: list[float] = field(default_factory=list)

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
    """Bandwidth of a copying kernel in bytes/s (a graph's own copies are slower) and bf16 operations/s, measured."""
    source = torch.randn(2**28, device=device, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    bandwidth = 2 * source.nbytes / timed(lambda: torch.mul(source, 1.0, out=target)) * 1e3
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
    whole = rounds(decoder, method, request)
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
    row = Row(method.arm, width, floor, alone, whole, stages, float(log), peak)
    return row if decoder.target.group.size == 1 else split(row, decoder, method, request)


def rounds(decoder: Decoder, method: Method, request: Request) -> float:
    """Median milliseconds of a captured round."""
    runner, slots, off = decoder._runner(method, Sampling()), decoder.target.cache.slots, Clock(decoder.device)
    runner.prepare(slots, by_stage=False)
    times: list[float] = []
    for _ in range(REPEATS):
        decoder._feed(decoder._prefill(method, request))
        times += between(lambda: runner.run(slots, StageClock(off, on=False), by_stage=False), ROUNDS)
    return statistics.median(times)


def split(row: Row, decoder: Decoder, method: Method, request: Request) -> Row:
    """A row's figures over ranks: each one's round, and a round in which each takes its own part for the sum."""
    group, add_norm = decoder.target.group, Group.add_norm
    by_rank = group.gather(torch.tensor([row.round], device=decoder.device), dim=0).tolist()
    decoder._runners.clear()
    with patch.multiple(
        Group,
        sum=lambda group, tensor: tensor,
        max=lambda group, tensor: tensor,
        gather=lambda group, tensor, dim: torch.cat([tensor] * group.size, dim),
        add=lambda group, x, part: part,
        add_norm=lambda group, x, part, *norm: add_norm(Group(), x, part, *norm),
    ):
        apart = rounds(decoder, method, request)
    decoder._runners.clear()
    group.barrier()
    return replace(row, apart=apart, round_by_rank=by_rank)


def report(rows: list[Row], facts: dict[str, Any]) -> None:
    names = ["arm", "width", "floor", "products", "round", "÷ floor", "÷ products", *STAGES, "accepted"]
    split_up = facts["tp"] > 1
    ceiling = f"{facts['bandwidth_bytes_per_s'] / 1e12:.2f} TB/s, {facts['operations_per_s'] / 1e12:.0f} TFLOP/s"
    table = Table(
        *names, *(["apart", "meeting"] if split_up else []),
        title=f"{facts['model']}, {facts['dtype']}, tp {facts['tp']}{', ' + facts['collectives'] if split_up else ''}, "
        f"{facts['context']} tokens, {facts['gpu']}: {ceiling}",
    )  # fmt: skip
    for row in rows:
        times = [row.floor, row.products, row.round, row.round / row.floor, row.round / row.products]
        cells = [f"{value:.2f}" for value in (*times, *row.stages.values(), row.accepted)]
        if row.apart is not None:
            cells += [f"{row.apart:.2f}", f"{1 - row.apart / row.round:.0%}"]
        table.add_row(row.arm, str(row.width), *cells)
    console = Console(width=150)
    console.print(table)
    console.print("milliseconds a round; stages as graphs of their own; accepted: drafted tokens committed a round")
    console.print(
        f"gate, on the built-in pair in this process: {facts['gate_violations']} of {facts['gate_tokens']} tokens are "
        f"not the target's own, {facts['gate_near_ties']} are near ties"
    )
    if split_up:
        console.print("apart: the round with all collectives left out; meeting: what they are of the round")


def scaling(found: list[tuple[dict[str, Any], list[Row]]]) -> None:
    """Rounds at several tensor-parallel sizes, each against the first."""
    sizes = [facts["tp"] for facts, _ in found]
    table = Table("arm", *(f"tp {size}" for size in sizes), *(f"{size} ÷ {sizes[0]}" for size in sizes[1:]),
                  *(f"efficiency {size}" for size in sizes[1:]))  # fmt: skip
    for rows in zip(*(rows for _, rows in found), strict=True):
        times = [row.round for row in rows]
        ratios = [time / times[0] for time in times[1:]]
        gains = [sizes[0] / (ratio * size) for ratio, size in zip(ratios, sizes[1:], strict=True)]
        table.add_row(rows[0].arm, *(f"{value:.2f}" for value in (*times, *ratios)), *(f"{gain:.0%}" for gain in gains))
    Console(width=150).print(table)


def gate(methods: Sequence[Method], device: Literal["cpu", "cuda"], dtype: str) -> dict[str, int]:
    """The methods on the built-in pair, in this process: how many tokens they emit, how many of them the target would
    not have chosen, and how many were near ties. A fast round that writes something else is worth nothing."""
    model = pair("tiny")
    asked = requests(model, 48, 6)
    length = max(len(request.prompt_ids) for request in asked) + 48
    tokens = wrong = near = 0
    with ReferenceEngine(EngineSpec(model, device=device, dtype=dtype, max_length=length)) as engine:
        engine.open(methods)
        tolerance = engine.gap_tolerance(asked[:3])
        for method in methods:
            for request in asked:
                output = engine.generate(method, request).output_ids
                score = engine.score(request, output, tolerance)
                tokens, near = tokens + len(output), near + score.near_ties(tolerance)
                wrong += score.true_violations(tolerance)
    return {"gate_tokens": tokens, "gate_violations": wrong, "gate_near_ties": near}


def work(rank: int, tp: int, options: argparse.Namespace, port: int, found: Any) -> None:
    methods = [Autoregressive(), DFlash(), *(DDTree(int(b)) for b in options.budgets.split(","))]
    model = ModelSpec(options.model, f"shape:{options.model}/target", f"shape:{options.model}/drafter", "random")
    length = options.context + ROUNDS * 17 + 64
    spec = EngineSpec(model, tp, "cuda", options.dtype, max_length=length)
    torch.cuda.set_device(rank)
    bandwidth, rate = ceilings(torch.device("cuda", rank))
    own = Rank(spec, options.dtype, tuple(methods), rank, port, None)
    decoder = own._decoder
    decoder.cycle_type = ForcedCycle
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, decoder.target.config.vocabulary - 1, (options.context,), generator=generator).tolist()
    request = Request("benchmark", tuple(ids), ROUNDS * 17 + 17)
    with torch.inference_mode():
        rows = []
        for method in methods:
            rows.append(measure(decoder, method, request, bandwidth, rate))
            if rank == 0:  # so that what was measured is seen whatever comes after
                print(f"tp {tp} {method.arm}: {rows[-1].round:.2f} ms a round, floor {rows[-1].floor:.2f}", flush=True)
    if rank == 0:
        facts = {"model": options.model, "tp": tp, "context": options.context, "dtype": options.dtype}
        facts |= {"gpu": torch.cuda.get_device_name(), "bandwidth_bytes_per_s": bandwidth, "operations_per_s": rate}
        facts |= {"collectives": own.group.way} if tp > 1 else {}
        facts |= gate(methods, "cuda", options.dtype)
        report(rows, facts)
        found.put((facts, rows))
    del decoder
    own.leave(together=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="qwen3_8b")
    parser.add_argument("--tp", default="1", help="one size, or several to compare: 1,2")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--budgets", default="16,32,64,128,256,512,1024")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("a CUDA device is needed: on a CPU use benchmarks/cpu.py")
    sizes = [int(size) for size in options.tp.split(",")]
    if max(sizes) > torch.cuda.device_count():
        parser.error(f"--tp={options.tp} needs {max(sizes)} GPUs, {torch.cuda.device_count()} are here.")
    found: list[tuple[dict[str, Any], list[Row]]] = []
    for tp in sizes:  # each in processes of its own, so that none finds memory another has left full
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        queue = get_context("spawn").SimpleQueue()
        start_processes(work, (tp, options, port, queue), nprocs=tp, start_method="spawn")
        found.append(queue.get())
    if len(found) > 1:
        scaling(found)
    runs = [{**facts, "rows": [{**asdict(row), "overhead": row.overhead} for row in rows]} for facts, rows in found]
    print(json.dumps(runs[0] if len(runs) == 1 else {"runs": runs}))


if __name__ == "__main__":
    main()
