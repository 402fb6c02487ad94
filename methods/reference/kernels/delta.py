"""Gated delta net layers over a tree in Triton: everything between a layer's two projections in three launches.

A draft tree is wide but not deep. Unrolled from the state S₀ before the root (`gated_delta.py`), a row's output is
S₀'s answer plus a sum over its own path, so nothing of size [n, n] is needed: a table `ups_ns` lists each row's
ancestors, one step up after the other, and three launches do the rest for all rows at once.

1. `_recall`: the convolution over a row's own ancestors, SiLU, L2 norms, decays summed along the path in float64, and
   what S₀ answers to keys and queries. It leaves w_i = β_i (v_i − e^{g_i} S₀ᵀk_i) and e^{g_i} S₀ᵀq_i.
2. `_relate`: each row's products with its ancestors, a_ij = β_i e^{g_i − g_j} k_i·k_j and b_ij = e^{g_i − g_j} q_i·k_j.
3. `_finish`: with u = w − a u, the output is e^{g_i} S₀ᵀq_i + Σ_j y_ij w_j, where y_i solves the transposed system
   y + aᵀ y = b on the row's path alone, by substitution from the row up to the root; then the gated norm.

So no row waits for another, and u itself is only computed for the path that is accepted (`delta_commit.py`). One row
alone goes through a single launch (`delta_step.py`).

Numbers are as on the plain path: float32 and IEEE products after the projections, sums of log decay in float64, their
differences masked before the exponential. Substitution is backward stable where powers of a would overflow digits.

Shape letters: n rows, s steps up, h key heads, r value heads per key head, v value heads (h · r), d key size, e value
size, c channels of the convolution, i columns of the input projection (queries, keys, values, gates, β, decays),
l gated delta layers, k taps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from methods.reference.gated_delta import L2_EPS, Constants
from methods.reference.kernels.delta_step import decode, sigmoid, silu, softplus
from methods.reference.kernels.delta_traces import Traces
from methods.reference.kernels.launch import chain, ready

DEEPEST = 63  # the deepest tree the kernels take: a row and its ancestors are columns of one tile


class Asked(NamedTuple):
    """What a layer's rows ask for, within one pass."""

    query_nhd: Tensor  # before their norm
    scale_nh: Tensor  # the norm, d^−½ included
    recalled_nve: Tensor  # the state's answer to the queries, decayed


class Panel(NamedTuple):
    """One `_recall` program's share: rows (each for its key and its query) by columns of a value, and how it is run."""

    rows: int
    columns: int
    warps: int
    stages: int


def panel(n: int, wide: int) -> Panel:
    """The panel for n rows of values `wide` columns wide: few rows while programs are few."""
    return Panel(16 if n <= 400 else 32, min(128, wide), 8, 2)


def ascend(parents_n: Tensor, depth_limit: int, kernel: int) -> Tensor:
    """A tree's ancestors, int32 [n, s]: the row itself, its parent, and so on; behind the root −1, −2, … are the latest
    row before the tree, the one before that, and so on."""
    n = len(parents_n)
    steps = max(4, triton.next_power_of_2(max(depth_limit + 1, kernel)))
    ups_ns = torch.empty(n, steps, dtype=torch.int32, device=parents_n.device)
    _ascend[(triton.cdiv(n, 32),)](parents_n, ups_ns, n, STEPS=steps, ROWS=32, num_warps=1)
    return ups_ns


def mix(
    projected_ni: Tensor,
    constants: Constants,
    state_hdre: Tensor,
    window_kc: Tensor,
    ups_ns: Tensor | None,
    traces: Traces,
) -> Tensor:
    """What a gated delta net makes of the rows between its projections.

    Args:
        projected_ni: the input projection's rows.
        state_hdre, window_kc: the text before the rows; read only.
        ups_ns: as `ascend` makes it; None: one row alone.
        traces: one layer's, written.

    Returns:
        [n, v · e] in the rows' dtype, for the output projection.
    """
    if ups_ns is None:
        return decode(projected_ni, constants, state_hdre, window_kc, traces)
    asked = recall(projected_ni, constants, state_hdre, window_kc, ups_ns, traces)
    return finish(projected_ni, constants, state_hdre, ups_ns, traces, asked, relate(state_hdre, ups_ns, traces, asked))


