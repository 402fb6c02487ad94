"""Products of a few rows with a weight matrix, at the speed at which the weights can be read.

A decoding step multiplies a handful of rows by every weight of the model, so each weight is used a few times only and
the memory's bandwidth is the limit. cuBLAS reaches about four fifths of it. `gemv` takes one row, and what stands
around its product in a layer (norm before it, silu · up or the residual after it) with it; `narrow` takes up to 80.

Shape letters: n rows, k inner dimension, o output columns, p parts of a product split over k.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from methods.reference.kernels.launch import chain, multiprocessors, ready, roomy, shared_memory

NARROW_ROWS = 80  # the most rows `narrow` takes
PANEL_ROWS = 64  # of the weight that a program of `narrow` takes
MOST_PARTS = 4
STAGES = 5  # panels on their way at most
PLENTY = 4 * 2 * 128 * (PANEL_ROWS + NARROW_ROWS)  # bytes of shared memory for four of the largest panels


class Strip(NamedTuple):
    """One program's share of a matrix–vector product: rows of the weight by columns at a time, and its warps."""

    rows: int
    columns: int
    warps: int


class Panel(NamedTuple):
    """One program's share of a narrow product: rows of the weight by columns at a time, and how it is run."""

    rows: int
    columns: int
    warps: int
    stages: int


