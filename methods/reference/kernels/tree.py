"""The draft tree in Triton: built on the device, equal to `tree.build_by_heap` bit for bit.

A tree's nodes are the prefixes whose score reaches a bar, plus as many of those at the bar as the budget has room for.
Log-probs are at most 0 and descend with the rank, so that the nodes above any bar can be listed depth by depth: a
node's children above it are its first few ranks, found by bisection. Three steps:

1. The bar is found by a search over the float32 numbers in order, `WAYS` guesses a launch: one program counts how many
   nodes reach one guess and stops as soon as they are too many. A guess that exactly `budget` nodes reach ends it.
2. One program lists the nodes depth by depth, each depth in order; equal scores keep the order of (parent, rank).
3. A node's place in the tree is the number of nodes that come before it.

Within one program threads pass values on through global memory, with a barrier between.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from methods.reference.kernels.launch import chain, ready
from methods.reference.tree import Candidates, Tree

WAYS = 128  # guesses a launch: no more than the programs that a large GPU runs at once
NODES_AT_ONCE = 256  # of one depth
BITS = 32  # of a float32: launches must tell that many apart
LOWEST = tl.constexpr(-2139095041)  # _sortable(−inf)
BEYOND = tl.constexpr(2147483647)  # above every score
PLACES_AT_ONCE = 32


def build(candidates: Candidates, root: Tensor, budget: int, *, chain_seed: bool = False) -> Tree:
    """The best-first tree of `budget` nodes: `tree.build` with static launches and no host reads.

    Args:
        candidates: [l, k]; log-probs float32, at most 0, descending (−inf allowed), contiguous.
        root: the root's token id, 0-dim int64.
        chain_seed: take the top-1 chain first, then best-first.
    """
    log_probs_lk, ids_lk = (part.contiguous() for part in candidates)
    (length, width), device = ids_lk.shape, ids_lk.device
    forced = min(length, budget) if chain_seed else 0
    target, size = budget - forced, max(64, triton.next_power_of_2(budget))
    ranks, block = min(width, budget), min(size, NODES_AT_ONCE)
    rounds = -(-BITS // (WAYS.bit_length() - 1))
    bars = torch.empty(rounds, 3, dtype=torch.int64, device=device)
    counts = torch.empty(rounds, WAYS, dtype=torch.int32, device=device)
    sums = torch.empty(WAYS, 3, size, dtype=torch.float32, device=device)
    notes = torch.empty(WAYS, 5, size, dtype=torch.int32, device=device)
    shared = {"SEEDED": chain_seed, "SIZE": size, "STEPS": size.bit_length(), "WAYS": WAYS, "BLOCK": block}
    shared |= chain(device)
    for turn in range(rounds):
        _count[(WAYS,)](
            log_probs_lk, bars, counts, sums, notes, turn, length, width, ranks, target, **shared,
            num_warps=max(1, block // 64),
        )  # fmt: skip
    scores_m = torch.empty(2, size, dtype=torch.float32, device=device)  # and what orders the nodes: +inf for a chain's
    nodes_m = torch.empty(3, size, dtype=torch.int32, device=device)  # parents, depths, and in [2, 0] how many
    tokens_m = torch.empty(size, dtype=torch.int64, device=device)
    _list[(1,)](
        log_probs_lk, ids_lk, bars, counts, sums, notes, scores_m, nodes_m, tokens_m,
        rounds, length, width, ranks, target, budget, **shared, COLUMNS=32, num_warps=max(1, block // 32),
    )  # fmt: skip
    whole_n = torch.empty(3, 1 + budget, dtype=torch.int64, device=device)
    scores_n = torch.empty(1 + budget, dtype=torch.float32, device=device)
    valid_n = torch.empty(1 + budget, dtype=torch.uint8, device=device)
    _place[(triton.cdiv(budget, PLACES_AT_ONCE),)](
        scores_m, nodes_m, tokens_m, root, whole_n, scores_n, valid_n,
        budget, SIZE=size, ROWS=PLACES_AT_ONCE, COLUMNS=min(128, size), **chain(device), num_warps=4,
    )  # fmt: skip
    return Tree(whole_n[0], whole_n[1], whole_n[2], scores_n, valid_n.view(torch.bool))


@triton.jit
def _sortable(value):
    """float32 as an int32 that compares as the number does. No score is −0: they start from +0."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _bar(log_probs, bars, counts, turn, ranks, target, SEEDED: tl.constexpr, WAYS: tl.constexpr):
    """What is known after `turn` launches: at least `target` nodes reach `low` (or all do), and `above` < target
    reach `high`; or low = high, which exactly `target` reach."""
    if turn == 0:
        last = target - 1
        if SEEDED:
            last = target
        low = tl.full([], BEYOND, tl.int64)
        high = low
        if target > 0:
            high = _sortable(tl.load(log_probs)).to(tl.int64) + 1
            low = tl.full([], LOWEST, tl.int64)
            if last < ranks:  # the best of depth 1 are nodes enough
                low = _sortable(tl.load(log_probs + last)).to(tl.int64)
        above = low * 0
    else:
        before = bars + (turn - 1) * 3
        low, high, above = tl.load(before), tl.load(before + 1), tl.load(before + 2)
        if high - low > 1:
            way = tl.arange(0, WAYS)
            step = (high - low + WAYS - 1) // WAYS
            count = tl.load(counts + (turn - 1) * WAYS + way)
            reached = tl.sum((count >= target).to(tl.int32), 0)
            exact = tl.max(tl.where(count == target, way + 1, 0), 0)
            above = tl.maximum(above, tl.max(tl.where(count < target, count, 0), 0).to(tl.int64))
            high = tl.minimum(high, low + (reached + 1) * step)
            low = low + reached * step
            if exact > 0:
                low = tl.load(before) + exact * step
                high = low
                above = low * 0 + target
    return low, high, above


