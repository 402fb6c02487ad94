"""A drafter's candidates in Triton: the best `k` of each row of logits with their log-probs.

Logits are read in their own dtype and never copied. The k-th best logit of a row is found eight bits at a time, two
such digits for 16-bit logits and four for float32: one launch counts, tile by tile, which digits the numbers still in
question have, the next takes the k-th best's. Then one collects what lies above it and as many of its equals, by id, as
there is room for, and a last one puts them in order.

The log-sum-exp is gathered in the first of these launches, a maximum and a sum per tile. A tile never crosses one of
the 16 chunks of the vocabulary that ranks hold whole, and all ranks combine all tiles in their order, so that the
result does not depend on how many ranks there are.

Shape letters: r rows, v this rank's part of the vocabulary, k candidates, t tiles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from methods.reference.kernels.launch import chain, ready
from methods.reference.parallel import CHUNKS, Vocabulary
from methods.reference.tree import Candidates

DIGITS = {torch.bfloat16: 2, torch.float16: 2, torch.float32: 4}
TILES_A_CHUNK = 4
SMALLEST_TILE = 256
LOW = tl.constexpr(0xFFFFFFFF)
NOTHING = tl.constexpr(-(2**63))  # below every key


def candidates(logits_rv: Tensor, k: int, vocabulary: Vocabulary) -> Candidates:
    """`sampling.candidates`, each row's `k` best tokens with their log-probs; ids and order are the same, log-probs
    agree up to the rounding of the log-sum-exp.

    Args:
        logits_rv: this rank's logits, float32, float16 or bfloat16; rows contiguous; padding is −inf.
    """
    keys_rk, sums_rt = best_of_part(logits_rv, min(k, vocabulary.size), vocabulary)
    group = vocabulary.group
    keys_rk, sums_rt = group.gather(keys_rk, dim=-1), group.gather(sums_rt, dim=-1)
    return in_order(keys_rk, sums_rt, min(k, vocabulary.size))


def best_of_part(logits_rv: Tensor, k: int, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """One rank's share of `candidates`.

    Returns:
        The keys (`sampling.keys`) of each row's best, int64 [r, min(k, v)] in no order, and each tile's maximum and sum
        of exp(logit − maximum), float32 [2, r, t].
    """
    (rows, v), device, digits = logits_rv.shape, logits_rv.device, DIGITS[logits_rv.dtype]
    k, chunk = min(k, v), vocabulary.padded // CHUNKS
    block = max(SMALLEST_TILE, triton.next_power_of_2(triton.cdiv(chunk, TILES_A_CHUNK)))
    parts = triton.cdiv(chunk, block)
    tiles = v // chunk * parts
    counts = torch.empty(rows, tiles, 256, dtype=torch.int32, device=device)
    tallies = torch.empty(2, rows, tiles, dtype=torch.int32, device=device)  # how many beat the k-th best, or equal it
    found = torch.empty(rows, 2, dtype=torch.int64, device=device)  # the k-th best's digits, and how many are to come
    sums_rt = torch.empty(2, rows, tiles, dtype=torch.float32, device=device)
    keys_rk = torch.empty(rows, k, dtype=torch.int64, device=device)
    shape = {"CHUNK": chunk, "PARTS": parts, "BLOCK": block, "num_warps": max(1, min(8, block // 256)), **chain(device)}
    every = {"TILES": triton.next_power_of_2(tiles)}
    for digit in range(digits):
        _count[(tiles, rows)](
            logits_rv, counts, found, sums_rt, logits_rv.stride(0), DIGIT=digit, DIGITS=digits, **shape
        )
        _narrow[(rows,)](counts, tallies, found, tiles, k, DIGIT=digit, **every, **chain(device), num_warps=8)
    _collect[(tiles, rows)](
        logits_rv, tallies, found, keys_rk, logits_rv.stride(0), k, vocabulary.rows.start, **every, **shape
    )
    return keys_rk, sums_rt


def in_order(keys_rm: Tensor, sums_rt: Tensor, k: int) -> Candidates:
    """The best `k` of the ranks' keys, best first, as ids and log-probs. All keys of a row differ."""
    rows, many = keys_rm.shape
    log_probs_rk = torch.empty(rows, k, dtype=torch.float32, device=keys_rm.device)
    ids_rk = torch.empty(rows, k, dtype=torch.int64, device=keys_rm.device)
    tiles = sums_rt.shape[-1]
    _in_order[(triton.cdiv(many, 32), rows)](
        keys_rm, sums_rt, log_probs_rk, ids_rk, many, k, tiles, ROWS=32, COLUMNS=128,
        TILES=triton.next_power_of_2(tiles), **chain(keys_rm.device), num_warps=4,
    )  # fmt: skip
    return Candidates(log_probs_rk, ids_rk)


