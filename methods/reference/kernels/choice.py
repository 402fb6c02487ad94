"""The target's choice in Triton: the largest logit of each row, or the largest sum of logit / temperature and noise.

One pass over the logits in their own dtype, a row shared out among as many programs as fill the GPU; a second launch
takes the best of each row's parts. Noise has a row per output position, not per row of logits: it is made first.

Shape letters: r rows, v this rank's part of the vocabulary, t output positions, p parts of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from methods.base import Sampling
from methods.reference import sampling
from methods.reference.kernels.launch import chain, ready
from methods.reference.kernels.vocabulary import LOW, NOTHING, key_of
from methods.reference.parallel import Vocabulary

PROGRAMS = 2048  # enough to fill any GPU
STEP = 4096  # logits a program looks at in one go
FILTERED_AT_ONCE = 64  # rows; filtering makes int64 copies of their logits


def choose(
    logits_rv: Tensor,
    first: Tensor,
    depths_r: Tensor,
    how: Sampling,
    noise: Tensor,
    depth_limit: int,
    vocabulary: Vocabulary,
) -> Tensor:
    """`sampling.choose`: the target's own next token after each row, int64 [r], equal on all ranks.

    Args:
        first: the output position of the token after the root, 0-dim int64.
        depths_r: each row's depth, at most `depth_limit`, int64.
        noise: the request's `noise_key`, 0-dim int64 on the device.
    """
    if how.temperature == 0:
        return best(logits_rv, vocabulary)
    inverse = float(torch.tensor(1.0) / torch.tensor(how.temperature))  # in float32, as a torch kernel has it
    lowest_r = None
    if sampling.filters(how, vocabulary):
        parts = logits_rv.split(FILTERED_AT_ONCE)
        lowest_r = torch.cat([sampling.kept_from(rows.float() * inverse, how, vocabulary) for rows in parts])
    noise_tv = gumbel(noise, first, depth_limit + 1, vocabulary)
    return best(logits_rv, vocabulary, inverse, noise_tv, depths_r, lowest_r)


def best(
    logits_rv: Tensor,
    vocabulary: Vocabulary,
    inverse: float = 1.0,
    noise_tv: Tensor | None = None,
    depths_r: Tensor | None = None,
    lowest_r: Tensor | None = None,
) -> Tensor:
    """The id of each row's largest value over all ranks, the smallest id among equals, int64 [r].

    The value is the logit; or, with noise, logit · inverse + noise_tv[depth] (`inverse` of the temperature: torch on a
    GPU divides by a number in the same way), and −inf where logit · inverse is below `lowest_r`.
    """
    rows, v = logits_rv.shape
    span = triton.cdiv(v, max(1, min(PROGRAMS // rows, triton.cdiv(v, STEP))))
    span = triton.cdiv(span, STEP) * STEP
    parts = triton.cdiv(v, span)
    keys_rp = torch.empty(rows, parts, dtype=torch.int64, device=logits_rv.device)
    noise = noise_tv if noise_tv is not None else logits_rv
    depths = depths_r if depths_r is not None else keys_rp
    lowest = lowest_r if lowest_r is not None else logits_rv
    _best[(rows, parts)](
        logits_rv, noise, depths, lowest, keys_rp, logits_rv.stride(0), v, span, vocabulary.rows.start, inverse,
        BLOCK=STEP, NOISE=noise_tv is not None, FILTER=lowest_r is not None, **chain(logits_rv.device),
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    whole = vocabulary.group.size == 1
    best_r = torch.empty(rows, dtype=torch.int64, device=logits_rv.device)
    _best_part[(triton.cdiv(rows, 16),)](
        keys_rp, best_r, rows, parts, ROWS=16, PARTS=triton.next_power_of_2(parts), IDS=whole,
        **chain(logits_rv.device), num_warps=1,
    )  # fmt: skip
    return best_r if whole else sampling.ids_of(vocabulary.group.max(best_r))


def gumbel(key: Tensor, first: Tensor, places: int, vocabulary: Vocabulary) -> Tensor:
    """`sampling.gumbel` of output positions first … first + places − 1 and this rank's ids, float32 [t, v]."""
    v = vocabulary.rows.stop - vocabulary.rows.start
    noise_tv = torch.empty(places, v, dtype=torch.float32, device=key.device)
    _gumbel[(triton.cdiv(v, 512), places)](
        key, first, noise_tv, v, vocabulary.rows.start, BLOCK=512, **chain(key.device), num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    return noise_tv


@triton.jit(do_not_specialize=["offset", "inverse"])
def _best(
    logits, noise, depths, lowest, keys, stride, v, span, offset,
    inverse, BLOCK: tl.constexpr, NOISE: tl.constexpr, FILTER: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    ready(CHAIN)
    row, part = tl.program_id(0), tl.program_id(1)
    begin = part * span
    lane = begin + tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    place = lane
    noise_at, logits_at = noise, logits + row.to(tl.int64) * stride
    if NOISE:
        noise_at += tl.load(depths + row) * v
    if FILTER:
        edge = tl.load(lowest + row)
    for step in range(0, tl.minimum(span, v - begin), BLOCK):
        ids = lane + step
        value = tl.load(logits_at + ids, mask=ids < v, other=float("-inf")).to(tl.float32)
        if NOISE:
            scaled = value * inverse
            value = scaled + tl.load(noise_at + ids, mask=ids < v, other=0.0)
            if FILTER:
                value = tl.where(scaled < edge, float("-inf"), value)
        place = tl.where(value > top, ids, place)
        top = tl.maximum(value, top)
    peak = tl.max(top, 0)
    first = tl.min(tl.where(top == peak, place, 0x7FFFFFFF), 0)
    tl.store(keys + row * tl.num_programs(1) + part, key_of(peak, offset + first))


@triton.jit(do_not_specialize=["rows", "parts"])
def _best_part(
    keys, best, rows, parts, ROWS: tl.constexpr, PARTS: tl.constexpr, IDS: tl.constexpr, CHAIN: tl.constexpr
):
    ready(CHAIN)
    row, part = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, PARTS)
    inside = (row < rows)[:, None] & (part < parts)[None, :]
    key = tl.max(tl.load(keys + row[:, None] * parts + part[None, :], mask=inside, other=NOTHING), 1)
    if IDS:
        key = (key & LOW) ^ LOW
    tl.store(best + row, key, mask=row < rows)


@triton.jit
def _shift(value, bits: tl.constexpr):
    return (value.to(tl.uint64, bitcast=True) >> bits).to(tl.int64, bitcast=True)


@triton.jit
def _mix(value):
    value = (value ^ _shift(value, 30)) * -0x40A7B892E31B1A47
    value = (value ^ _shift(value, 27)) * -0x6B2FB644ECCEEE15
    return value ^ _shift(value, 31)


@triton.jit(do_not_specialize=["offset"])
def _gumbel(key, first, noise, v, offset, BLOCK: tl.constexpr, CHAIN: tl.constexpr):
    ready(CHAIN)
    place = tl.program_id(1)
    ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = _mix(_mix((tl.load(first) + place) * -0x61C8864680B583EB + tl.load(key)))
    bits = _mix(row + (ids.to(tl.int64) + offset + 1) * -0x61C8864680B583EB)
    uniform = (_shift(bits, 12).to(tl.float64) + 0.5) * 2.2204460492503131e-16
    value = tl.log(-tl.log(uniform)).to(tl.float32)
    tl.store(noise + place.to(tl.int64) * v + ids, -value, mask=ids < v)
