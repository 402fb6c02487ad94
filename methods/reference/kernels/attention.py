"""Attention over the cache in Triton: a prefix that every row sees, then the pass's own rows, of which a row sees its
ancestors.

Keys are read in blocks. Blocks of the prefix need no mask; the pass's own rows start a block of their own, so that
their visibility is a bit in a packed word. The blocks are dealt evenly to `splits` programs, whose number is fixed at
launch while the length is read on the device: one CUDA graph serves every length. The splits' results are merged by
log-sum-exp in a second launch. All query heads of one key/value head stand in one matrix, so keys are read once.

Shape letters: n rows of this pass, h query heads, g of them per key/value head, d head size, w words of 32 rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from methods.reference.kernels.launch import chain, multiprocessors, ready, roomy

ALL, CAUSAL, TREE, ONE = 0, 1, 2, 3  # what a row sees of the pass's own rows; one row alone needs no mask
LOG2_E = 1.4426950408889634
LONG = 8192  # slots from which merging more splits costs less than it saves


class Tile(NamedTuple):
    """One program's share of the score matrix, rows × query group by keys, and how it is run."""

    rows: int
    keys: int
    warps: int
    stages: int


def tile(rows: int, d: int, dtype: torch.dtype, deep: bool) -> Tile:
    """The tile for `rows` (n · g) by d. `deep` says that shared memory is plentiful."""
    if dtype == torch.float32:
        return Tile(16, 16, 4, 1) if d > 128 else Tile(16 if rows <= 16 or d > 64 else 32, 32, 4, 2)
    if rows <= 16:
        return Tile(16, 64, 4, 2 if d > 128 else 3)
    if d > 128:
        return Tile(64 if rows > 32 else 32, 32, 4, 2)
    return Tile(64 if rows > 32 else 32, 64, 4, 3 if deep else 2)


def splits_for(query_nhd: Tensor, cache_kv: Tensor) -> int:
    """How many programs should share one row block's keys, from shapes alone: enough to give each multiprocessor two,
    and no more than there are key blocks in the cache. Few rows are cheap to merge, so there may be more of them."""
    n, h, d = query_nhd.shape
    kv_heads, slots = cache_kv.shape[1:3]
    rows = n * h // kv_heads
    shape = tile(rows, d, query_nhd.dtype, roomy(query_nhd.device))
    programs, places = triton.cdiv(rows, shape.rows) * kv_heads, 2 * multiprocessors(query_nhd.device)
    wanted = places // programs
    if wanted and slots >= LONG:
        wanted = max(wanted, 4)
    wanted = min(wanted, triton.cdiv(slots, shape.keys), 32 if shape.rows <= 16 else 8)
    return max(1, int(wanted))


def attention(
    query_nhd: Tensor,
    cache_kv: Tensor,
    start: Tensor,
    ancestors: Tensor | None = None,
    *,
    causal: bool = False,
    window: int = 0,
    splits: int | None = None,
) -> Tensor:
    """Attend from n rows at slots start … start + n − 1, whose keys and values are in the cache already.

    Args:
        query_nhd: rotated queries.
        cache_kv: one layer's keys and values, [2, h / g, slots, d].
        start: 0-dim int64 on the device; slots before it are seen by all rows.
        ancestors: packed words as `pack` or `descend` makes them; None: the rows see each other, or, if `causal`, those
            up to themselves.
        window: rows see slots nearer than this (slots are positions then); 0: all.
        splits: programs that share a row block's keys; None: `splits_for`.

    Returns:
        [n, h · d] in the query's dtype.
    """
    (n, h, d), query_nhd = query_nhd.shape, query_nhd.contiguous()
    kv_heads, slots = cache_kv.shape[1:3]
    group = h // kv_heads
    deep = roomy(query_nhd.device)
    rows, keys, warps, stages = tile(n * group, d, query_nhd.dtype, deep)
    splits = splits_for(query_nhd, cache_kv) if splits is None else splits
    sees = ONE if n == 1 else TREE if ancestors is not None else CAUSAL if causal else ALL
    out_nq = torch.empty(n, h * d, dtype=query_nhd.dtype, device=query_nhd.device)
    parts, sums = out_nq, out_nq
    if splits > 1:
        parts = torch.empty(splits, n, h, d, dtype=torch.float32, device=query_nhd.device)
        sums = torch.empty(splits, n, h, dtype=torch.float32, device=query_nhd.device)
    words, length = (start, 0) if ancestors is None else (ancestors, ancestors.shape[1])
    _attend[(triton.cdiv(n * group, rows), kv_heads, splits)](
        query_nhd, cache_kv, start, words, parts, sums, n, length, slots, d**-0.5 * LOG2_E,
        H=h, G=group, D=d, ROWS=rows, KEYS=keys, SPLITS=splits, SEES=sees, WINDOW=window,
        PRECISION="ieee" if query_nhd.dtype == torch.float32 else "tf32", SIDE=multiprocessors(query_nhd.device),
        num_warps=warps, num_stages=stages,
        **chain(query_nhd.device),
    )  # fmt: skip
    if splits > 1:
        padded = triton.next_power_of_2(splits)
        _merge[(n, h)](
            parts, sums, start, out_nq, n, H=h, D=d, KEYS=keys, SPLITS=splits, PADDED=padded, SEES=sees, WINDOW=window,
            num_warps=1 if padded * d <= 1024 else 4, **chain(query_nhd.device),
        )  # fmt: skip
    return out_nq