@triton.jit
def _ordered(value):
    """A logit's bits as an unsigned integer that compares as the number does; −0 equals 0."""
    if value.dtype.primitive_bitwidth == 16:
        bits = value.to(tl.int16, bitcast=True).to(tl.int32)
        bits = tl.where(bits == -32768, 0, bits)
        ordered = (tl.where(bits < 0, bits ^ 0x7FFF, bits) + 32768).to(tl.uint32)
    else:
        ordered = _sortable(value).to(tl.uint32, bitcast=True) ^ 0x80000000
    return ordered


@triton.jit
def _sortable(value):
    """float32 as an int32 that compares as the number does; −0 equals 0."""
    bits = value.to(tl.int32, bitcast=True)
    bits = tl.where(value == 0.0, 0, bits)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def key_of(value, ids):
    """`sampling.keys` of float32 values and ids."""
    return (_sortable(value).to(tl.int64) << 32) | (ids.to(tl.int64) ^ LOW)


@triton.jit
def _tile(logits, stride, CHUNK: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """This program's logits, their ids on this rank, and which of them exist."""
    tile, lane = tl.program_id(0), tl.arange(0, BLOCK)
    place = tile % PARTS * BLOCK + lane
    inside = place < CHUNK
    ids = tile // PARTS * CHUNK + place
    value = tl.load(logits + tl.program_id(1).to(tl.int64) * stride + ids, mask=inside, other=float("-inf"))
    return value, ids, inside


@triton.jit
def _count(
    logits, counts, found, sums, stride,
    CHUNK: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, DIGIT: tl.constexpr, DIGITS: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    """One tile: how often each digit stands at place DIGIT of the numbers whose higher digits are the k-th best's."""
    ready(CHAIN)
    row, rows = tl.program_id(1), tl.num_programs(1)
    at = row * tl.num_programs(0) + tl.program_id(0)
    value, _, inside = _tile(logits, stride, CHUNK, PARTS, BLOCK)
    if DIGIT == 0:
        number = value.to(tl.float32)
        top = tl.max(number, 0)
        power = tl.exp(number - tl.where(top == float("-inf"), 0.0, top))
        tl.store(sums + at, top)
        tl.store(sums + rows * tl.num_programs(0) + at, tl.sum(power, 0))
    ordered = _ordered(value)
    if DIGIT > 0:
        prefix = tl.load(found + row * 2).to(tl.uint32)
        inside = inside & ((ordered >> (8 * (DIGITS - DIGIT))) == prefix)
    digit = ((ordered >> (8 * (DIGITS - 1 - DIGIT))) & 255).to(tl.int32)
    tl.store(counts + at * 256 + tl.arange(0, 256), tl.histogram(digit, 256, mask=inside))


@triton.jit(do_not_specialize=["tiles", "k"])
def _narrow(
    counts, tallies, found, tiles, k,
    DIGIT: tl.constexpr, TILES: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """One row: the k-th best's digit at place DIGIT, and how many logits of each tile are larger or equal so far."""
    ready(CHAIN)
    row, rows, bin_, every = tl.program_id(0), tl.num_programs(0), tl.arange(0, 256), tl.arange(0, TILES)
    prefix = tl.zeros([], tl.int64)
    need = prefix + k
    larger_at = tallies + row * tiles + every
    larger = tl.zeros([TILES], tl.int32)
    if DIGIT > 0:
        prefix, need = tl.load(found + row * 2), tl.load(found + row * 2 + 1)
        larger = tl.load(larger_at, mask=every < tiles, other=0)
    seen_at = counts + (row * tiles + every[:, None]) * 256 + bin_[None, :]
    seen = tl.load(seen_at, mask=every[:, None] < tiles, other=0)
    total = tl.sum(seen, 0)
    beyond = tl.sum(total, 0) - tl.cumsum(total, 0)
    here = 256 - tl.sum((beyond < need).to(tl.int32), 0)
    need -= tl.sum(tl.where(bin_ == here, beyond, 0), 0)
    larger += tl.sum(tl.where(bin_[None, :] > here, seen, 0), 1)
    equal = tl.sum(tl.where(bin_[None, :] == here, seen, 0), 1)
    tl.store(found + row * 2, prefix * 256 + here)
    tl.store(found + row * 2 + 1, need)
    tl.store(larger_at, larger, mask=every < tiles)
    tl.store(larger_at + rows * tiles, equal, mask=every < tiles)


@triton.jit(do_not_specialize=["k", "offset"])
def _collect(
    logits, tallies, found, keys, stride, k, offset,
    CHUNK: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """One tile: the keys of its logits above the k-th best's, and of its equals while there is room, by id."""
    ready(CHAIN)
    tile, row, tiles, rows = tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1)
    every = tl.arange(0, TILES)
    value, ids, inside = _tile(logits, stride, CHUNK, PARTS, BLOCK)
    ordered = _ordered(value)
    edge, need = tl.load(found + row * 2).to(tl.uint32), tl.load(found + row * 2 + 1).to(tl.int32)
    larger, equal = inside & (ordered > edge), inside & (ordered == edge)
    both = tl.cumsum(larger.to(tl.int32) * 65536 + equal.to(tl.int32), 0)
    tally_at = tallies + row * tiles + every
    larger_so_far = (both >> 16) + tl.sum(tl.load(tally_at, mask=every < tile, other=0), 0)
    equal_so_far = (both & 65535) + tl.sum(tl.load(tally_at + rows * tiles, mask=every < tile, other=0), 0)
    slot = larger_so_far + tl.minimum(equal_so_far, need) - 1
    taken = larger | (equal & (equal_so_far <= need))
    tl.store(keys + row * k + slot, key_of(value.to(tl.float32), offset + ids), mask=taken)


@triton.jit(do_not_specialize=["many", "k", "tiles"])
def _in_order(
    keys, sums, log_probs, ids, many, k, tiles,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """A key's place is the number of larger ones in its row."""
    ready(CHAIN)
    row, rows, every = tl.program_id(1), tl.num_programs(1), tl.arange(0, TILES)
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mine = tl.load(keys + row * many + at, mask=at < many, other=0)
    place = tl.zeros([ROWS], tl.int32)
    for column in range(0, many, COLUMNS):
        other = column + tl.arange(0, COLUMNS)
        rival = tl.load(keys + row * many + other, mask=other < many, other=NOTHING)
        place += tl.sum((rival[None, :] > mine[:, None]).to(tl.int32), 1)
    top_t = tl.load(sums + row * tiles + every, mask=every < tiles, other=float("-inf"))
    sum_t = tl.load(sums + (rows + row) * tiles + every, mask=every < tiles, other=0.0)
    top = tl.max(top_t, 0)
    whole = tl.log(tl.sum(sum_t * tl.exp(top_t - tl.where(top == float("-inf"), 0.0, top)), 0))
    bits = (mine >> 32).to(tl.int32)
    value = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
    kept = (at < many) & (place < k)
    tl.store(log_probs + row * k + place, value - (top + whole), mask=kept)
    tl.store(ids + row * k + place, (mine & LOW) ^ LOW, mask=kept)
