"""What a transformer layer does between its matrix products, one Triton launch each.

Arithmetic is float32 inside; a value is rounded to the model's dtype wherever the plain path rounds it, so that both
paths compute the same function.

Shape letters: n rows, h hidden size, d head size, r rotary dimensions, w columns of an MLP, p parts of a product that
was split over its inner dimension.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from methods.reference.kernels.launch import chain, ready

HEADS_AT_ONCE = 8


def add_norm(
    x_nh: Tensor, delta_nh: Tensor | None, weight_h: Tensor, eps: float, *, offset: bool = False
) -> tuple[Tensor, Tensor]:
    """x + delta, and its root-mean-square norm.

    Args:
        delta_nh: what a block adds, in x's dtype; or float32 parts [p, n, h] of it (`products.narrow`), summed in order
            and rounded to x's dtype first; None: nothing is added and the sum returned is x itself.
        weight_h: the norm's weight w in any float dtype; `offset` scales by 1 + w instead.

    Returns:
        The sum and the normed sum, both [n, h] in x's dtype.
    """
    (n, h), x_nh = x_nh.shape, x_nh.contiguous()
    normed_nh = torch.empty_like(x_nh)
    sum_nh = x_nh if delta_nh is None else torch.empty_like(x_nh)
    delta = x_nh if delta_nh is None else delta_nh.contiguous()
    parts = 0 if delta_nh is None else len(delta_nh) if delta_nh.dim() == 3 else 1
    wide = triton.next_power_of_2(h)
    _add_norm[(n,)](
        x_nh, delta, weight_h, sum_nh, normed_nh, eps, n * h, H=h, WIDE=wide, PARTS=parts, OFFSET=offset,
        num_warps=max(1, min(8, wide // 512)), **chain(x_nh.device),
    )  # fmt: skip
    return sum_nh, normed_nh


def rotate_and_store(
    qkv_n: Tensor,
    positions_n: Tensor,
    tables: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    start: Tensor,
    cache_kv: Tensor,
    *,
    heads: int,
    eps: float = 1e-6,
    offset: bool = False,
    gated: bool = False,
) -> Tensor:
    """Norm and rotate queries and keys, write keys and values to the cache, and return the queries.

    Args:
        qkv_n: [n, (heads + 2 · kv_heads) · d], queries, keys, values. With `gated`, each query head is followed by its
            gate, which is left for `gate_heads`. `heads` 0: rows that ask nothing (a drafter's context).
        positions_n: int64 positions in the text, rows of `tables`.
        tables: cos and sin, [positions, r] with r ≤ d even; dimensions from r on carry no position.
        norms: weights [d] of the queries' and the keys' norm, or None.
        start: 0-dim int64; row i is written to slot start + i of `cache_kv` [2, kv_heads, slots, d].

    Returns:
        [n, heads, d].
    """
    kv_heads, slots, d = cache_kv.shape[1:]
    n, (cos, sin), qkv_n = len(qkv_n), tables, qkv_n.contiguous()
    query_nhd = torch.empty(n, heads, d, dtype=qkv_n.dtype, device=qkv_n.device)
    query_norm, key_norm = norms or (cos, cos)
    # one head a program for a few rows; for many, several share their row's angles. Fused multiplication and addition
    # would skip the rounding between them
    together = 1 if n <= 4 else HEADS_AT_ONCE
    _rotate_and_store[(n, triton.cdiv(heads + 2 * kv_heads, together))](
        qkv_n, positions_n, cos, sin, query_norm, key_norm, start, cache_kv, query_nhd, eps, slots, HEADS=heads,
        KV_HEADS=kv_heads, D=d, WIDE=triton.next_power_of_2(d), TURNED=cos.shape[-1], TOGETHER=together,
        NORMED=norms is not None, OFFSET=offset, GATED=gated, num_warps=1 if together == 1 else 4,
        enable_fp_fusion=False, **chain(qkv_n.device),
    )  # fmt: skip
    return query_nhd


def silu_mul(gate_up_n: Tensor) -> Tensor:
    """silu(gate) · up of [n, 2 w], gate first. [n, w]."""
    n, w, gate_up_n = len(gate_up_n), gate_up_n.shape[1] // 2, gate_up_n.contiguous()
    out_nw = torch.empty(n, w, dtype=gate_up_n.dtype, device=gate_up_n.device)
    block = 1024
    _silu_mul[(n, triton.cdiv(w, block))](gate_up_n, out_nw, W=w, BLOCK=block, num_warps=4, **chain(gate_up_n.device))
    return out_nw


def gate_heads(attended_nq: Tensor, qkv_n: Tensor, d: int) -> Tensor:
    """attended · sigmoid(gate), with the gates where `rotate_and_store` left them in `qkv_n`. [n, heads · d]."""
    (n, width), attended_nq, qkv_n = attended_nq.shape, attended_nq.contiguous(), qkv_n.contiguous()
    out_nq = torch.empty_like(attended_nq)
    _gate_heads[(n, width // d)](
        attended_nq,
        qkv_n,
        out_nq,
        width,
        qkv_n.shape[1],
        D=d,
        WIDE=triton.next_power_of_2(d),
        num_warps=1,
        **chain(qkv_n.device),
    )
    return out_nq


@triton.jit(do_not_specialize=["size"])
def _add_norm(
    x, delta, weight, total, normed, eps, size,
    H: tl.constexpr, WIDE: tl.constexpr, PARTS: tl.constexpr, OFFSET: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    col = tl.arange(0, WIDE)
    inside = col < H
    at = tl.program_id(0) * H + col
    scale = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    ready(CHAIN)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if PARTS > 0:
        change = tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)
        for part in tl.static_range(1, PARTS):
            change += tl.load(delta + part * size + at, mask=inside, other=0.0)
        value = (value + change.to(x.dtype.element_ty).to(tl.float32)).to(x.dtype.element_ty)
        tl.store(total + at, value, mask=inside)
        value = value.to(tl.float32)
    if OFFSET:
        scale += 1.0
    spread = tl.rsqrt(tl.sum(value * value, 0) / H + eps)
    tl.store(normed + at, (value * spread * scale).to(x.dtype.element_ty), mask=inside)


@triton.jit
def _rotate_and_store(
    qkv, positions, cos, sin, query_norm, key_norm, start_at, cache, query,
    eps, slots,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, TURNED: tl.constexpr,
    TOGETHER: tl.constexpr, NORMED: tl.constexpr, OFFSET: tl.constexpr, GATED: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    dtype = query.dtype.element_ty
    head = tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER)[:, None]
    dim = tl.arange(0, WIDE)[None, :]
    # the dimension a dimension is turned with, and the sign it comes with
    half: tl.constexpr = TURNED // 2
    partner = tl.where(dim < half, dim + half, tl.where(dim < TURNED, dim - half, dim))
    inside = (head < HEADS + 2 * KV_HEADS) & (dim < D)
    asks, is_value = head < HEADS, head >= HEADS + KV_HEADS
    place = head
    width = HEADS + 2 * KV_HEADS
    if GATED:
        place = tl.where(asks, 2 * head, HEADS + head)
        width += HEADS
    source = qkv + (row * width + place) * D
    ready(CHAIN)
    raw = tl.load(source + dim, mask=inside, other=0.0)
    x, y = raw.to(tl.float32), tl.load(source + partner, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        spread = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
        norm = tl.where(asks, query_norm, key_norm)
        x_scale = tl.load(norm + dim, mask=inside, other=0.0).to(tl.float32)
        y_scale = tl.load(norm + partner, mask=inside, other=0.0).to(tl.float32)
        if OFFSET:
            x_scale += 1.0
            y_scale += 1.0
        x = (x * spread * x_scale).to(dtype).to(tl.float32)
        y = (y * spread * y_scale).to(dtype).to(tl.float32)
    angle = tl.load(positions + row) * TURNED + dim
    c = tl.load(cos + angle, mask=dim < TURNED, other=1.0).to(tl.float32)
    s = tl.load(sin + angle, mask=dim < TURNED, other=0.0).to(tl.float32)
    y = tl.where(dim < half, -y, y)
    turned = ((x * c).to(dtype).to(tl.float32) + (y * s).to(dtype).to(tl.float32)).to(dtype)
    tl.store(query + (row * HEADS + head) * D + dim, turned, mask=inside & asks)
    stored = tl.where(is_value, raw, turned)
    slot = tl.load(start_at) + row
    tl.store(cache + ((head - HEADS) * slots + slot) * D + dim, stored, mask=inside & (head >= HEADS))


@triton.jit
def _silu_mul(gate_up, out, W: tl.constexpr, BLOCK: tl.constexpr, CHAIN: tl.constexpr):
    ready(CHAIN)
    row, col = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = row.to(tl.int64) * 2 * W + col
    gate = tl.load(gate_up + at, mask=col < W, other=0.0).to(tl.float32)
    up = tl.load(gate_up + at + W, mask=col < W, other=0.0).to(tl.float32)
    active = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * W + col, (active * up).to(out.dtype.element_ty), mask=col < W)


@triton.jit
def _gate_heads(attended, qkv, out, width, qkv_width, D: tl.constexpr, WIDE: tl.constexpr, CHAIN: tl.constexpr):
    ready(CHAIN)
    row, head, dim = tl.program_id(0), tl.program_id(1), tl.arange(0, WIDE)
    at = row * width + head * D + dim
    gate = tl.load(qkv + row * qkv_width + (2 * head + 1) * D + dim, mask=dim < D, other=0.0).to(tl.float32)
    share = (1.0 / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    value = tl.load(attended + at, mask=dim < D, other=0.0).to(tl.float32)
    tl.store(out + at, (value * share).to(out.dtype.element_ty), mask=dim < D)
