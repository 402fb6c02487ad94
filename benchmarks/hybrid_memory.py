"""What verifying a tree costs a hybrid target in memory and time, held against one recurrent state per node.

    python benchmarks/hybrid_memory.py --device cuda [--shape qwen36_27b] [--budgets 16 64 256 1024] [--context 512]

Random weights in the published shape (54 GB in bfloat16 for Qwen3.6-27B), a prompt of random tokens, then trees of
random drafts. `computed` is what methods/reference/memory.py says the recurrent layers need beyond the text's own
state; `peak` is what the whole verify pass and its commit took at most beyond what was there before (attention, MLPs
and logits included; CUDA only); `a state per node` is what a scan that keeps one state per node would hold. Times are
medians of eager passes, and of the same pass and commit replayed from one CUDA graph. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from methods.locate import resolve
from methods.reference import tree
from methods.reference.attention import Ancestry
from methods.reference.config import TransformerConfig, target_config
from methods.reference.gated_delta import Lineage, delta_rule
from methods.reference.loading import Weights
from methods.reference.memory import state_bytes, tree_bytes
from methods.reference.parallel import Group, up
from methods.reference.target import Target

DEPTH = 15  # a draft block of 16
PREFILL_ROWS = 512
GIB = 2**30


class Bench:
    """A target with random weights that has read a prompt."""

    def __init__(self, config: TransformerConfig, weights: Weights, context: int, widest: int) -> None:
        slots = up(context + widest, 64)
        self.target, self.device = Target(config, weights, slots), weights.device
        self.start, self.seen = torch.tensor(context, device=self.device), slots
        generator = torch.Generator().manual_seed(0)
        text = torch.randint(0, config.vocabulary, (context,), generator=generator).to(self.device)
        self.target.reset()
        for first in range(0, context, PREFILL_ROWS):
            part = text[first : first + PREFILL_ROWS]
            rows = torch.arange(len(part), device=self.device)
            chain = Ancestry((rows - 1).clamp_min(0), rows[:, None] >= rows)
            self.target.forward(part, self.target.view(rows[0] + first, rows + first, chain, self.seen))
            self.target.commit(rows[0] + first, rows, rows[-1])
        self.prompt = self.target.snapshot()

    def draft(self, budget: int) -> tree.Tree:
        """A best-first tree over random distributions that are as sure of themselves as drafters are."""
        k, vocabulary = min(budget, 1024), self.target.config.vocabulary
        generator = torch.Generator().manual_seed(budget)
        scores = torch.randn(DEPTH, k, generator=generator).abs().mul_(4).sort(dim=-1, descending=True).values
        ids = torch.stack([torch.randperm(vocabulary, generator=generator)[:k] for _ in range(DEPTH)])
        candidates = tree.Candidates(torch.log_softmax(scores, dim=-1).to(self.device), ids.to(self.device))
        return tree.build(candidates, torch.zeros((), dtype=torch.int64, device=self.device), budget)

    def verify(self, draft: tree.Tree) -> Tensor:
        ancestry = self.target.descent(draft.parents_n, DEPTH)
        view = self.target.view(self.start, tree.positions(draft, self.start), ancestry, self.seen)
        return self.target.logits(self.target.forward(draft.tokens_n, view)[0]).argmax(dim=-1)

    def commit(self, draft: tree.Tree) -> None:
        """The path to the deepest node: no choice of the target's own would follow a random draft that far."""
        path = [draft.depths_n.argmax(dim=0, keepdim=True)]
        for _ in range(DEPTH):
            path.append(draft.parents_n[path[-1]])
        depth = draft.depths_n[path[0]]
        steps = torch.arange(DEPTH + 1, device=self.device)
        path_d = torch.where(steps <= depth, torch.cat(path)[(depth - steps).clamp_min(0)], 0)
        self.target.commit(self.start, path_d, depth[0])

    def recurrent(self, draft: tree.Tree) -> Callable[[], None]:
        """The delta rule alone, as often as the model has such layers."""
        shape = self.target.config.gated_delta
        assert shape is not None
        heads, values, n = shape.key_heads, shape.value_heads // shape.key_heads, len(draft.tokens_n)
        lineage = Lineage.of(Ancestry(draft.parents_n, tree.visibility(draft.parents_n, DEPTH)), shape.kernel)

        def drawn(*size: int) -> Tensor:
            return torch.rand(*size, device=self.device) * 0.05

        state, key = drawn(heads, shape.key_dim, values, shape.value_dim), drawn(n, heads, shape.key_dim)
        value, rate = drawn(n, heads, values, shape.value_dim), drawn(n, heads, values)

        def layers() -> None:
            for _ in range(self.target.config.delta_layers):
                delta_rule(state, key, key, value, -rate, rate, lineage)

        return layers

    def milliseconds(self, work: Callable[[], Any], times: int = 5) -> float:
        """The median after one untimed run."""
        work()
        taken = []
        for _ in range(times):
            self._wait()
            begin = time.perf_counter()
            work()
            self._wait()
            taken.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(taken)

    def replayed(self, draft: tree.Tree) -> float | None:
        """Milliseconds of verify and commit as one CUDA graph; none on a CPU."""
        if self.device.type != "cuda":
            return None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.verify(draft)
            self.commit(draft)
        return self.milliseconds(graph.replay, 20)

    def peak(self, draft: tree.Tree) -> int | None:
        """Bytes that verify and commit allocate at most beyond what is held before them."""
        if self.device.type != "cuda":
            return None
        self.target.restore(self.prompt)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        self.verify(draft)
        self.commit(draft)
        return torch.cuda.max_memory_allocated(self.device) - before

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def row(self, budget: int) -> dict[str, float | int | None]:
        """One line of the table."""
        config, draft = self.target.config, self.draft(budget)
        size = self.target.dtype.itemsize
        return {
            "budget": budget,
            "computed_bytes": tree_bytes(config, budget, 1, size),
            "peak_bytes": self.peak(draft),
            "state_per_node_bytes": (1 + budget) * state_bytes(config),
            "build_ms": self.milliseconds(lambda: self.draft(budget)),
            "verify_ms": self.milliseconds(lambda: self.verify(draft)),
            "delta_ms": self.milliseconds(self.recurrent(draft)),
            "commit_ms": self.milliseconds(lambda: self.commit(draft)),
            "graph_ms": self.replayed(draft),
        }


