"""The gated delta net kernels against the plain path in float64 and against decoding: on a GPU, or in the interpreter.

TRITON_INTERPRET=1 python -m pytest tests/test_kernels_delta.py
"""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from test_gated_delta import chain, comb, path_to, star

from methods.reference import tree
from methods.reference.attention import Ancestry
from methods.reference.gated_delta import Constants, Lineage, delta_rule

delta = pytest.importorskip("methods.reference.kernels.delta", reason="needs triton")
delta_commit = pytest.importorskip("methods.reference.kernels.delta_commit")
Traces = pytest.importorskip("methods.reference.kernels.delta_traces").Traces
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = "cpu" if INTERPRETED else "cuda"
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 1e-2}
KERNEL, LAYERS = 4, 2


class Sizes(NamedTuple):
    """Key heads, value heads of one, key and value size."""

    h: int
    r: int
    d: int
    e: int


TINY, SMALL, ODD, LARGE = Sizes(1, 1, 16, 16), Sizes(2, 2, 16, 16), Sizes(1, 3, 40, 24), Sizes(16, 3, 128, 128)


class Layers:
    """Some layers' states, windows and constants, and what a pass of n rows projects; all drawn."""

    def __init__(self, sizes: Sizes, n: int, strength: float = 1.0, dtype: torch.dtype = torch.float32) -> None:
        h, r, d, e = self.sizes = sizes
        generator = torch.Generator().manual_seed(n)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(DEVICE)

        self.channels = 2 * h * d + h * r * e
        self.states, self.windows = normal(LAYERS, h, d, r, e), normal(LAYERS, KERNEL - 1, self.channels).to(dtype)
        speed = -strength * torch.rand(h, r, generator=generator).to(DEVICE) ** 4
        norm = 1 + normal(e) * 0.1
        self.constants = Constants(normal(KERNEL, self.channels), speed, normal(h, r), norm, 1e-6)
        self.projected = normal(LAYERS, n, self.channels + h * r * (e + 2)).to(dtype)
        # keys that are alike, as those of a repeated token are: what the solve then cancels is large
        self.projected[1, :, h * d : 2 * h * d] = self.projected[1, :1, h * d : 2 * h * d]

    def split(self, layer: int) -> list[torch.Tensor]:
        """Inputs of the convolution, gates, rates and paces."""
        h, r, _, e = self.sizes
        return list(self.projected[layer].split([self.channels, h * r * e, h * r, h * r], dim=-1))

    def unwound(self, layer: int, taps_nk: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Arguments of `delta_rule` beside state and lineage, in float64."""
        h, r, d, e = self.sizes
        inputs, _, rate, pace = (part.double() for part in self.split(layer))
        taps, speed, shift, *_ = (part.double() for part in self.constants[:4])
        mixed = F.silu((torch.cat([self.windows[layer].double(), inputs])[taps_nk] * taps).sum(1))
        query, key, value = mixed.split([h * d, h * d, h * r * e], dim=-1)
        query, key = (part.unflatten(-1, (h, d)) for part in (query, key))
        query, key = (part * (part.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for part in (query, key))
        decay = speed * F.softplus(pace.unflatten(-1, (h, r)) + shift)
        return query * d**-0.5, key, value.unflatten(-1, (h, r, e)), decay, rate.unflatten(-1, (h, r)).sigmoid()

    def gated(self, layer: int, out_nhre: torch.Tensor) -> torch.Tensor:
        e, gate = self.sizes.e, self.split(layer)[1].double()
        return F.rms_norm(out_nhre, (e,), self.constants.norm_e.double(), 1e-6).flatten(1) * F.silu(gate)

    def expected(self, layer: int, lineage: Lineage) -> torch.Tensor:
        """The plain path in float64."""
        rows = self.unwound(layer, lineage.taps_nk)
        return self.gated(layer, delta_rule(self.states[layer].double(), *rows, lineage)[0])

    def mix(self, ups: torch.Tensor | None) -> tuple[torch.Tensor, Traces]:
        """All layers' outputs through the kernels, and what they leave."""
        traces = Traces.empty(LAYERS, self.projected.shape[1], self.states[0], self.windows[0])
        for part in traces:
            part.fill_(torch.nan)
        before = self.states.clone(), self.windows.clone()
        outs = [
            delta.mix(self.projected[i], self.constants, self.states[i], self.windows[i], ups, traces.of(i))
            for i in range(LAYERS)
        ]
        assert torch.equal(before[0], self.states) and torch.equal(before[1], self.windows)
        return torch.stack(outs), traces

    def decoded(self, layer: int, path: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The second opinion: a path's last output, its state and its window, row by row in float64."""
        state, window = self.states[layer].double(), self.windows[layer].double()
        inputs = self.split(layer)[0].double()
        for row in path:
            seen = torch.cat([window, inputs[row : row + 1]])
            taps = torch.arange(KERNEL, device=DEVICE)
            whole = Layers.__new__(Layers)
            whole.__dict__ |= self.__dict__
            whole.windows = {layer: window}
            whole.projected = {layer: self.projected[layer][row : row + 1]}
            query, key, value, decay, rate = (part[0] for part in whole.unwound(layer, taps[None]))
            state = state * decay.exp()[:, None, :, None]
            wrote = (value - torch.einsum("hdre,hd->hre", state, key)) * rate[..., None]
            state = state + torch.einsum("hd,hre->hdre", key, wrote)
            window = seen[1:]
        out = torch.einsum("hdre,hd->hre", state, query)[None]
        return whole.gated(layer, out)[0], state, window


def close(found: torch.Tensor, expected: torch.Tensor, factor: float = 1.0) -> None:
    """By the norm of the difference."""
    assert found.shape == expected.shape and found.isfinite().all()
    difference = (found.double() - expected.double()).norm() / expected.double().norm()
    assert difference < factor * TOLERANCE[found.dtype], difference


def scattered(n: int, seed: int = 0) -> list[int]:
    drawn = torch.rand(n, generator=torch.Generator().manual_seed(seed)).tolist()
    return [0, *(int(drawn[row] * row) for row in range(1, n))]


SHAPES = {"chain": chain, "star": star, "comb": comb, "random": scattered}


def depth_of(parents: list[int]) -> int:
    return max(len(path_to(parents, row)) for row in range(len(parents))) - 1


def lineage_of(parents: list[int]) -> Lineage:
    parents_n = torch.tensor(parents, device=DEVICE)
    return Lineage.of(Ancestry(parents_n, tree.visibility(parents_n, len(parents))), KERNEL)


def ups_of(parents: list[int]) -> torch.Tensor:
    return delta.ascend(torch.tensor(parents, device=DEVICE), depth_of(parents), KERNEL)


CASES = [  # sizes, shape of the tree, rows, how strong decays are
    (SMALL, "chain", 2, 1.0),
    (SMALL, "chain", 16, 200.0),
    (SMALL, "comb", 17, 1.0),
    (TINY, "star", 33, 300.0),
    (ODD, "chain", 9, 0.1),
    (TINY, "random", 65, 200.0),
    (Sizes(1, 1, 128, 128), "random", 4, 1.0),
]
if not INTERPRETED:
    CASES += [(SMALL, "chain", 64, 1.0), (ODD, "comb", 100, 10.0), (ODD, "random", 65, 1.0)]
    CASES += [(LARGE, shape, n, 1.0) for shape, n in (("chain", 16), ("chain", 64), ("random", 257), ("star", 1025))]
    CASES += [(LARGE, "random", n, strength) for n in (17, 65, 1025) for strength in (0.1, 300.0)]


PATHS = [(SMALL, 1.0, "random", 12), (ODD, 200.0, "comb", 10), (TINY, 200.0, "chain", 16)]
if not INTERPRETED:
    PATHS += [(SMALL, 1.0, "chain", 40), (ODD, 200.0, "random", 70)]


@pytest.mark.parametrize("sizes, shape, n, strength", CASES)
def test_outputs_equal_the_plain_paths_in_float64(sizes, shape, n, strength):
    parents = SHAPES[shape](n)
    layers = Layers(sizes, n, strength)
    found, _ = layers.mix(ups_of(parents))
    for layer in range(LAYERS):
        close(found[layer], layers.expected(layer, lineage_of(parents)))


@pytest.mark.parametrize("sizes", [SMALL, ODD] if INTERPRETED else [SMALL, ODD, LARGE])
@pytest.mark.parametrize("strength", [1.0, 300.0])
def test_one_row_alone(sizes, strength):
    layers = Layers(sizes, 1, strength)
    found, traces = layers.mix(None)
    states, windows = layers.states.clone(), layers.windows.clone()
    zero = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    delta_commit.commit(states, windows, traces, zero, zero[0])
    for layer in range(LAYERS):
        out, state, window = layers.decoded(layer, [0])
        close(found[layer, 0], out)
        close(states[layer], state)
        assert torch.equal(windows[layer], window.float())


@pytest.mark.parametrize("sizes, strength, shape, n", PATHS)
def test_rows_and_commits_equal_decoding(sizes, strength, shape, n):
    """Every row's output is that of decoding its path, and so are the state and the window after the commit."""
    parents = SHAPES[shape](n)
    layers = Layers(sizes, n, strength)
    found, traces = layers.mix(ups_of(parents))
    for row in range(n) if not INTERPRETED else (0, 1, n // 2, n - 1):
        path = path_to(parents, row)
        states, windows = layers.states.clone(), layers.windows.clone()
        path_p = torch.tensor(path + [0] * (18 - len(path)), device=DEVICE)
        delta_commit.commit(states, windows, traces, path_p, torch.tensor(len(path) - 1, device=DEVICE))
        for layer in range(LAYERS):
            out, state, window = layers.decoded(layer, path)
            close(found[layer, row], out, 2)
            close(states[layer], state)
            assert torch.equal(windows[layer], window.float())


@pytest.mark.skipif(INTERPRETED, reason="slow")
@pytest.mark.parametrize("n, strength", [(65, 1.0), (1025, 200.0)])
def test_large_commits_equal_decoding(n, strength):
    parents, layers = scattered(n), Layers(LARGE, n, strength)
    _, traces = layers.mix(ups_of(parents))
    path = path_to(parents, n - 1)
    states, windows = layers.states.clone(), layers.windows.clone()
    path_p, accepted = torch.tensor(path + [0] * 3, device=DEVICE), torch.tensor(len(path) - 1, device=DEVICE)
    delta_commit.commit(states, windows, traces, path_p, accepted)
    for layer in range(LAYERS):
        _, state, window = layers.decoded(layer, path)
        close(states[layer], state)
        assert torch.equal(windows[layer], window.float())


def test_weak_decays_after_strong_ones_keep_their_digits():
    n = 16
    layers = Layers(SMALL, n, 1.0)
    layers.constants.speed_hr.fill_(-1.0)
    layers.projected[..., -4:] = -4.0
    layers.projected[:, : n // 2, -4:] = 1e4
    found, _ = layers.mix(ups_of(chain(n)))
    for layer in range(LAYERS):
        close(found[layer], layers.expected(layer, lineage_of(chain(n))))


def test_a_flat_sequence_fails():
    parents = comb(12)
    layers = Layers(SMALL, 12)
    found, _ = layers.mix(ups_of(chain(12)))
    with pytest.raises(AssertionError):
        close(found[0], layers.expected(0, lineage_of(parents)))


@pytest.mark.parametrize("shape", SHAPES)
def test_ascending(shape):
    parents = SHAPES[shape](40)
    ups = ups_of(parents)
    for row in range(40):
        path = path_to(parents, row)[::-1]
        assert ups[row].tolist() == [*path, *range(-1, len(path) - ups.shape[1] - 1, -1)]


@pytest.mark.skipif(INTERPRETED, reason="the interpreter cannot multiply matrices of bfloat16")
@pytest.mark.parametrize("n", [1, 17, 65, 257])
def test_bfloat16(n):
    layers, parents = Layers(LARGE, n, 1.0, torch.bfloat16), scattered(n)
    found, _ = layers.mix(None if n == 1 else ups_of(parents))
    for layer in range(LAYERS):
        close(found[layer], layers.expected(layer, lineage_of(parents)))