def pack(visible_nn: Tensor) -> Tensor:
    """bool [n, n], row by query, as int32 words [n, w]: bit j of word i says whether row 32 i + j is seen."""
    n, words = len(visible_nn), triton.cdiv(len(visible_nn), 32)
    packed_nw = torch.empty(n, words, dtype=torch.int32, device=visible_nn.device)
    _pack[(n,)](visible_nn.view(torch.uint8), packed_nw, n, words, WORDS=triton.next_power_of_2(words), num_warps=4)
    return packed_nw


def descend(parents_n: Tensor, depth_limit: int) -> Tensor:
    """The packed words of a tree given by its parents (int64, row 0 its own), without a matrix in between."""
    n, words = len(parents_n), triton.cdiv(len(parents_n), 32)
    packed_nw = torch.empty(n, words, dtype=torch.int32, device=parents_n.device)
    rows = 16
    _descend[(triton.cdiv(n, rows),)](
        parents_n, packed_nw, n, words, depth_limit, ROWS=rows, WORDS=triton.next_power_of_2(words), num_warps=4
    )
    return packed_nw


@triton.jit
def _blocks(start, n, KEYS: tl.constexpr, SPLITS: tl.constexpr, SEES: tl.constexpr, WINDOW: tl.constexpr):
    """The first key block, how many of the prefix there are, how many in all, and how many a split takes."""
    end = start
    own = tl.cdiv(n, KEYS)
    if SEES == 3:
        end = start + 1
        own = 0
    first = 0
    if WINDOW > 0:
        first = tl.maximum(start - WINDOW + 1, 0) // KEYS
    prefix = tl.cdiv(end, KEYS) - first
    total = prefix + own
    return end, first, prefix, total, tl.cdiv(total, SPLITS)


@triton.jit
def _ones(count):
    """A word whose first `count` bits are set: none below 1, all from 32 on."""
    some = (1 << tl.minimum(tl.maximum(count, 0), 31)) - 1
    return tl.where(count >= 32, -1, some)