def show(rows: list[dict[str, float | int | None]], title: str) -> None:
    """The rows as a table: bytes in GiB."""
    names = ["budget", "computed", "peak", "a state per node", "verify", "of it delta rule", "commit", "in one graph"]
    table = Table(*names, title=title)
    for row in rows:
        sizes = [row["computed_bytes"], row["peak_bytes"], row["state_per_node_bytes"]]
        times = [row["verify_ms"], row["delta_ms"], row["commit_ms"], row["graph_ms"]]
        table.add_row(
            str(row["budget"]),
            *("-" if size is None else f"{size / GIB:.3f} GiB" for size in sizes),
            *("-" if ms is None else f"{ms:.2f} ms" for ms in times),
        )
    Console(width=150).print(table)


@torch.inference_mode()
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--shape", default="qwen36_27b", help="of methods/checkpoints/shapes, or a model folder")
    parser.add_argument("--budgets", type=int, nargs="+", default=[16, 32, 64, 128, 256, 512, 1024])
    parser.add_argument("--context", type=int, default=512)
    options = parser.parse_args(argv)
    folder = resolve(options.shape if "/" in options.shape else f"shape:{options.shape}/target")
    config, device = target_config(folder), torch.device(options.device)
    weights = Weights(folder, Group(), device, getattr(torch, options.dtype), seed=0)
    bench = Bench(config, weights, options.context, 1 + max(options.budgets))
    rows = [bench.row(budget) for budget in options.budgets]
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    title = (
        f"{options.shape}, {options.dtype}, {weights.bytes / 1e9:.1f} GB of weights, {where}, torch {torch.__version__}"
    )
    show(rows, title)
    facts = {"shape": options.shape, "dtype": options.dtype, "weights_bytes": weights.bytes, "device": where}
    print(json.dumps({**facts, "torch": torch.__version__, "context": options.context, "rows": rows}))


if __name__ == "__main__":
    main()
