"""The gated delta net kernels against their floors on this machine: one layer's launches by width, and all layers.

    python benchmarks/delta_kernels.py [--layers 48] [--panels]

Shapes are Qwen3.6-27B's in bfloat16 (16 key heads, 48 value heads of 128), weights, states and inputs random, trees of
depth 15 at most. Every number is a CUDA graph's, the median of its replays, over layers that do not fit in the
second-level cache together. A floor is the larger of bytes over the copy bandwidth and operations over the float32
product rate, both measured in the same run. `between` is what lies between a layer's projections (one launch for one
row, three for several), `layer` has the projections too, `commit` is all layers' states and windows. `--panels` tries
other tiles for the first of the three launches. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial

import torch
from graph_clock import seconds
from torch import Tensor

from methods.reference.gated_delta import Constants
from methods.reference.kernels import delta, delta_commit
from methods.reference.kernels.delta_traces import Traces
from methods.reference.kernels.stack import Stack

H, R, D, E, HIDDEN, KERNEL, DEPTH = 16, 3, 128, 128, 5120, 4, 15
V, CHANNELS = H * R, 2 * H * D + H * R * E
COLUMNS = CHANNELS + V * (E + 2)
WIDTHS = (1, 17, 65, 257, 1025)
AT_ONCE = 8  # layers whose inputs are held


def made(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda").normal_(0, scale)


def ceilings() -> tuple[float, float]:
    """Bytes per second of a copy, and operations per second of a float32 product."""
    source = torch.empty(2**28, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / seconds([lambda: torch.mul(source, 1.0, out=target)])
    left, right = (made(8192, 8192, dtype=torch.float32) for _ in range(2))
    return copied, 2 * 8192**3 / seconds([lambda: torch.mm(left, right)] * 2)


def some_tree(n: int) -> Tensor:
    """Parents of a random tree of n rows, no deeper than `DEPTH`, with as many rows near the root as drafts have."""
    generator = torch.Generator().manual_seed(n)
    parents, depths = [0], [0]
    while len(parents) < n:
        parent = int(torch.rand((), generator=generator) ** 1.5 * len(parents))
        if depths[parent] < DEPTH:
            parents.append(parent)
            depths.append(depths[parent] + 1)
    return torch.tensor(parents, device="cuda")


class Layers:
    """The recurrent layers of a model, and one pass of n rows."""

    def __init__(self, count: int) -> None:
        self.states, self.windows = made(count, H, D, R, E, dtype=torch.float32), made(count, KERNEL - 1, CHANNELS)
        norm = made(E, scale=0.1, dtype=torch.float32) + 1
        speed, shift = -made(H, R, dtype=torch.float32).abs(), made(H, R, dtype=torch.float32)
        self.constants = Constants(made(KERNEL, CHANNELS, dtype=torch.float32), speed, shift, norm, 1e-6)
        self.into = [made(COLUMNS, HIDDEN, scale=HIDDEN**-0.5) for _ in range(AT_ONCE)]
        self.out = [made(HIDDEN, V * E, scale=(V * E) ** -0.5) for _ in range(AT_ONCE)]

    def prepare(self, n: int) -> None:
        self.projected, self.x = [made(n, COLUMNS) for _ in range(AT_ONCE)], made(n, HIDDEN)
        self.traces = Traces.empty(len(self.states), n, self.states[0], self.windows[0])
        self.parents = some_tree(n)
        self.ups = None if n == 1 else delta.ascend(self.parents, DEPTH, KERNEL)

    def each(self, call: Callable[[int], object]) -> float:
        """Seconds a layer takes."""
        return seconds([partial(call, layer) for layer in range(len(self.states))])

    def mixed(self, layer: int) -> Tensor:
        return delta.mix(self.projected[layer % AT_ONCE], *self._of(layer), self.ups, self.traces.of(layer))

    def whole(self, layer: int) -> Tensor:
        """A layer with its projections: what a block adds."""
        projected = Stack.product(self.x, self.into[layer % AT_ONCE])
        mixed = delta.mix(projected, *self._of(layer), self.ups, self.traces.of(layer))
        return Stack.product(mixed, self.out[layer % AT_ONCE])

    def launches(self) -> dict[str, Callable[[int], object]]:
        """The three, each on what the ones before it have left."""
        assert self.ups is not None
        ups, state = self.ups, self.states[0]
        asked = [delta.recall(self.projected[i], *self._of(i), ups, self.traces.of(i)) for i in range(AT_ONCE)]
        related = [delta.relate(state, ups, self.traces.of(i), asked[i]) for i in range(AT_ONCE)]
        return {
            "recall": lambda i: delta.recall(self.projected[i % AT_ONCE], *self._of(i), ups, self.traces.of(i)),
            "relate": lambda i: delta.relate(state, ups, self.traces.of(i % AT_ONCE), asked[i % AT_ONCE]),
            "finish": lambda i: delta.finish(
                self.projected[i % AT_ONCE], self.constants, state, ups, self.traces.of(i % AT_ONCE),
                asked[i % AT_ONCE], related[i % AT_ONCE],
            ),
        }  # fmt: skip

    def _of(self, layer: int) -> tuple[Constants, Tensor, Tensor]:
        return self.constants, self.states[layer], self.windows[layer]


def bytes_moved(n: int, steps: int) -> dict[str, float]:
    """By launch, each value read and written once."""
    state, projected, values, keys = 4.0 * V * D * E, 2.0 * n * COLUMNS, 4.0 * n * V * E, 4.0 * n * H * D
    traced, related, out = values + keys + 2.0 * n * CHANNELS, 8.0 * n * V * steps, 2.0 * n * V * E
    moved = {
        "recall": state + projected + traced + keys + values,
        "relate": 2 * keys + related,
        "finish": 2 * values + related + 2.0 * n * V * E + out,
        "between": state + projected + traced + out,
    }
    moved["layer"] = moved["between"] + 2.0 * HIDDEN * (COLUMNS + V * E)
    return moved


def operations(n: int, steps: int) -> dict[str, float]:
    """In float32, by launch."""
    found = {"recall": 4.0 * n * V * D * E, "relate": 4.0 * n * H * D * steps, "finish": 2.0 * n * V * E * steps}
    return found | {"between": sum(found.values())}


def measure(layers: Layers, n: int, copied: float, rate: float) -> list[dict[str, float | int | str]]:
    """Rows of the table for one width."""
    layers.prepare(n)
    steps = 1 if layers.ups is None else layers.ups.shape[1]
    calls = {} if n == 1 else layers.launches()
    calls |= {"between": layers.mixed, "layer": layers.whole}
    moved, needed, rows = bytes_moved(n, steps), operations(n, steps), []
    for name, call in calls.items():
        floor = max(moved[name] / copied, needed.get(name, 0.0) / rate)
        rows.append(row(name, n, layers.each(call), floor))
    path = torch.zeros(1 if n == 1 else DEPTH + 1, dtype=torch.int64, device="cuda")
    path[: min(n, 6)] = torch.arange(min(n, 6), device="cuda")
    accepted = torch.tensor(min(n, 6) - 1, device="cuda")
    took = seconds([lambda: delta_commit.commit(layers.states, layers.windows, layers.traces, path, accepted)])
    rows.append(row("commit", n, took, 2 * layers.states.nbytes / copied))
    if n > 1:
        took = seconds([lambda: delta.ascend(layers.parents, DEPTH, KERNEL)])
        rows.append(row("ascend", n, took, 4.0 * n * steps / copied))
    return rows


def row(name: str, n: int, took: float, floor: float) -> dict[str, float | int | str]:
    print(f"{name:10} {n:5} {took * 1e6:10.2f} {floor * 1e6:10.2f} {floor / took:8.0%}", flush=True)
    return {"kernel": name, "n": n, "us": took * 1e6, "floor_us": floor * 1e6, "share": floor / took}


def panels(layers: Layers, n: int, tried: Sequence[delta.Panel]) -> list[dict[str, float | int | str]]:
    """The first launch with other tiles."""
    layers.prepare(n)
    usual, rows = delta.panel, []
    for panel in tried:
        delta.panel = lambda *_, panel=panel: panel
        try:
            took = layers.each(layers.launches()["recall"])
        except Exception as reason:  # a tile that does not fit this GPU
            print(f"{panel}: {type(reason).__name__}")
            continue
        rows.append(row("/".join(map(str, panel)), n, took, bytes_moved(n, 16)["recall"] / 4e12))
    delta.panel = usual
    return rows


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--panels", action="store_true")
    options = parser.parse_args()
    copied, rate = ceilings()
    name = torch.cuda.get_device_name()
    print(f"{name}: copy {copied / 1e12:.2f} TB/s, float32 product {rate / 1e12:.0f} TFLOP/s")
    print(f"{'launch':10} {'n':>5} {'us':>10} {'floor us':>10} {'of it':>8}")
    layers, rows = Layers(options.layers), []
    for n in WIDTHS:
        rows += measure(layers, n, copied, rate)
    if options.panels:
        shapes = [
            (16, 32, 4),
            (16, 64, 4),
            (16, 64, 8),
            (16, 128, 4),
            (16, 128, 8),
            (32, 64, 8),
            (32, 128, 8),
            (64, 64, 8),
        ]
        for n in WIDTHS[1:]:
            rows += panels(layers, n, [delta.Panel(*shape, stages) for shape in shapes for stages in (2, 3)])
    print(json.dumps({"gpu": name, "copy": copied, "rate": rate, "layers": options.layers, "rows": rows}))


if __name__ == "__main__":
    main()