@triton.jit
def _fitting(score, log_probs, ranks, bar, STEPS: tl.constexpr):
    """How many children of each node have a score that reaches the bar."""
    found = tl.zeros_like(score).to(tl.int32)
    for step in tl.static_range(STEPS):
        probe = found + (1 << (STEPS - 1 - step))
        inside = probe <= ranks
        value = score + tl.load(log_probs + probe - 1, mask=inside, other=float("-inf"))
        found = tl.where(inside & (_sortable(value) >= bar), probe, found)
    return found


@triton.jit
def _expand(
    parents, children, sums, notes, level, live, ranks, bar, above, offset, room, tag,
    EQUAL: tl.constexpr, FORCED: tl.constexpr, LISTED: tl.constexpr,
    SIZE: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Find the children of a depth's `live` nodes that reach `bar`; how many they are.

    Unless they are more than `room` they are laid out from slot `offset` on, by (parent, rank): their scores to
    `children` and, if LISTED, parents and ranks to the first rows of `notes`. With EQUAL those that reach `above` are
    left out, and the first `room` of the others laid out. FORCED takes the first child of all, whatever its score.

    `notes` goes on with the slots where a parent's first child lies, whose note is `tag` (larger than all before it),
    and with where the parents that have children begin and stand; row 2 of `sums` holds their scores.
    """
    lane = tl.arange(0, BLOCK)
    marks, begins, whose = notes + 2 * SIZE, notes + 3 * SIZE, notes + 4 * SIZE
    found, fertile = offset, 0
    for first in range(0, live, BLOCK):
        slot = first + lane
        real = slot < live
        score = tl.load(parents + slot, mask=real, other=0.0)
        count = tl.where(real, _fitting(score, level, ranks, bar, STEPS), 0)
        skipped = tl.zeros_like(count)
        if EQUAL:
            skipped = tl.where(real, _fitting(score, level, ranks, above, STEPS), 0)
            if FORCED:
                skipped = tl.where(slot == 0, tl.maximum(skipped, 1), skipped)
            count = tl.maximum(count - skipped, 0)
        elif FORCED:
            count = tl.where(slot == 0, tl.maximum(count, 1), count)
        start = tl.cumsum(count, 0) - count + found
        has = (count > 0) & (start < SIZE)
        place = tl.cumsum(has.to(tl.int32), 0) + fertile - 1
        tl.store(marks + start, tl.zeros_like(start) + tag, mask=has)
        tl.store(begins + place, start - skipped, mask=has)
        tl.store(sums + 2 * SIZE + place, score, mask=has)
        if LISTED:
            tl.store(whose + place, slot, mask=has)
        found += tl.sum(count, 0)
        fertile += tl.sum(has.to(tl.int32), 0)
    tl.debug_barrier()
    found -= offset
    shown = found
    if EQUAL:
        shown = tl.minimum(found, room)
    if shown <= room:
        before = -1
        for first in range(0, shown, BLOCK):
            slot = offset + first + lane
            real = first + lane < shown
            new = (tl.load(marks + slot, mask=real, other=0) == tag).to(tl.int32)
            parent = tl.cumsum(new, 0) + before
            before += tl.sum(new, 0)
            score = tl.load(sums + 2 * SIZE + parent, mask=real, other=0.0)
            rank = slot - tl.load(begins + parent, mask=real, other=0)
            tl.store(children + slot, score + tl.load(level + rank, mask=real, other=0.0), mask=real)
            if LISTED:
                tl.store(notes + slot, tl.load(whose + parent, mask=real, other=0), mask=real)
                tl.store(notes + SIZE + slot, rank, mask=real)
        tl.debug_barrier()
    return found


@triton.jit
def _begin(sums, notes, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The root's score, and no slot marked."""
    for first in range(0, SIZE, BLOCK):
        tl.store(notes + 2 * SIZE + first + tl.arange(0, BLOCK), tl.zeros([BLOCK], tl.int32))
    tl.store(sums, 0.0)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["turn", "length", "width", "ranks", "target"])
