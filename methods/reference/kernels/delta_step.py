"""One row of a gated delta net in Triton: a decoding step between the layer's projections, in one launch.

A program holds a value head's whole state, asks it for what the key and the query find there, and norms and gates the
head's output. The state itself is left as it is: what the row does to it is noted for the commit.

Shape letters as in `delta.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from methods.reference.gated_delta import L2_EPS, Constants
from methods.reference.kernels.delta_traces import Traces
from methods.reference.kernels.launch import chain, ready


def decode(projected_1i: Tensor, constants: Constants, state_hdre: Tensor, window_kc: Tensor, traces: Traces) -> Tensor:
    """`delta.mix` of one row alone."""
    assert len(projected_1i) == 1
    (h, d, r, e), (taps, speed, shift, norm, eps) = state_hdre.shape, constants
    out_1f = torch.empty(1, h * r * e, dtype=projected_1i.dtype, device=projected_1i.device)
    _step[(h * r,)](
        projected_1i, window_kc, taps, state_hdre, speed, shift, norm, out_1f, *traces, d**-0.5, L2_EPS, eps,
        H=h, R=r, D=d, E=e, KERNEL=len(taps), KEYS=triton.next_power_of_2(d), WIDE=triton.next_power_of_2(e),
        num_warps=8, **chain(projected_1i.device),
    )  # fmt: skip
    return out_1f


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """log(1 + eˣ) that keeps the digits of a small eˣ; x itself above 20, as torch has it."""
    small = tl.exp(tl.minimum(x, 20.0))
    whole = 1.0 + small
    exact = tl.log(whole) * (small / tl.where(whole == 1.0, 1.0, whole - 1.0))
    return tl.where(x > 20.0, x, tl.where(whole == 1.0, small, exact))


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _latest(
    projected, window, taps, inputs, col, inside, writes, CHANNELS: tl.constexpr, KERNEL: tl.constexpr
):  # fmt: skip
    """SiLU of the convolution's last output for the one row, whose inputs are noted."""
    own = tl.load(projected + col, mask=inside, other=0.0)
    acc = own.to(tl.float32) * tl.load(taps + (KERNEL - 1) * CHANNELS + col, mask=inside, other=0.0)
    for tap in tl.static_range(KERNEL - 1):
        value = tl.load(window + tap * CHANNELS + col, mask=inside, other=0.0).to(tl.float32)
        acc += value * tl.load(taps + tap * CHANNELS + col, mask=inside, other=0.0)
    tl.store(inputs + col, own, mask=writes)
    return silu(acc)


@triton.jit
def _step(
    projected, window, taps, state, speed, shift, norm, out, key, scale, wanted, sums, rates, inputs,
    shrink, l2_eps, eps,
    H: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, KERNEL: tl.constexpr, KEYS: tl.constexpr,
    WIDE: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """One row and value head, with the head's whole state in registers. The state is what commits of rounds before have
    left, and a projection lies between: it may be read before the projection has ended."""
    CHANNELS: tl.constexpr = 2 * H * D + H * R * E
    VALUES: tl.constexpr = H * R * E
    head, d, e = tl.program_id(0), tl.arange(0, KEYS), tl.arange(0, WIDE)
    key_head = head // R
    in_key, in_value = d < D, e < E
    held = tl.load(
        state + ((key_head * D + d) * R + head % R)[:, None] * E + e[None, :],
        mask=in_key[:, None] & in_value[None, :], other=0.0,
    )  # fmt: skip
    weight = tl.load(norm + e, mask=in_value, other=0.0)
    speed_of, shift_of = tl.load(speed + head), tl.load(shift + head)
    ready(CHAIN)
    width = tl.where(head % R == 0, D, 0)  # what value heads share is written once
    asked = key_head * D + d
    query_d = _latest(projected, window, taps, inputs, asked, in_key, d < width, CHANNELS, KERNEL)
    key_d = _latest(projected, window, taps, inputs, H * D + asked, in_key, d < width, CHANNELS, KERNEL)
    value = 2 * H * D + head * E + e
    value_e = _latest(projected, window, taps, inputs, value, in_value, in_value, CHANNELS, KERNEL)
    gate_e = tl.load(projected + VALUES + value, mask=in_value, other=0.0).to(tl.float32)
    rate = sigmoid(tl.load(projected + CHANNELS + VALUES + head).to(tl.float32))
    pace = tl.load(projected + CHANNELS + VALUES + H * R + head).to(tl.float32)
    decay = speed_of * softplus(pace + shift_of)
    spread = tl.rsqrt(tl.sum(key_d * key_d, 0) + l2_eps)
    tl.store(key + asked, key_d, mask=d < width)
    tl.store(scale + key_head, spread, mask=width > 0)
    key_d = key_d * spread
    query_d = query_d * (tl.rsqrt(tl.sum(query_d * query_d, 0) + l2_eps) * shrink)
    left = tl.exp(decay)
    told_e = tl.sum(held * key_d[:, None], 0) * left
    wanted_e = (value_e - told_e) * rate
    tl.store(wanted + head * E + e, wanted_e, mask=in_value)
    tl.store(sums + head, decay.to(tl.float64))
    tl.store(rates + head, rate)
    out_e = tl.sum(held * query_d[:, None], 0) * left + tl.sum(key_d * query_d, 0) * wanted_e
    out_e = out_e * tl.rsqrt(tl.sum(out_e * out_e, 0) / E + eps) * weight * silu(gate_e)
    tl.store(out + head * E + e, out_e.to(out.dtype.element_ty), mask=in_value)
