"""The Triton kernels against the plain torch path: on a GPU, or anywhere in Triton's interpreter.

TRITON_INTERPRET=1 python -m pytest tests/test_kernels.py
"""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

from methods.reference import tree
from methods.reference.attention import rotate, visible

kernel = pytest.importorskip("methods.reference.kernels.attention", reason="needs triton")
layers = pytest.importorskip("methods.reference.kernels.layers")
products = pytest.importorskip("methods.reference.kernels.products")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
if INTERPRETED:  # the interpreter rounds to bfloat16 towards zero and cannot multiply matrices of it
    DTYPES = DTYPES[:2]
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def made(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def close(found: torch.Tensor, expected: torch.Tensor, factor: float = 1.0) -> None:
    """By the norm of the difference; both must be finite. `expected` may be of a wider dtype."""
    assert found.shape == expected.shape
    assert found.isfinite().all()
    difference = (found.double() - expected.double()).norm() / expected.double().norm()
    assert difference < factor * TOLERANCE[found.dtype], difference


def some_tree(n: int, seed: int) -> torch.Tensor:
    """Parents of a random tree of n rows."""
    generator = torch.Generator().manual_seed(seed)
    return torch.tensor([0] + [int(torch.randint(0, i, (), generator=generator)) for i in range(1, n)]).to(DEVICE)


def descended(parents: torch.Tensor, group: int, d: int, dtype: torch.dtype = torch.float32):
    """A tree's ancestors in families that fill a tile, as a stack of layers asks for them."""
    n = len(parents)
    return kernel.descend(parents, n, kernel.family_for(n, group, d, dtype, parents.device))


def looked_up(query, cache, start, visible_ns):
    """The definition, in float64."""
    n, h, d = query.shape
    group = h // cache.shape[1]
    keys, values = (part.double().repeat_interleave(group, 0)[:, : visible_ns.shape[1]] for part in cache)
    scores = torch.einsum("nhd,hsd->hns", query.double(), keys) * d**-0.5
    weights = scores.masked_fill(~visible_ns, -torch.inf).softmax(-1)
    return torch.einsum("hns,hsd->nhd", weights, values).reshape(n, h * d)


ATTENTION = [  # n, start, heads, kv_heads, d, splits
    (1, 0, 4, 2, 64, 1),
    (1, 37, 4, 1, 64, 3),
    (1, 64, 3, 3, 64, 2),
    (5, 0, 4, 2, 64, 1),
    (7, 33, 6, 2, 64, 4),
    (33, 63, 2, 1, 128, 2),
    (40, 60, 5, 1, 64, 3),
    (17, 100, 2, 1, 256, 2),
]
if not INTERPRETED:
    ATTENTION += [
        (1, 511, 32, 8, 128, 32),
        (1, 9000, 32, 8, 128, 64),
        (17, 600, 32, 8, 128, 8),
        (65, 512, 32, 8, 128, 4),
        (129, 8191, 24, 4, 256, 4),
        (257, 513, 32, 8, 128, 2),
        (1025, 512, 32, 8, 128, 1),
        (300, 77, 64, 8, 64, 3),
    ]


def with_dtypes(cases):
    """Every dtype for the small ones of a few rows, else float32 in the interpreter and bfloat16 on a GPU."""
    rest = torch.float32 if INTERPRETED else torch.bfloat16
    return [(*case, dtype) for case in cases for dtype in (DTYPES if case[0] < 10 and case[1] < 100 else [rest])]


@pytest.mark.parametrize("n, start, heads, kv_heads, d, splits, dtype", with_dtypes(ATTENTION))
def test_attention_over_prefix_and_tree(n, start, heads, kv_heads, d, splits, dtype):
    slots = start + n + 30
    cache = made(2, kv_heads, slots, d, dtype=dtype) * 1.5
    cache[:, :, start + n :] = torch.nan  # nothing beyond the rows may be looked at
    query, at = made(n, heads, d, seed=1, dtype=dtype) * 1.5, torch.tensor(start, device=DEVICE)
    parents = some_tree(n, start)
    seen = {
        "tree": (tree.visibility(parents, n), {"ancestors": descended(parents, heads // kv_heads, d, dtype)}),
        "causal": (torch.ones(n, n, dtype=torch.bool, device=DEVICE).tril(), {"causal": True}),
        "all": (torch.ones(n, n, dtype=torch.bool, device=DEVICE), {}),
    }
    for visible_nn, how in seen.values():
        expected = looked_up(query, cache, at, visible(at, visible_nn, start + n))
        close(kernel.attention(query, cache, at, splits=splits, **how), expected)
    if n < 100:
        close(
            kernel.attention(query, cache, at, causal=True),
            looked_up(query, cache, at, visible(at, seen["causal"][0], start + n)),
        )


@pytest.mark.parametrize("window", [1, 20, 64, 500])
@pytest.mark.parametrize("n, start, splits", [(1, 90, 2), (16, 90, 1), (16, 90, 3), (40, 3, 2)])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_in_a_window(n, start, splits, window, causal):
    cache, query = made(2, 1, start + n + 5, 64), made(n, 2, 64, seed=1)
    at = torch.tensor(start, device=DEVICE)
    whole = torch.ones(n, n, dtype=torch.bool, device=DEVICE)
    visible_ns = visible(at, whole.tril() if causal else whole, start + n)
    rows, slots = torch.arange(start, start + n), torch.arange(start + n)
    visible_ns &= ((rows[:, None] - slots).abs() < window).to(DEVICE)
    close(
        kernel.attention(query, cache, at, causal=causal, window=window, splits=splits),
        looked_up(query, cache, at, visible_ns),
    )


def test_attention_with_strong_masks_and_large_scores():
    """A first split in which a row sees nothing, and scores far apart, leave no NaN."""
    n, start = 40, 0
    cache, query = made(2, 1, n, 64) * 20, made(n, 2, 64, seed=1) * 20
    at, chain = torch.tensor(start, device=DEVICE), torch.zeros(n, dtype=torch.int64, device=DEVICE)
    visible_nn = tree.visibility(chain, 1)
    for splits in (1, 2):
        found = kernel.attention(query, cache, at, descended(chain, 2, 64), splits=splits)
        close(found, looked_up(query, cache, at, visible_nn), 5)


@pytest.mark.parametrize("family", [1, 3, 16])
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 64, 65, 70])
def test_families_list_what_their_rows_see(n, family):
    parents = some_tree(n, n)
    visible_nn = tree.visibility(parents, n)
    words, listed, counts, _ = kernel.descend(parents, n, family)
    bits = (words[:, :, None] >> torch.arange(32, device=DEVICE, dtype=torch.int32)) & 1
    found_nn = torch.zeros_like(visible_nn)
    for row in range(n):
        count = counts[row // family]
        assert not bits[row].flatten()[count:].any()
        found_nn[row, listed[row // family, :count].long()] = bits[row].flatten()[:count].bool()
    assert torch.equal(found_nn, visible_nn)
    for first in range(0, n, family):
        seen = visible_nn[first : first + family].any(0).nonzero()[:, 0]
        assert torch.equal(listed[first // family, : len(seen)], seen.short()) and counts[first // family] == len(seen)


@pytest.mark.parametrize("start, splits", [(0, 1), (70, 1), (70, 3), (128, 2)])
@pytest.mark.parametrize("family", [1, 5, 16, 40])
def test_families_change_nothing(family, start, splits):
    """Long branches, one behind the other: most blocks of rows are seen by no row of a family."""
    n, long = 150, 25
    parents = torch.tensor([0 if row % long == 1 else max(row - 1, 0) for row in range(n)]).to(DEVICE)
    cache, query = made(2, 1, start + n, 64), made(n, 2, 64, seed=1)
    at = torch.tensor(start, device=DEVICE)
    ancestors = kernel.descend(parents, long, family)
    assert int(ancestors.counts_f.max()) <= family + long + 1
    expected = looked_up(query, cache, at, visible(at, tree.visibility(parents, n), start + n))
    close(kernel.attention(query, cache, at, ancestors, splits=splits), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n, h", [(1, 64), (3, 96), (5, 1030)])
@pytest.mark.parametrize("offset", [False, True])
def test_add_norm(n, h, offset, dtype):
    x, delta = made(n, h, dtype=dtype), made(n, h, seed=1, dtype=dtype)
    weight = made(h, seed=2, dtype=torch.float32 if offset else dtype)

    def normed(value):
        if offset:
            return F.rms_norm(value.float(), (h,), 1 + weight, 1e-6).to(dtype)
        return F.rms_norm(value, (h,), weight, 1e-6)

    total, found = layers.add_norm(x, delta, weight, 1e-6, offset=offset)
    assert torch.equal(total, x + delta)
    close(found, normed(total), 0.1 if dtype != torch.float32 else 1)
    same, found = layers.add_norm(x, None, weight, 1e-6, offset=offset)
    assert same is x
    close(found, normed(x), 0.1 if dtype != torch.float32 else 1)
    parts = made(3, n, h, seed=3)
    total, _ = layers.add_norm(x, parts, weight, 1e-6, offset=offset)
    assert torch.equal(total, x + ((parts[0] + parts[1]) + parts[2]).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n, heads, kv_heads, d, turned", [(1, 4, 2, 64, 64), (6, 3, 1, 128, 32), (5, 0, 2, 64, 64)])
@pytest.mark.parametrize("norm", ["none", "plain", "offset"])
@pytest.mark.parametrize("gated", [False, True])
def test_rotate_and_store(n, heads, kv_heads, d, turned, norm, gated, dtype):
    start, slots = 4, 16
    qkv = made(n, (heads * (2 if gated else 1) + 2 * kv_heads) * d, dtype=dtype)
    positions = (torch.arange(n) // 2 + 3).to(DEVICE)
    angles = torch.arange(20)[:, None] * 10 ** -torch.linspace(0, 3, turned // 2)
    angles = torch.cat([angles, angles], -1)
    tables = angles.cos().to(dtype).to(DEVICE), angles.sin().to(dtype).to(DEVICE)
    weights = made(d, seed=1, dtype=dtype), made(d, seed=2, dtype=dtype)
    cache = made(2, kv_heads, slots, d, dtype=dtype)
    before = cache.clone()

    def normed(x, weight):
        if norm == "none":
            return x
        scale = weight.float() + (norm == "offset")
        return F.rms_norm(x.float(), (d,), scale, 1e-6).to(dtype)

    mixed = qkv.unflatten(-1, (-1, d))
    query, key, value = mixed.split([mixed.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if gated:
        query, gate = query.unflatten(1, (heads, 2)).unbind(2)
    at = tuple(table[positions, None] for table in tables)
    found = layers.rotate_and_store(
        qkv, positions, tables, None if norm == "none" else weights, torch.tensor(start, device=DEVICE), cache,
        heads=heads, offset=norm == "offset", gated=gated,
    )  # fmt: skip
    assert found.shape == (n, heads, d)
    if heads:
        close(found, rotate(normed(query, weights[0]), at), 0.2 if dtype != torch.float32 else 1)
    close(
        cache[0, :, start : start + n],
        rotate(normed(key, weights[1]), at).transpose(0, 1),
        0.2 if dtype != torch.float32 else 1,
    )
    assert torch.equal(cache[1, :, start : start + n], value.transpose(0, 1))
    outside = [slot for slot in range(slots) if not start <= slot < start + n]
    assert torch.equal(cache[:, :, outside], before[:, :, outside])
    if gated and heads:
        attended = made(n, heads * d, seed=5, dtype=dtype)
        close(
            layers.gate_heads(attended, qkv, d),
            attended * torch.sigmoid(gate).flatten(1),
            0.1 if dtype != torch.float32 else 1,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n, w", [(1, 40), (3, 1100)])
def test_silu_mul(n, w, dtype):
    gate_up = made(n, 2 * w, dtype=dtype) * 3
    gate, up = gate_up.chunk(2, -1)
    close(layers.silu_mul(gate_up), F.silu(gate) * up, 0.1 if dtype != torch.float32 else 1)


PRODUCTS = [(40, 64), (33, 96), (18, 1100)]  # outputs (even), inner
if not INTERPRETED:
    PRODUCTS += [(4096, 12288), (5000, 4096)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs, inner", PRODUCTS)
def test_gemv_and_what_stands_around_it(outputs, inner, dtype):
    x, weight = made(1, inner, dtype=dtype), made(outputs, inner, seed=1, dtype=dtype) * inner**-0.5
    scale, residual = made(inner, seed=2, dtype=dtype), made(1, outputs, seed=3, dtype=dtype)
    exact = x.double() @ weight.double().T
    close(products.gemv(x, weight), exact)
    close(products.gemv(x, weight, residual=residual), residual.double() + exact)
    for offset in (False, True):
        normed = F.rms_norm(x.float(), (inner,), scale.float() + offset, 1e-5).to(dtype)
        expected = normed.double() @ weight.double().T
        close(products.gemv(x, weight, norm=(scale, 1e-5), offset=offset), expected)
    half = weight[: outputs // 2 * 2]
    gate, up = (x.double() @ half.double().T).chunk(2, -1)
    close(products.gemv(x, half, silu=True), F.silu(gate) * up, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 17, 65])
@pytest.mark.parametrize("outputs, inner", PRODUCTS)
def test_narrow(n, outputs, inner, dtype, monkeypatch):
    x, weight = made(n, inner, dtype=dtype), made(outputs, inner, seed=1, dtype=dtype) * inner**-0.5
    exact = x.double() @ weight.double().T
    close(products.narrow(x, weight), exact)
    tiles = -(-outputs // products.PANEL_ROWS)
    for wanted in (2, 3, 4):  # so many programs find a place each
        monkeypatch.setattr(products, "multiprocessors", lambda device, places=wanted * tiles: places)
        found = products.narrow(x, weight, split=True)
        if found.dim() == 3:
            assert found.dtype == torch.float32 and len(found) <= wanted
            found = found.sum(0).to(dtype)
        else:
            assert inner < 1000  # too short to be shared
        close(found, exact)
    half = weight[: outputs // 2 * 2]
    gate, up = (x.double() @ half.double().T).chunk(2, -1)
    close(products.narrow(x, half, silu=True), F.silu(gate) * up, 2)


def test_shares_fill_an_h200_and_fit_every_gpu():
    def shares(outputs, inner, rows, places=132, room=224 * 1024):
        return products.shares(outputs, inner, rows, torch.bfloat16, places, room)

    for rows in (16, 64, 80):  # what was fastest of all there, by its hidden size
        assert shares(4096, 12288, rows) == (2, (64, 128, 4, 5)) and shares(5120, 17408, rows) == (3, (64, 64, 4, 5))
    for places, room in ((1, 96 * 1024), (30, 96 * 1024), (108, 160 * 1024), (170, 96 * 1024), (148, 224 * 1024)):
        for outputs, inner in ((64, 64), (256, 1024), (2560, 9728), (4096, 1024), (5120, 6144), (8192, 28672)):
            parts, panel = shares(outputs, inner, 80, places, room)
            assert 1 <= parts <= 4 and panel.columns * parts < inner + panel.columns
            assert 2 * panel.stages * panel.columns * (panel.rows + 80) <= room


@pytest.mark.parametrize("n", [1, 17])
def test_rows_may_be_cut_out_of_wider_ones(n):
    """As a rank's share of the features is: no kernel may take their stride for their length."""

    def cut(*shape: int, seed: int = 0) -> torch.Tensor:
        whole = made(*shape[:-1], 2 * shape[-1], seed=seed)
        return whole[..., shape[-1] :]

    weight, scale, cache, start = made(48, 64), made(64), made(2, 2, 64, 16), torch.tensor(5, device=DEVICE)
    tables = made(64, 16), made(64, 16, seed=1)
    places = start + torch.arange(n, device=DEVICE)
    calls = {
        "narrow": lambda x: products.narrow(x, weight),
        "add_norm": lambda x: layers.add_norm(x, x, scale, 1e-6),
        "silu_mul": layers.silu_mul,
        "rotate": lambda x: layers.rotate_and_store(x, places, tables, None, start, cache.clone(), heads=0),
        "gate": lambda x: layers.gate_heads(x, torch.cat([x, x, x, x], -1), 16),
        "attention": lambda x: kernel.attention(x.unflatten(-1, (4, 16)), cache, start, causal=True),
    }
    if n == 1:
        calls["gemv"] = lambda x: products.gemv(x, weight, residual=cut(1, 48))
    for name, call in calls.items():
        x = cut(n, 64)
        assert n == 1 or not x.is_contiguous()
        found, expected = call(x), call(x.contiguous())
        for one, other in zip(*(y if isinstance(y, tuple) else (y,) for y in (found, expected)), strict=True):
            assert torch.equal(one, other), name
