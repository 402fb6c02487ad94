"""The Triton kernels of a round against this machine's own floors, alone and in a stack of layers.

    python benchmarks/layer_kernels.py [--layers 36] [--context 512]

Shapes are Qwen3-8B's in bfloat16, weights and inputs random. Every number is a CUDA graph's, the median of its
replays, over inputs that do not fit in the second-level cache together. Floors (copy bandwidth, matrix rate) are
measured in the same run. The stack is a target's pass without embedding and sampling: norms, products, rotation,
attention, MLP and head; its parts alone leave the others out. `unchained`: launches that do not overlap
(`kernels/launch.py`); `cuBLAS`: all products by cuBLAS. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from graph_clock import seconds
from torch import Tensor

from methods.reference.kernels import attention, launch, layers, products

HIDDEN, WIDE, HEADS, KV_HEADS, D, VOCABULARY = 4096, 12288, 32, 8, 128, 151_936
EPS, WIDTHS = 1e-6, (1, 17, 65, 257, 1025)
PARTS = frozenset({"products", "attention", "rest"})


class Weights(NamedTuple):
    """One layer's."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    norm: Tensor
    head_norm: Tensor


class Spare(NamedTuple):
    """What a part of the stack reads where the part that makes it is left out."""

    qkv: Tensor
    query: Tensor
    attended: Tensor
    delta: Tensor
    gate_up: Tensor
    active: Tensor


def made(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0, scale)