def strip(inner: int, normed: bool, silu: bool) -> Strip:
    """The strip for so many columns. A norm is taken anew by every program, so these are few and large; with `silu` a
    program reads as many rows of gate and of up. Columns that divide the inner size leave no lane idle."""
    rows, columns, warps = (2, 4096, 8) if silu else (4, 2048, 8) if normed else (2, 2048, 4)
    while columns > 256 and inner % columns:
        rows, columns = 2 * rows, columns // 2
    return Strip(rows // 2 if silu and inner > columns else rows, columns, warps)  # twice the registers in a loop


def panel(inner: int, dtype: torch.dtype, stages: int, *, deep: bool) -> Panel:
    """A panel with so many stages; a `deep` one needs plenty of shared memory."""
    columns = 32 if dtype == torch.float32 else 128 if deep else 64
    return Panel(PANEL_ROWS, min(columns, triton.next_power_of_2(inner)), 4, stages)


@functools.cache
def shares(outputs: int, inner: int, rows: int, dtype: torch.dtype, places: int, room: int) -> tuple[int, Panel]:
    """In how many parts a product of so many rows is split over k, and the panel of a part.

    What counts is that all multiprocessors (`places`) are at work until the end: the fewest parts that fill them best,
    with one program on each, or two. Each program gets its part of a multiprocessor's shared memory (`room` bytes).
    """
    tiles, found = triton.cdiv(outputs, PANEL_ROWS), []
    for together in (1, 2):
        one = panel(inner, dtype, STAGES, deep=together == 1 and room >= PLENTY)
        stages = min(STAGES, room // together // ((one.rows + rows) * one.columns * dtype.itemsize))
        for parts in range(1, min(MOST_PARTS, triton.cdiv(inner, one.columns)) + 1):
            waves = tiles * parts / (together * places)
            busy = round(waves / math.ceil(waves), 2)
            if stages > 2 or together == 1:
                found.append((busy, -parts, together, one._replace(stages=max(2, stages))))
    _, parts, _, best = max(found)
    return -parts, best


def narrow_pays(n: int, split: bool) -> bool:
    """Whether `narrow` is faster than cuBLAS: always for few rows, for some more where the product may be in parts."""
    return n <= (NARROW_ROWS if split else 48)


def gemv(
    x_1k: Tensor,
    weight_ok: Tensor,
    *,
    norm: tuple[Tensor, float] | None = None,
    offset: bool = False,
    silu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """One row times a weight, accumulated in float32.

    Args:
        norm: weight [k] and eps of a root-mean-square norm that x goes through first (scale 1 + w with `offset`).
        silu: the weight's first half makes gates, its second half values; the result is silu(gate) · value.
        residual: [1, o], added to the product after that is rounded.

    Returns:
        [1, o], or [1, o / 2] with `silu`, in x's dtype.
    """
    (outputs, inner), x_1k = weight_ok.shape, x_1k.contiguous()
    outputs = outputs // 2 if silu else outputs
    rows, columns, warps = strip(inner, norm is not None, silu)
    out_1o = torch.empty(1, outputs, dtype=x_1k.dtype, device=x_1k.device)
    scale, eps = norm or (x_1k, 0.0)
    _gemv[(triton.cdiv(outputs, rows),)](
        x_1k, weight_ok, scale, out_1o if residual is None else residual, out_1o, eps, outputs, K=inner, ROWS=rows,
        COLUMNS=columns, NORMED=norm is not None, OFFSET=offset, SILU=silu, RESIDUAL=residual is not None,
        num_warps=warps, **chain(x_1k.device),
    )  # fmt: skip
    return out_1o


def narrow(x_nk: Tensor, weight_ok: Tensor, *, silu: bool = False, split: bool = False) -> Tensor:
    """At most `NARROW_ROWS` rows times a weight, accumulated in float32.

    Args:
        silu: as in `gemv`.
        split: programs may share the inner dimension; where they do, their sums are left apart for
            `layers.add_norm` to add. Not with `silu`.

    Returns:
        [n, o] in x's dtype ([n, o / 2] with `silu`), or, in several parts, float32 [p, n, o].
    """
    (n, inner), x_nk = x_nk.shape, x_nk.contiguous()
    outputs = len(weight_ok) // 2 if silu else len(weight_ok)
    wide, device = min(max(16, triton.next_power_of_2(n)), 64), x_nk.device
    more, machine = 16 if n > wide else 0, (multiprocessors(device), shared_memory(device))
    parts, (rows, columns, warps, stages) = (
        shares(outputs, inner, wide + more, x_nk.dtype, *machine)
        if split
        else (1, panel(inner, x_nk.dtype, 4, deep=roomy(device) and not silu))
    )
    shape, dtype = ((n, outputs), x_nk.dtype) if parts == 1 else ((parts, n, outputs), torch.float32)
    out = torch.empty(shape, dtype=dtype, device=x_nk.device)
    _narrow[(triton.cdiv(outputs, rows), parts)](
        x_nk, weight_ok, out, n, outputs, K=inner, PARTS=parts, ROWS=rows, COLUMNS=columns, WIDE=wide,
        MORE=more, SILU=silu, PRECISION="ieee" if x_nk.dtype == torch.float32 else "tf32",
        num_warps=warps, num_stages=stages, **(chain(x_nk.device) if not silu else {"CHAIN": False}),
    )  # fmt: skip
    return out


@triton.jit
def _strip(weight, row, col, outputs, K: tl.constexpr, EVEN: tl.constexpr):
    """Weights are read once: they leave the cache first, the row stays."""
    at = weight + row.to(tl.int64)[:, None] * K + col[None, :]
    mask = (row < outputs)[:, None]
    if not EVEN:
        mask = mask & (col < K)[None, :]
    return tl.load(at, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _gemv(
    x, weight, norm, residual, out, eps, outputs,
    K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, NORMED: tl.constexpr, OFFSET: tl.constexpr,
    SILU: tl.constexpr, RESIDUAL: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    EVEN: tl.constexpr = K % COLUMNS == 0
    dtype = out.dtype.element_ty
    row, col = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    up = weight
    if SILU:
        up = weight + outputs.to(tl.int64) * K
    # the first weights are on their way while the row is waited for and its norm taken, and then always the next
    next_w = _strip(weight, row, col, outputs, K, EVEN)
    next_up = next_w
    if SILU:
        next_up = _strip(up, row, col, outputs, K, EVEN)
    ready(CHAIN)
    spread = 1.0
    if NORMED:
        squares = tl.zeros([COLUMNS], tl.float32)
        for at in tl.static_range(0, K, COLUMNS):
            value = tl.load(x + at + col, mask=at + col < K, other=0.0).to(tl.float32)
            squares += value * value
        spread = tl.rsqrt(tl.sum(squares, 0) / K + eps)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    acc_up = tl.zeros([ROWS, COLUMNS], tl.float32)
    for at in tl.static_range(0, K, COLUMNS):
        w, w_up = next_w, next_up
        if at + COLUMNS < K:
            next_w = _strip(weight, row, at + COLUMNS + col, outputs, K, EVEN)
            if SILU:
                next_up = _strip(up, row, at + COLUMNS + col, outputs, K, EVEN)
        value = tl.load(x + at + col, mask=at + col < K, other=0.0).to(tl.float32)
        if NORMED:
            scale = tl.load(norm + at + col, mask=at + col < K, other=0.0).to(tl.float32)
            if OFFSET:
                scale += 1.0
            value = (value * spread * scale).to(dtype).to(tl.float32)
        acc += w.to(tl.float32) * value[None, :]
        if SILU:
            acc_up += w_up.to(tl.float32) * value[None, :]
    result = tl.sum(acc, 1).to(dtype)
    if SILU:
        gate = result.to(tl.float32)
        active = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
        result = (active * tl.sum(acc_up, 1).to(dtype).to(tl.float32)).to(dtype)
    if RESIDUAL:
        before = tl.load(residual + row, mask=row < outputs, other=0.0).to(tl.float32)
        result = (before + result.to(tl.float32)).to(dtype)
    tl.store(out + row, result, mask=row < outputs)


@triton.jit
def _loaded(at, live, inside, EVEN: tl.constexpr):
    """A panel's next columns, of the rows that exist. `inside` counts where columns do not divide the inner size."""
    mask = live
    if not EVEN:
        mask = live & inside
    return tl.load(at, mask=mask, other=0.0)


@triton.jit
def _finish(acc, acc_up, out, row, token, n, outputs, SILU: tl.constexpr):
    """Write a tile [rows of the weight, rows of x], transposed."""
    dtype = out.dtype.element_ty
    result = acc.to(dtype)
    if SILU:
        gate = result.to(tl.float32)
        active = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
        result = (active * acc_up.to(dtype).to(tl.float32)).to(dtype)
    to = out + tl.program_id(1) * n * outputs + token[None, :] * outputs + row[:, None]
    tl.store(to, result, mask=(row < outputs)[:, None] & (token < n)[None, :])


@triton.jit(do_not_specialize=["n"])
def _narrow(
    x, weight, out, n, outputs,
    K: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
    MORE: tl.constexpr, SILU: tl.constexpr, PRECISION: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """WIDE rows of x and, so that one row beyond a power of two does not double the tile, MORE of them (or none)."""
    SOME: tl.constexpr = MORE if MORE > 0 else 16
    EVEN: tl.constexpr = K % COLUMNS == 0
    share: tl.constexpr = (K + PARTS * COLUMNS - 1) // (PARTS * COLUMNS) * COLUMNS
    row, col = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    token, more = tl.arange(0, WIDE), WIDE + tl.arange(0, SOME)
    low = tl.program_id(1) * share
    safe = tl.minimum(row, outputs - 1)  # rows beyond the last are read again rather than masked
    weight_at = weight + safe.to(tl.int64)[:, None] * K + col[None, :]
    up_at = weight_at + outputs.to(tl.int64) * K
    x_at, more_at = x + token[:, None] * K + col[None, :], x + more[:, None] * K + col[None, :]
    ready(CHAIN)
    acc, acc_more = tl.zeros([ROWS, WIDE], tl.float32), tl.zeros([ROWS, SOME], tl.float32)
    up, up_more = tl.zeros([ROWS, WIDE], tl.float32), tl.zeros([ROWS, SOME], tl.float32)
    for at in range(low, tl.minimum(low + share, K), COLUMNS):
        inside = (at + col < K)[None, :]
        w = _loaded(weight_at + at, (row >= 0)[:, None], inside, EVEN)
        rows = _loaded(x_at + at, (token < n)[:, None], inside, EVEN)
        acc = tl.dot(w, tl.trans(rows), acc, input_precision=PRECISION)
        if SILU:
            w_up = _loaded(up_at + at, (row >= 0)[:, None], inside, EVEN)
            up = tl.dot(w_up, tl.trans(rows), up, input_precision=PRECISION)
        if MORE > 0:
            others = _loaded(more_at + at, (more < n)[:, None], inside, EVEN)
            acc_more = tl.dot(w, tl.trans(others), acc_more, input_precision=PRECISION)
            if SILU:
                up_more = tl.dot(w_up, tl.trans(others), up_more, input_precision=PRECISION)
    _finish(acc, up, out, row, token, n, outputs, SILU)
    if MORE > 0:
        _finish(acc_more, up_more, out, row, more, n, outputs, SILU)
