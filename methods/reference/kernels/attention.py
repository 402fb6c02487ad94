"""Attention over the cache in Triton: a prefix that every row sees, then the pass's own rows, of which a row sees its
ancestors.

Keys are read in blocks. Blocks of the prefix need no mask. Of a tree's own rows a program reads those alone that its
few rows descend from, a family's: listed once a round, gathered behind the prefix, visible by a bit in a packed word.
The blocks are dealt evenly to `splits` programs, whose number is fixed at launch while the length is read on the
device: one CUDA graph serves every length. The splits' results are merged by log-sum-exp in a second launch. All query
heads of one key/value head stand in one matrix, so keys are read once.

Shape letters: n rows of this pass, h query heads, g of them per key/value head, d head size, f families, w words of 32
listed rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from methods.reference.kernels.launch import chain, multiprocessors, ready, roomy

ALL, CAUSAL, TREE = 0, 1, 2  # what a row sees of the pass's own rows
LOG2_E = 1.4426950408889634
LONG = 8192  # slots from which merging more splits costs less than it saves


class Tile(NamedTuple):
    """One program's share of the score matrix, rows × query group by keys, and how it is run."""

    rows: int
    keys: int
    warps: int
    stages: int


class Ancestors(NamedTuple):
    """What the rows of a tree see of each other, by families: as many rows that follow each other.

    `listed_fs` (int16) holds, in order, the rows that a family sees, `counts_f` of them; bit j of word i in `words_nw`
    says whether a row sees its family's entry 32 i + j.
    """

    words_nw: Tensor
    listed_fs: Tensor
    counts_f: Tensor
    family: int


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
    ancestors: Ancestors | None = None,
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
        ancestors: as `descend` makes them; None: the rows see each other, or, if `causal`, those up to themselves.
        window: rows see slots nearer than this (slots are positions then); 0: all.
        splits: programs that share a row block's keys; None: `splits_for`.

    Returns:
        [n, h · d] in the query's dtype.
    """
    (n, h, d), query_nhd = query_nhd.shape, query_nhd.contiguous()
    kv_heads, slots = cache_kv.shape[1:3]
    group = h // kv_heads
    rows, keys, warps, stages = tile(n * group, d, query_nhd.dtype, roomy(query_nhd.device))
    splits = splits_for(query_nhd, cache_kv) if splits is None else splits
    sees, tiles = CAUSAL if causal and n > 1 else ALL, triton.cdiv(n * group, rows)
    words, listed, counts, family, capacity = start, start, start, 1, 0
    if ancestors is not None and n > 1:
        words, listed, counts, family = ancestors
        sees, tiles, capacity = TREE, len(counts), listed.shape[1]
        rows = max(16, triton.next_power_of_2(family * group))
    out_nq = torch.empty(n, h * d, dtype=query_nhd.dtype, device=query_nhd.device)
    parts, sums = out_nq, out_nq
    if splits > 1:
        parts = torch.empty(splits, n, h, d, dtype=torch.float32, device=query_nhd.device)
        sums = torch.empty(splits, n, h, dtype=torch.float32, device=query_nhd.device)
    _attend[(tiles, kv_heads, splits)](
        query_nhd, cache_kv, start, words, listed, counts, parts, sums, n, capacity, slots, d**-0.5 * LOG2_E,
        H=h, G=group, D=d, ROWS=rows, FAMILY=family, KEYS=keys, SPLITS=splits, SEES=sees, WINDOW=window,
        PRECISION="ieee" if query_nhd.dtype == torch.float32 else "tf32", SIDE=multiprocessors(query_nhd.device),
        num_warps=warps, num_stages=stages,
        **chain(query_nhd.device),
    )  # fmt: skip
    if splits > 1:
        padded = triton.next_power_of_2(splits)
        _merge[(n, h)](
            parts, sums, start, counts, out_nq, n, H=h, D=d, FAMILY=family, KEYS=keys, SPLITS=splits, PADDED=padded,
            SEES=sees, WINDOW=window, num_warps=1 if padded * d <= 1024 else 4, **chain(query_nhd.device),
        )  # fmt: skip
    return out_nq


def family_for(n: int, group: int, d: int, dtype: torch.dtype, device: torch.device) -> int:
    """How many of a tree's n rows one program takes: what its tile has room for."""
    return max(1, tile(n * group, d, dtype, roomy(device)).rows // group)


def descend(parents_n: Tensor, depth_limit: int, family: int = 16) -> Ancestors:
    """Who sees whom in a tree given by its parents (int64, row 0 its own), no deeper than `depth_limit`."""
    n, device = len(parents_n), parents_n.device
    families, words = triton.cdiv(n, family), triton.cdiv(min(n, family * (depth_limit + 1)), 32)
    packed_nw = torch.empty(n, words, dtype=torch.int32, device=device)
    listed_fs = torch.empty(families, 32 * words, dtype=torch.int16, device=device)  # what is small is not pipelined
    counts_f = torch.empty(families, dtype=torch.int32, device=device)
    _descend[(families,)](
        parents_n, packed_nw, listed_fs, counts_f, n, words, depth_limit, FAMILY=family,
        MEMBERS=triton.next_power_of_2(family), WORDS=triton.next_power_of_2(triton.cdiv(n, 32)),
        PACKED=triton.next_power_of_2(words), num_warps=4,
    )  # fmt: skip
    return Ancestors(packed_nw, listed_fs, counts_f, family)


@triton.jit
def _blocks(start, own, KEYS: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr):
    """The first key block, how many there are in all of a prefix and `own` rows, and how many a split takes."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(start - WINDOW + 1, 0) // KEYS
    total = tl.cdiv(start + own, KEYS) - first
    return first, total, tl.cdiv(total, SPLITS)


@triton.jit
def _word(words, row_m, n, index, count):
    """A word of each row: before the first all bits are set (the prefix), behind the last none."""
    marked = tl.where((index >= 0) & (index < count), n, 0)
    word_m = tl.load(words + row_m * count + index, mask=row_m < marked, other=tl.where(index < 0, -1, 0))
    return word_m.to(tl.uint32, bitcast=True)


@triton.jit
def _bits(one_m, two_m, shift):
    """32 bits from `shift` on of two words."""
    return (one_m >> shift) | (two_m << 1 << (31 - shift))


@triton.jit(do_not_specialize=["n", "capacity"])
def _attend(
    query, cache, start_at, words_at, listed_at, counts_at, out, sums, n, capacity, slots, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, FAMILY: tl.constexpr, KEYS: tl.constexpr,
    SPLITS: tl.constexpr, SEES: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr, SIDE: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    ready(CHAIN)
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if SEES == 1:  # later rows see more: those that share a multiprocessor come from both ends
        tiles = tl.num_programs(0)
        turned = (head * tiles + tiles // 2) // SIDE % 2
        tile = tl.where(turned == 1, tiles - 1 - tile, tile)
    start = tl.load(start_at).to(tl.int32)
    own = n
    if SEES == 2:
        own = tl.load(counts_at + tile)
    first, total, share = _blocks(start, own, KEYS, SPLITS, WINDOW)
    low = split * share
    high = tl.minimum(low + share, total)
    if low >= high:
        return
    place_m = tl.arange(0, ROWS)
    if SEES == 2:
        row_m = tl.where(place_m < FAMILY * G, tile * FAMILY + place_m // G, n)
    else:
        place_m += tile * ROWS
        row_m = place_m // G
    live_m = row_m < n
    dim, col = tl.arange(0, D), tl.arange(0, KEYS)
    at_m = row_m * H + head * G + place_m % G
    at_md = at_m[:, None] * D + dim[None, :]
    q = tl.load(query + at_md, mask=live_m[:, None], other=0.0)
    keys = cache + head.to(tl.int64) * slots * D
    values = keys + tl.num_programs(1).to(tl.int64) * slots * D
    at_cd = col[:, None] * D + dim[None, :]
    top_m = tl.full([ROWS], float("-inf"), tl.float32)
    sum_m = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    common = start  # slots that all of the tile's rows see
    if SEES == 0:
        common = start + n
    if SEES == 1:
        common = start + tile * ROWS // G + 1
        last = tl.minimum((tile * ROWS + ROWS - 1) // G, n - 1)
        high = tl.minimum(high, tl.cdiv(start + last + 1, KEYS) - first)
    whole = low
    if WINDOW == 0:
        whole = tl.maximum(low, tl.minimum(high, common // KEYS))
        for block in range(low, whole):
            k = tl.load(keys + block * KEYS * D + at_cd)
            s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            new_m = tl.maximum(top_m, tl.max(s, 1) * scale)
            p = tl.math.exp2(s * scale - new_m[:, None])
            keep_m = tl.math.exp2(top_m - new_m)
            sum_m = sum_m * keep_m + tl.sum(p, 1)
            v = tl.load(values + block * KEYS * D + at_cd)
            acc = tl.dot(p.to(v.dtype), v, acc * keep_m[:, None], input_precision=PRECISION)
            top_m = new_m
    count = capacity // 32
    if SEES == 2:
        one_m = _word(words_at, row_m, n, ((first + whole) * KEYS - start) >> 5, count)
    for block in range(whole, high):
        slot = (first + block) * KEYS + col
        behind = (first + block) * KEYS - start
        if SEES == 2:  # behind the prefix the family's list; its rest is read as the root and not seen
            entry = behind + col
            listed = tl.load(listed_at + tile * capacity + entry, mask=(entry >= 0) & (entry < own), other=0)
            slot = tl.where(entry < 0, slot, start + listed.to(tl.int32))
            word, shift = behind >> 5, (behind & 31).to(tl.uint32)
            two_m = _word(words_at, row_m, n, word + 1, count)
            bits = _bits(one_m, two_m, shift)[:, None]
            if KEYS == 64:
                one_m, two_m = two_m, _word(words_at, row_m, n, word + 2, count)
                bits = tl.where(col[None, :] < 32, bits, _bits(one_m, two_m, shift)[:, None])
            one_m = two_m if KEYS >= 32 else _word(words_at, row_m, n, (behind + KEYS) >> 5, count)
            seen = ((bits >> (col & 31)[None, :]) & 1) != 0
            k = tl.load(keys + slot[:, None] * D + dim[None, :])
        else:
            inside = slot < start + n
            seen = inside[None, :]
            if SEES == 1:
                seen = seen & (slot[None, :] <= start + row_m[:, None])
            k = tl.load(keys + slot[:, None] * D + dim[None, :], mask=inside[:, None], other=0.0)
        if WINDOW > 0:
            apart = start + row_m[:, None] - slot[None, :]
            seen = seen & (apart < WINDOW) & (apart > -WINDOW)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        s = tl.where(seen, s, float("-inf"))
        new_m = tl.maximum(top_m, tl.max(s, 1) * scale)
        safe_m = tl.where(new_m == float("-inf"), 0.0, new_m)
        p = tl.math.exp2(s * scale - safe_m[:, None])
        keep_m = tl.math.exp2(top_m - safe_m)
        sum_m = sum_m * keep_m + tl.sum(p, 1)
        if SEES == 2:
            v = tl.load(values + slot[:, None] * D + dim[None, :])
        else:
            v = tl.load(values + slot[:, None] * D + dim[None, :], mask=inside[:, None], other=0.0)
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
    parts, sums, start_at, counts_at, out, n,
    H: tl.constexpr, D: tl.constexpr, FAMILY: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr,
    PADDED: tl.constexpr, SEES: tl.constexpr, WINDOW: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Weigh the splits that had a share by their log-sum-exp (base 2)."""
    ready(CHAIN)
    at = tl.program_id(0) * H + tl.program_id(1)
    start = tl.load(start_at).to(tl.int32)
    own = n
    if SEES == 2:
        own = tl.load(counts_at + tl.program_id(0) // FAMILY)
    _, total, share = _blocks(start, own, KEYS, SPLITS, WINDOW)
    split, dim = tl.arange(0, PADDED), tl.arange(0, D)
    live = (split * share < total) & (split < SPLITS)
    weight = tl.load(sums + split * n * H + at, mask=live, other=float("-inf"))
    part = tl.load(parts + (split * n * H + at)[:, None] * D + dim[None, :], mask=live[:, None], other=0.0)
    weight = tl.math.exp2(weight - tl.max(weight, 0))
    merged = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + at * D + dim, merged.to(out.dtype.element_ty))


@triton.jit
def _either(one, other):
    return one | other


@triton.jit
def _count(words):
    """How many bits are set in each."""
    x = words.to(tl.uint32, bitcast=True)
    x -= (x >> 1) & 0x55555555
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit(do_not_specialize=["n", "words", "depth_limit"])
def _descend(
    parents, packed, listed, counts, n, words, depth_limit,
    FAMILY: tl.constexpr, MEMBERS: tl.constexpr, WORDS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """One family: whom it sees, then each member's ancestors by their places in that list."""
    family, member = tl.program_id(0), tl.arange(0, MEMBERS)
    word, part = tl.arange(0, WORDS)[None, :], tl.arange(0, PACKED)[None, :]
    row = family * FAMILY + member
    inside = (member < FAMILY) & (row < n)
    own = tl.where(inside, row, 0)
    at, seen = own, tl.zeros([MEMBERS, WORDS], tl.int32)
    for _ in range(depth_limit + 1):
        seen = seen | tl.where((at >> 5)[:, None] == word, (1 << (at & 31))[:, None], 0)
        at = tl.load(parents + at).to(tl.int32)
    union = tl.reduce(seen, 0, _either)[None, :]
    sizes = _count(union)
    tl.store(counts + family, tl.sum(sizes))
    at, bits = own, tl.zeros([MEMBERS, PACKED], tl.int32)
    for _ in range(depth_limit + 1):
        here = (at >> 5)[:, None]
        lower = _count(union & ((1 << (at & 31)) - 1)[:, None])
        place = tl.sum(tl.where(word < here, sizes, tl.where(word == here, lower, 0)), 1)
        tl.store(listed + family * words * 32 + place, at)
        bits = bits | tl.where((place >> 5)[:, None] == part, (1 << (place & 31))[:, None], 0)
        at = tl.load(parents + at).to(tl.int32)
    tl.store(packed + row[:, None] * words + part, bits, mask=inside[:, None] & (part < words))