def recall(
    projected_ni: Tensor,
    constants: Constants,
    state_hdre: Tensor,
    window_kc: Tensor,
    ups_ns: Tensor,
    traces: Traces,
) -> Asked:
    """The first launch: fills the traces, and asks the state."""
    n, (h, d, r, e), taps = len(projected_ni), state_hdre.shape, constants.taps_kc
    rows, columns, warps, stages = panel(n, max(16, triton.next_power_of_2(e)))
    asked = Asked(*(torch.empty_like(part) for part in traces[:3]))
    _recall[(triton.cdiv(n, rows), h * r, triton.cdiv(e, columns))](
        projected_ni, window_kc, taps, state_hdre, constants.speed_hr, constants.shift_hr, ups_ns, *traces, *asked,
        n, d**-0.5, L2_EPS, H=h, R=r, D=d, E=e, KERNEL=len(taps), STEPS=ups_ns.shape[1], ROWS=rows, COLUMNS=columns,
        KEYS=min(32, max(16, triton.next_power_of_2(d))), num_warps=warps, num_stages=stages,
        **chain(projected_ni.device),
    )  # fmt: skip
    return asked


def relate(state_hdre: Tensor, ups_ns: Tensor, traces: Traces, asked: Asked) -> Tensor:
    """The second launch: a and b, [2, n, v, s]."""
    (n, steps), (h, d, r, _) = ups_ns.shape, state_hdre.shape
    related_2nvs = torch.empty(2, n, h * r, steps, dtype=torch.float32, device=ups_ns.device)
    _relate[(n, h)](
        ups_ns, traces.key_lnhd, traces.scale_lnh, traces.sum_lnv, traces.rate_lnv, asked.query_nhd, asked.scale_nh,
        related_2nvs, n, H=h, R=r, D=d, STEPS=steps, KEYS=triton.next_power_of_2(d), num_warps=_warps(steps * d),
        **chain(ups_ns.device),
    )  # fmt: skip
    return related_2nvs


def finish(
    projected_ni: Tensor,
    constants: Constants,
    state_hdre: Tensor,
    ups_ns: Tensor,
    traces: Traces,
    asked: Asked,
    related_2nvs: Tensor,
) -> Tensor:
    """The third launch: the outputs, normed and gated."""
    n, (h, d, r, e) = len(projected_ni), state_hdre.shape
    out_nf = torch.empty(n, h * r * e, dtype=projected_ni.dtype, device=projected_ni.device)
    _finish[(n, h * r)](
        projected_ni, ups_ns, traces.wanted_lnve, asked.recalled_nve, related_2nvs, constants.norm_e, out_nf, n,
        constants.eps, H=h, R=r, D=d, E=e, STEPS=ups_ns.shape[1], WIDE=triton.next_power_of_2(e),
        num_warps=_warps(ups_ns.shape[1] * e), **chain(projected_ni.device),
    )  # fmt: skip
    return out_nf


def _warps(elements: int) -> int:
    """For a tile that is reduced again and again: one, which needs no barriers, while its registers hold the tile."""
    return 1 if elements <= 2048 else 4