def floors() -> tuple[float, float]:
    """Bytes per second read and written by a copying kernel, and operations per second of a bfloat16 product."""
    source = torch.empty(2**30, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / seconds([lambda: torch.mul(source, 1.0, out=target)])
    left, right = made(8192, 8192), made(8192, 8192)
    return copied, 2 * 8192**3 / seconds([lambda: torch.mm(left, right)] * 4)


class Stack:
    """Layers of random weights, and a pass of n rows through them."""

    def __init__(self, count: int, context: int) -> None:
        qkv = (HEADS + 2 * KV_HEADS) * D
        self.layers = [
            Weights(
                made(qkv, HIDDEN, scale=HIDDEN**-0.5),
                made(HIDDEN, HEADS * D, scale=HIDDEN**-0.5),
                made(2 * WIDE, HIDDEN, scale=HIDDEN**-0.5),
                made(HIDDEN, WIDE, scale=WIDE**-0.5),
                *(made(size, scale=0.1) + 1 for size in (HIDDEN, D)),
            )
            for _ in range(count)
        ]
        self.head = made(VOCABULARY, HIDDEN, scale=HIDDEN**-0.5)
        self.cache = made(count, 2, KV_HEADS, context + max(WIDTHS) + 15, D)
        self.start = torch.tensor(context, device="cuda")
        angles = torch.arange(self.cache.shape[3], device="cuda")[:, None] * 1e6 ** -torch.linspace(0, 1, 64).cuda()
        angles = torch.cat([angles, angles], dim=-1)
        self.tables = angles.cos().bfloat16(), angles.sin().bfloat16()

    def rotate(self, index: int, qkv: Tensor, positions: Tensor) -> Tensor:
        norms = self.layers[index].head_norm, self.layers[index].head_norm
        return layers.rotate_and_store(
            qkv, positions, self.tables, norms, self.start, self.cache[index], heads=HEADS, eps=EPS
        )

    def one(self, x: Tensor, positions: Tensor, spare: Spare, parts: frozenset[str]) -> Tensor:
        """One row: norms, activation and residuals are inside the products."""
        qkv, query, attended = spare[:3]
        for index, w in enumerate(self.layers):
            if "products" in parts:
                qkv = products.gemv(x, w.qkv, norm=(w.norm, EPS))
            if "rest" in parts:
                query = self.rotate(index, qkv, positions)
            if "attention" in parts:
                attended = attention.attention(query, self.cache[index], self.start)
            if "products" in parts:
                x = products.gemv(attended, w.out, residual=x)
                x = products.gemv(products.gemv(x, w.gate_up, norm=(w.norm, EPS), silu=True), w.down, residual=x)
        return products.gemv(x, self.head, norm=(self.layers[0].norm, EPS)) if "products" in parts else x

    def many(
        self,
        x: Tensor,
        positions: Tensor,
        words: attention.Ancestors,
        spare: Spare,
        parts: frozenset[str],
        cublas: bool,
    ) -> Tensor:
        """Several rows; the products by `narrow` where it takes them, or by cuBLAS."""
        n = len(x)
        few, some = (not cublas and products.narrow_pays(n, split) for split in (False, True))
        qkv, query, attended, delta, gate_up, active = spare
        normed = x
        pending: Tensor | None = None
        for index, w in enumerate(self.layers):
            if "rest" in parts:
                x, normed = layers.add_norm(x, pending, w.norm, EPS)
            if "products" in parts:
                qkv = products.narrow(normed, w.qkv) if few else F.linear(normed, w.qkv)
            if "rest" in parts:
                query = self.rotate(index, qkv, positions)
            if "attention" in parts:
                attended = attention.attention(query, self.cache[index], self.start, words)
            if "products" in parts:
                delta = products.narrow(attended, w.out, split=True) if some else F.linear(attended, w.out)
            if "rest" in parts:
                x, normed = layers.add_norm(x, delta, w.norm, EPS)
            if "products" in parts:
                if few:
                    active = products.narrow(normed, w.gate_up, silu=True)
                else:
                    gate_up = F.linear(normed, w.gate_up)
            if "rest" in parts and not few:
                active = layers.silu_mul(gate_up)
            if "products" in parts:
                delta = products.narrow(active, w.down, split=True) if some else F.linear(active, w.down)
            pending = delta
        if "rest" in parts:
            _, normed = layers.add_norm(x, pending, self.layers[0].norm, EPS)
        if "products" in parts:
            return products.narrow(normed, self.head) if few else F.linear(normed, self.head)
        return normed

    def pass_seconds(self, n: int, parts: frozenset[str], cublas: bool = False) -> float:
        x, rows = made(n, HIDDEN), torch.arange(n, device="cuda")
        positions = int(self.start) + (rows + 1).log2().long()
        words = attention.descend((rows - 1).clamp_min(0) // 2, 16)
        sizes = ((6144,), (HEADS, D), (HEADS * D,), (HIDDEN,), (2 * WIDE,), (WIDE,))
        spare = Spare(*(made(n, *size) for size in sizes))
        if n == 1 and not cublas:
            return seconds([lambda: self.one(x, positions, spare, parts)])
        return seconds([lambda: self.many(x, positions, words, spare, parts, cublas)])


def single_kernels(stack: Stack, copied: float, rate: float) -> list[dict[str, object]]:
    """Each kernel alone, over the stack's layers as inputs."""
    found: list[dict[str, object]] = []

    def note(name: str, n: int, took: float, moved: float, operations: float = 0.0) -> None:
        floor = max(moved / copied, operations / rate)
        found.append({"kernel": name, "n": n, "us": took * 1e6, "floor_us": floor * 1e6, "share": floor / took,
                      "GB/s": moved / took / 1e9, "TFLOP/s": operations / took / 1e12})  # fmt: skip
        print(f"{name:24} {n:5} {took * 1e6:9.2f} {floor * 1e6:9.2f} {floor / took:7.0%} {moved / took / 1e9:8.0f} "
              f"{operations / took / 1e12:8.0f}", flush=True)  # fmt: skip

    print(f"{'kernel':24} {'n':>5} {'us':>9} {'floor us':>9} {'of it':>7} {'GB/s':>8} {'TFLOP/s':>8}")
    some = stack.layers[:12]
    for name in ("qkv", "out", "gate_up", "down", "head"):
        weights = [stack.head] if name == "head" else [getattr(w, name) for w in some]
        outputs, inner = weights[0].shape
        for n in (1, 17, 65):
            x, silu, split = made(n, inner), name == "gate_up", name in ("out", "down")
            size = weights[0].nbytes
            work = 2.0 * n * outputs * inner
            note(f"{name} cuBLAS", n, seconds([partial(F.linear, x, w) for w in weights]), size, work)
            if n == 1:
                calls: list[Callable[[], Tensor]] = [partial(products.gemv, x, w, silu=silu) for w in weights]
            elif not products.narrow_pays(n, split):
                continue
            else:
                calls = [partial(products.narrow, x, w, silu=silu, split=split) for w in weights]
            note(f"{name} {'gemv' if n == 1 else 'narrow'}", n, seconds(calls), size, work)
    context, norm = int(stack.start), stack.layers[0].norm
    for n in WIDTHS:
        rows = torch.arange(n, device="cuda")
        words, x, delta = attention.descend((rows - 1).clamp_min(0) // 2, 16), made(n, HIDDEN), made(n, HIDDEN)
        query, qkv, gate_up = made(n, HEADS, D), made(n, 6144), made(n, 2 * WIDE)
        moved = 2 * KV_HEADS * (context + n) * D * 2 + 2 * query.nbytes
        calls = [partial(attention.attention, query, cache, stack.start, words) for cache in stack.cache]
        note("attention", n, seconds(calls), moved, 4.0 * n * HEADS * D * (context + n))
        note("add_norm", n, seconds([partial(layers.add_norm, x, delta, norm, EPS)] * 8), 4 * x.nbytes)
        calls = [partial(stack.rotate, i, qkv, rows) for i in range(len(stack.layers))]
        note("rotate_and_store", n, seconds(calls), 2 * qkv.nbytes)
        note("silu_mul", n, seconds([partial(layers.silu_mul, gate_up)] * 8), 1.5 * gate_up.nbytes)
    return found


def long_contexts(copied: float, rate: float) -> list[dict[str, object]]:
    """Attention where the cache is what is read."""
    found: list[dict[str, object]] = []
    for context in (8192, 32_000):
        caches = [made(2, KV_HEADS, context + 300, D) for _ in range(4)]
        start = torch.tensor(context, device="cuda")
        for n in (1, 65, 257):
            rows, query = torch.arange(n, device="cuda"), made(n, HEADS, D)
            words = attention.descend((rows - 1).clamp_min(0) // 2, 16)
            took = seconds([partial(attention.attention, query, cache, start, words) for cache in caches])
            moved, operations = 2 * KV_HEADS * (context + n) * D * 2, 4.0 * n * HEADS * D * (context + n)
            floor = max(moved / copied, operations / rate)
            found.append({"kernel": f"attention @ {context}", "n": n, "us": took * 1e6, "share": floor / took})
            print(f"{f'attention @ {context}':24} {n:5} {took * 1e6:9.2f} {floor * 1e6:9.2f} {floor / took:7.0%} "
                  f"{moved / took / 1e9:8.0f} {operations / took / 1e12:8.0f}", flush=True)  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--context", type=int, default=512)
    options = parser.parse_args()
    copied, rate = floors()
    print(f"{torch.cuda.get_device_name()}: copy {copied / 1e12:.2f} TB/s, product {rate / 1e12:.0f} TFLOP/s")
    stack = Stack(options.layers, options.context)
    kernels = single_kernels(stack, copied, rate) + long_contexts(copied, rate)
    size = sum(t.nbytes for w in stack.layers for t in w) + stack.head.nbytes
    print(
        f"\n{options.layers} layers and head, {options.context} tokens of context; weights {size / copied * 1e3:.2f} ms"
    )
    print(f"{'n':>5} {'ms':>8} {'products':>9} {'attention':>9} {'rest':>8} {'unchained':>9} {'cuBLAS':>8}")
    passes = []
    for n in WIDTHS:
        row = {"n": n, "ms": stack.pass_seconds(n, PARTS) * 1e3}
        row |= {part: stack.pass_seconds(n, frozenset({part})) * 1e3 for part in ("products", "attention", "rest")}
        launch.CHAINED = False
        row["unchained"] = stack.pass_seconds(n, PARTS) * 1e3
        launch.CHAINED = True
        row["cublas"] = stack.pass_seconds(n, PARTS, cublas=True) * 1e3
        passes.append(row)
        print(f"{n:5} {row['ms']:8.3f} {row['products']:9.3f} {row['attention']:9.3f} {row['rest']:8.3f} "
              f"{row['unchained']:9.3f} {row['cublas']:8.3f}", flush=True)  # fmt: skip
    print(
        json.dumps(
            {"copy": copied, "rate": rate, "weights_ms": size / copied * 1e3, "kernels": kernels, "passes": passes}
        )
    )


if __name__ == "__main__":
    main()