def _count(
    log_probs, bars, counts, sums, notes, turn, length, width, ranks, target,
    SEEDED: tl.constexpr, SIZE: tl.constexpr, STEPS: tl.constexpr, WAYS: tl.constexpr, BLOCK: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    """One guess: how many nodes (besides a forced chain's) reach it, exactly unless they are more than `target`."""
    way = tl.program_id(0)
    ready(CHAIN)
    low, high, above = _bar(log_probs, bars, counts, turn, ranks, target, SEEDED, WAYS)
    if way == 0:
        tl.store(bars + turn * 3, low)
        tl.store(bars + turn * 3 + 1, high)
        tl.store(bars + turn * 3 + 2, above)
    guess = low + (way + 1) * ((high - low + WAYS - 1) // WAYS)
    total = 0
    if (high - low > 1) & (guess < high):
        bar = guess.to(tl.int32)
        sums += way * 3 * SIZE
        notes += way * 5 * SIZE
        _begin(sums, notes, SIZE, BLOCK)
        live, depth = 1, 0
        while (depth < length) & (live > 0) & (total <= target):
            level, side = log_probs + depth * width, (depth & 1) * SIZE
            room = target - total
            if SEEDED:
                room += 1
            live = _expand(
                sums + side, sums + SIZE - side, sums, notes, level, live, ranks, bar, bar, 0, room, depth + 1,
                False, False, False, SIZE, STEPS, BLOCK,
            )  # fmt: skip
            total += live
            if SEEDED:
                total -= tl.minimum(live, 1)
            depth += 1
    tl.store(counts + turn * WAYS + way, total)


@triton.jit(do_not_specialize=["turns", "length", "width", "ranks", "target", "budget"])
def _list(
    log_probs, ids, bars, counts, sums, notes, scores, nodes, tokens, turns, length, width, ranks, target, budget,
    SEEDED: tl.constexpr, SIZE: tl.constexpr, STEPS: tl.constexpr, WAYS: tl.constexpr, BLOCK: tl.constexpr,
    CHAIN: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """All nodes, depth by depth, each depth in order. Parents are places in this list, −1 the root."""
    ready(CHAIN)
    low, high, above = _bar(log_probs, bars, counts, turns, ranks, target, SEEDED, WAYS)
    room = target - above.to(tl.int32)  # for nodes at the bar itself
    bar, edge = high.to(tl.int32), low.to(tl.int32)
    lane = tl.arange(0, BLOCK)
    _begin(sums, notes, SIZE, BLOCK)
    live, begin, done, depth = 1, -1, 0, 0
    while (depth < length) & (live > 0) & (done < budget):
        level = log_probs + depth * width
        fresh = _expand(
            sums, sums + SIZE, sums, notes, level, live, ranks, bar, bar, 0, SIZE, 2 * depth + 1,
            False, SEEDED, True, SIZE, STEPS, BLOCK,
        )  # fmt: skip
        if (room > 0) & (low < high):
            equals = _expand(
                sums, sums + SIZE, sums, notes, level, live, ranks, edge, bar, fresh, room, 2 * depth + 2,
                True, SEEDED, True, SIZE, STEPS, BLOCK,
            )  # fmt: skip
            equals = tl.minimum(equals, room)
            fresh += equals
            room -= equals
        live = fresh
        for first in range(0, live, BLOCK):
            slot = first + lane
            real = slot < live
            score = tl.load(sums + SIZE + slot, mask=real, other=0.0)
            place = tl.zeros([BLOCK], tl.int32)
            for column in range(0, live, COLUMNS):
                other = column + tl.arange(0, COLUMNS)
                rival = tl.load(sums + SIZE + other, mask=other < live, other=float("-inf"))[None, :]
                ahead = (rival > score[:, None]) | ((rival == score[:, None]) & (other[None, :] < slot[:, None]))
                place += tl.sum(ahead.to(tl.int32), 1)
            tl.store(sums + place, score, mask=real)
            tl.store(scores + done + place, score, mask=real)
            if SEEDED:  # the chain comes before all others
                score = tl.where(place == 0, float("inf"), score)
            tl.store(scores + SIZE + done + place, score, mask=real)
            parent = begin + tl.load(notes + slot, mask=real, other=0)
            tl.store(nodes + done + place, parent, mask=real)
            tl.store(nodes + SIZE + done + place, tl.zeros([BLOCK], tl.int32) + depth + 1, mask=real)
            token = tl.load(ids + depth * width + tl.load(notes + SIZE + slot, mask=real, other=0), mask=real, other=0)
            tl.store(tokens + done + place, token, mask=real)
        tl.debug_barrier()
        begin = done
        done += live
        depth += 1
    tl.store(nodes + 2 * SIZE, done)


@triton.jit(do_not_specialize=["budget"])
def _place(
    scores, nodes, tokens, root, whole, scores_out, valid,
    budget, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Put listed nodes, their parents' places with them, where they belong; padding and the root where those do."""
    ready(CHAIN)
    total = tl.load(nodes + 2 * SIZE)
    node = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = node < total
    parent = tl.load(nodes + node, mask=real, other=-1)
    mine = tl.load(scores + SIZE + node, mask=real, other=0.0)
    theirs = tl.load(scores + SIZE + parent, mask=real & (parent >= 0), other=0.0)
    place = tl.zeros([ROWS], tl.int32)
    parent_place = tl.zeros([ROWS], tl.int32)
    for column in range(0, total, COLUMNS):
        other = column + tl.arange(0, COLUMNS)
        rival = tl.load(scores + SIZE + other, mask=other < total, other=float("-inf"))[None, :]
        ahead = (rival > mine[:, None]) | ((rival == mine[:, None]) & (other[None, :] < node[:, None]))
        place += tl.sum(ahead.to(tl.int32), 1)
        ahead = (rival > theirs[:, None]) | ((rival == theirs[:, None]) & (other[None, :] < parent[:, None]))
        parent_place += tl.sum(ahead.to(tl.int32), 1)
    row = tl.where(real, place, node) + 1
    parent_row = tl.where(parent < 0, 0, parent_place + 1)
    inside = node < budget
    tl.store(whole + row, tl.load(tokens + node, mask=real, other=0), mask=inside)
    tl.store(whole + 1 + budget + row, parent_row.to(tl.int64), mask=inside)
    depth = tl.load(nodes + SIZE + node, mask=real, other=0)
    tl.store(whole + 2 * (1 + budget) + row, depth.to(tl.int64), mask=inside)
    tl.store(scores_out + row, tl.load(scores + node, mask=real, other=0.0), mask=inside)
    tl.store(valid + row, real.to(tl.uint8), mask=inside)
    if tl.program_id(0) == 0:
        tl.store(whole, tl.load(root))
        tl.store(whole + 1 + budget, 0)
        tl.store(whole + 2 * (1 + budget), 0)
        tl.store(scores_out, 0.0)
        tl.store(valid, 1)