@triton.jit(do_not_specialize=["n"])
def _ascend(parents, ups, n, STEPS: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = row
    for step in tl.static_range(STEPS):
        tl.store(ups + row * STEPS + step, at, mask=row < n)
        parent = tl.load(parents + tl.maximum(at, 0), mask=(row < n) & (at > 0), other=0).to(tl.int32)
        at = tl.where(at > 0, parent, at - 1)


@triton.jit
def _convolved(
    projected, window, taps, ups_m, col, inside,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, KERNEL: tl.constexpr,
):  # fmt: skip
    """SiLU of the convolution over each row's ancestors. `ups_m`: where each row's list of them is; `col` [m, …]."""
    acc = tl.zeros_like(col).to(tl.float32)
    for step in tl.static_range(KERNEL):
        up = tl.load(ups_m + step)[:, None]
        value = tl.load(projected + up * WIDTH + col, mask=inside & (up >= 0), other=0.0).to(tl.float32)
        if step > 0:
            before = window + (KERNEL - 1 + up) * CHANNELS + col
            value += tl.load(before, mask=inside & (up < 0), other=0.0).to(tl.float32)
        acc += value * tl.load(taps + (KERNEL - 1 - step) * CHANNELS + col, mask=inside, other=0.0)
    return silu(acc)


@triton.jit(do_not_specialize=["n"])
def _recall(
    projected, window, taps, state, speed, shift, ups, key, scale, wanted, sums, rates, inputs, query, query_scale,
    recalled, n, shrink, l2_eps,
    H: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, KERNEL: tl.constexpr, STEPS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """A block of rows for one value head and some columns of its values. The tile's first half are the rows' keys, its
    second half their queries: both are asked of the same part of the state, which is read once."""
    CHANNELS: tl.constexpr = 2 * H * D + H * R * E
    WIDTH: tl.constexpr = CHANNELS + H * R * E + 2 * H * R
    head, m = tl.program_id(1), tl.arange(0, 2 * ROWS)
    key_head = head // R
    tells, asks = m < ROWS, m >= ROWS
    row = tl.program_id(0) * ROWS + m % ROWS
    inside = row < n
    safe = tl.minimum(row, n - 1)
    ups_m = ups + safe * STEPS
    # rows to write of what this head's columns share, and of what value heads share as well
    once = row < tl.where(tl.program_id(2) == 0, n, 0)
    whole = row < tl.where(tl.program_id(2) + head % R == 0, n, 0)
    speed_of, shift_of = tl.load(speed + head), tl.load(shift + head)
    ready(CHAIN)
    up = tl.load(ups_m[:, None] + tl.arange(0, STEPS)[None, :])
    pace = tl.load(projected + up * WIDTH + (WIDTH - H * R) + head, mask=up >= 0, other=0.0).to(tl.float32)
    decay = tl.where(up >= 0, speed_of * softplus(pace + shift_of), 0.0)
    sum_m = tl.sum(decay.to(tl.float64), 1)
    rate_m = sigmoid(tl.load(projected + safe * WIDTH + (WIDTH - 2 * H * R) + head).to(tl.float32))
    e = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    acc = tl.zeros([2 * ROWS, COLUMNS], tl.float32)
    squares = tl.zeros([2 * ROWS], tl.float32)
    for at in range(0, D, KEYS):
        d = at + tl.arange(0, KEYS)
        held = tl.load(
            state + ((key_head * D + d) * R + head % R)[:, None] * E + e[None, :],
            mask=(d < D)[:, None] & (e < E)[None, :], other=0.0,
        )  # fmt: skip
        col = key_head * D + d[None, :] + tl.where(asks, 0, H * D)[:, None]
        there = (d < D)[None, :] & (m >= 0)[:, None]
        mixed = _convolved(projected, window, taps, ups_m, col, there, WIDTH, CHANNELS, KERNEL)
        mixed = tl.where(there, mixed, 0.0)
        squares += tl.sum(mixed * mixed, 1)
        acc = tl.dot(mixed, held, acc, input_precision="ieee")
        writes = there & whole[:, None]
        to = (row * H + key_head)[:, None] * D + d[None, :]
        tl.store(key + to, mixed, mask=writes & tells[:, None])
        tl.store(query + to, mixed, mask=writes & asks[:, None])
        raw = tl.load(projected + safe[:, None] * WIDTH + col, mask=writes, other=0.0)
        tl.store(inputs + row[:, None] * CHANNELS + col, raw, mask=writes)
    norm_m = tl.rsqrt(squares + l2_eps) * tl.where(asks, shrink, 1.0)
    told = acc * (norm_m * tl.exp(sum_m.to(tl.float32)))[:, None]
    col = 2 * H * D + head * E + e[None, :] + tl.zeros([2 * ROWS, 1], tl.int32)
    there = (e < E)[None, :] & (inside & tells)[:, None]
    value = _convolved(projected, window, taps, ups_m, col, there, WIDTH, CHANNELS, KERNEL)
    to = (row * (H * R) + head)[:, None] * E + e[None, :]
    tl.store(wanted + to, (value - told) * rate_m[:, None], mask=there)
    tl.store(recalled + to, told, mask=(e < E)[None, :] & (inside & asks)[:, None])
    raw = tl.load(projected + safe[:, None] * WIDTH + col, mask=there, other=0.0)
    tl.store(inputs + row[:, None] * CHANNELS + col, raw, mask=there)
    tl.store(sums + row * (H * R) + head, sum_m, mask=once & tells)
    tl.store(rates + row * (H * R) + head, rate_m, mask=once & tells)
    tl.store(scale + row * H + key_head, norm_m, mask=whole & tells)
    tl.store(query_scale + row * H + key_head, norm_m, mask=whole & asks)


@triton.jit(do_not_specialize=["n"])
def _relate(
    ups, key, scale, sums, rates, query, query_scale, related, n,
    H: tl.constexpr, R: tl.constexpr, D: tl.constexpr, STEPS: tl.constexpr, KEYS: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """One row and key head: a and b of the heads it serves, [v, s] each."""
    ready(CHAIN)
    row, key_head = tl.program_id(0), tl.program_id(1)
    step, d = tl.arange(0, STEPS), tl.arange(0, KEYS)
    up = tl.load(ups + row * STEPS + step)
    live, at, own = up >= 0, tl.maximum(up, 0) * H + key_head, row * H + key_head
    keys = tl.load(key + at[:, None] * D + d[None, :], mask=live[:, None] & (d < D)[None, :], other=0.0)
    own_key = tl.load(key + own * D + d, mask=d < D, other=0.0)
    own_query = tl.load(query + own * D + d, mask=d < D, other=0.0)
    scale_s = tl.load(scale + at, mask=live, other=0.0)
    alike = tl.sum(keys * own_key[None, :], 1) * scale_s * tl.load(scale + own)
    asked = tl.sum(keys * own_query[None, :], 1) * scale_s * tl.load(query_scale + own)
    for r in tl.static_range(R):
        mine = row * (H * R) + key_head * R + r
        before = tl.load(sums + tl.maximum(up, 0) * (H * R) + key_head * R + r, mask=live, other=0.0)
        between = tl.where(live, (tl.load(sums + mine) - before).to(tl.float32), float("-inf"))
        left = tl.exp(between)
        tied = tl.where(step > 0, tl.load(rates + mine) * left * alike, 0.0)
        tl.store(related + mine * STEPS + step, tied)
        tl.store(related + n * (H * R) * STEPS + mine * STEPS + step, left * asked)


@triton.jit
def _without(y, s, ups_s, related, head, step, HEADS: tl.constexpr, STEPS: tl.constexpr):
    """y once what the ancestor s steps up is tied to is taken off, further up."""
    here = tl.load(ups_s + s)
    tied = related + (tl.maximum(here, 0) * HEADS + head) * STEPS + step - s
    tied = tl.load(tied, mask=step > tl.where(here >= 0, s, STEPS), other=0.0)
    return y - tl.sum(tl.where(step == s, y, 0.0), 0) * tied


@triton.jit(do_not_specialize=["n"])
def _finish(
    projected, ups, wanted, recalled, related, norm, out, n, eps,
    H: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, STEPS: tl.constexpr, WIDE: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    """One row and value head."""
    WIDTH: tl.constexpr = 2 * H * D + 2 * H * R * E + 2 * H * R
    row, head, step, e = tl.program_id(0), tl.program_id(1), tl.arange(0, STEPS), tl.arange(0, WIDE)
    weight = tl.load(norm + e, mask=e < E, other=0.0)
    ready(CHAIN)
    mine = row * (H * R) + head
    up = tl.load(ups + row * STEPS + step)
    at = (tl.maximum(up, 0) * (H * R) + head)[:, None] * E + e[None, :]
    heard = tl.load(wanted + at, mask=(up >= 0)[:, None] & (e < E)[None, :], other=0.0)
    y = tl.load(related + (n * (H * R) + mine) * STEPS + step)
    if STEPS <= 16:  # unrolled, so that all loads are on their way at once
        for s in tl.static_range(STEPS - 1):
            y = _without(y, s, ups + row * STEPS, related, head, step, H * R, STEPS)
    else:
        for s in range(STEPS - 1):
            y = _without(y, s, ups + row * STEPS, related, head, step, H * R, STEPS)
    value = tl.load(recalled + mine * E + e, mask=e < E, other=0.0) + tl.sum(y[:, None] * heard, 0)
    spread = tl.rsqrt(tl.sum(value * value, 0) / E + eps)
    gate = projected + row * WIDTH + 2 * H * D + (H * R + head) * E + e
    gate = tl.load(gate, mask=e < E, other=0.0).to(tl.float32)
    result = value * spread * weight * silu(gate)
    tl.store(out + mine * E + e, result.to(out.dtype.element_ty), mask=e < E)