@triton.jit(do_not_specialize=["n", "words"])
def _attend(
    query, cache, start_at, words_at, out, sums, n, words, slots, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr,
    SEES: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr, SIDE: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    ready(CHAIN)
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if SEES == 1 or SEES == 2:  # later rows see more: those that share a multiprocessor come from both ends
        tiles = tl.num_programs(0)
        turned = (head * tiles + tiles // 2) // SIDE % 2
        tile = tl.where(turned == 1, tiles - 1 - tile, tile)
    start = tl.load(start_at).to(tl.int32)
    end, first, prefix, total, share = _blocks(start, n, KEYS, SPLITS, SEES, WINDOW)
    low = split * share
    high = tl.minimum(low + share, total)
    if low >= high:
        return
    place_m = tile * ROWS + tl.arange(0, ROWS)
    row_m = place_m // G
    live_m = row_m < n
    dim, col = tl.arange(0, D), tl.arange(0, KEYS)
    at_m = row_m * H + head * G + place_m % G
    at_md = at_m[:, None] * D + dim[None, :]
    q = tl.load(query + at_md, mask=live_m[:, None], other=0.0)
    key_at = cache + head.to(tl.int64) * slots * D + col[:, None] * D + dim[None, :]
    value_at = key_at + tl.num_programs(1).to(tl.int64) * slots * D
    top_m = tl.full([ROWS], float("-inf"), tl.float32)
    sum_m = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    whole = low
    if WINDOW == 0:  # blocks of the prefix that all rows see whole
        whole = tl.maximum(low, tl.minimum(high, end // KEYS))
        for block in range(low, whole):
            k = tl.load(key_at + block * KEYS * D)
            s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            new_m = tl.maximum(top_m, tl.max(s, 1) * scale)
            p = tl.math.exp2(s * scale - new_m[:, None])
            keep_m = tl.math.exp2(top_m - new_m)
            sum_m = sum_m * keep_m + tl.sum(p, 1)
            v = tl.load(value_at + block * KEYS * D)
            acc = tl.dot(p.to(v.dtype), v, acc * keep_m[:, None], input_precision=PRECISION)
            top_m = new_m
    if SEES == 1 or SEES == 2:  # nothing is to be seen beyond the last row's own slot: parents come before children
        last = tl.minimum((tile * ROWS + ROWS - 1) // G, n - 1)
        high = tl.minimum(high, prefix + last // KEYS + 1)
    for block in range(whole, high):
        before = block < prefix
        slot = tl.where(before, (first + block) * KEYS, start + (block - prefix) * KEYS)
        limit = tl.where(before, end, start + n)
        inside = slot + col < limit
        k = tl.load(key_at + slot * D, mask=inside[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        seen = inside[None, :]
        if SEES == 1:
            seen = seen & (slot + col[None, :] <= start + row_m[:, None])
        if SEES == 2:  # the words of what is seen; in the prefix all rows see the same
            word_at = words_at + row_m * words + (slot - start) // 32
            marked = tl.where(before, 0, n)
            bits = tl.load(word_at, mask=row_m < marked, other=_ones(tl.where(before, end - slot, 0)))[:, None]
            if KEYS > 32:
                marked = tl.where((slot - start) // 32 + 1 < words, marked, 0)
                other = _ones(tl.where(before, end - slot - 32, 0))
                more_m = tl.load(word_at + 1, mask=row_m < marked, other=other)
                bits = tl.where(col[None, :] < 32, bits, more_m[:, None])
            shift = 31 - ((tl.where(before, 0, slot - start) + col) & 31)
            seen = (bits << shift[None, :]) < 0
        if WINDOW > 0:
            apart = start + row_m[:, None] - slot - col[None, :]
            seen = seen & (apart < WINDOW) & (apart > -WINDOW)
        s = tl.where(seen, s, float("-inf"))
        new_m = tl.maximum(top_m, tl.max(s, 1) * scale)
        safe_m = tl.where(new_m == float("-inf"), 0.0, new_m)
        p = tl.math.exp2(s * scale - safe_m[:, None])
        keep_m = tl.math.exp2(top_m - safe_m)
        sum_m = sum_m * keep_m + tl.sum(p, 1)
        v = tl.load(value_at + slot * D, mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * keep_m[:, None], input_precision=PRECISION)
        top_m = new_m
    result = acc / tl.where(sum_m == 0.0, 1.0, sum_m)[:, None]
    if SPLITS == 1:
        tl.store(out + at_md, result.to(out.dtype.element_ty), mask=live_m[:, None])
    else:
        tl.store(out + split * n * H * D + at_md, result, mask=live_m[:, None])
        tl.store(sums + split * n * H + at_m, top_m + tl.math.log2(sum_m), mask=live_m)


@triton.jit(do_not_specialize=["n"])
def _merge(
    parts, sums, start_at, out, n,
    H: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr,
    SEES: tl.constexpr, WINDOW: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Weigh the splits that had a share by their log-sum-exp (base 2)."""
    ready(CHAIN)
    at = tl.program_id(0) * H + tl.program_id(1)
    start = tl.load(start_at).to(tl.int32)
    _, _, _, total, share = _blocks(start, n, KEYS, SPLITS, SEES, WINDOW)
    split, dim = tl.arange(0, PADDED), tl.arange(0, D)
    live = (split * share < total) & (split < SPLITS)
    weight = tl.load(sums + split * n * H + at, mask=live, other=float("-inf"))
    part = tl.load(parts + (split * n * H + at)[:, None] * D + dim[None, :], mask=live[:, None], other=0.0)
    weight = tl.math.exp2(weight - tl.max(weight, 0))
    merged = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + at * D + dim, merged.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["n", "words"])
def _pack(visible, packed, n, words, WORDS: tl.constexpr):
    row, word, bit = tl.program_id(0), tl.arange(0, WORDS), tl.arange(0, 32)
    column = word[:, None] * 32 + bit[None, :]
    seen = tl.load(visible + row * n + column, mask=column < n, other=0).to(tl.int32)
    tl.store(packed + row * words + word, tl.sum(seen << bit[None, :], 1), mask=word < words)


@triton.jit(do_not_specialize=["n", "words"])
def _descend(parents, packed, n, words, depth_limit, ROWS: tl.constexpr, WORDS: tl.constexpr):
    row, word = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WORDS)
    inside, at = row < n, row
    bits = tl.zeros([ROWS, WORDS], tl.int32)
    for _ in range(depth_limit + 1):
        bits = bits | tl.where((at >> 5)[:, None] == word[None, :], (1 << (at & 31))[:, None], 0)
        at = tl.load(parents + at, mask=inside, other=0).to(tl.int32)
    tl.store(packed + row[:, None] * words + word[None, :], bits, mask=inside[:, None] & (word < words)[None, :])
