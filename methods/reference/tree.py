"""Draft trees: build, positions, visibility, walk, check, summary. Needs torch alone.

A tree has a root (node 0, the last committed token) and `budget` further nodes. A node's score is the sum of
log-probs along its path, in float32: its parent's score plus its own log-prob. Best-first keeps the `budget`
best-scored prefixes (DDTree, arXiv 2604.12989, Proposition 2) in the order: higher score, then shallower, then
earlier parent, then lower rank. Parents therefore come first, and the tree of budget b is the first b nodes of
any larger one.

Two builders agree bit for bit: `build_by_heap` works on the host and reads as the definition; `build_by_depth` does
whole depths at a time with static shapes and no host control, so that it runs on any device and inside a CUDA graph.
`build` takes the one that is faster where the candidates are.

Shape letters: n rows of the tree (1 + budget), l draft positions, k candidates per position.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from methods.reference import kernels


class Candidates(NamedTuple):
    """The drafter's best tokens per position, best first. `log_probs_lk` float32, `ids_lk` int64."""

    log_probs_lk: Tensor
    ids_lk: Tensor


class Tree(NamedTuple):
    """A draft tree in verify order. Rows beyond the nodes that exist are padding: invalid, at the root.

    `parents_n` of the root is itself; `scores_n` are path log-probs (float32), 0 at the root.
    """

    tokens_n: Tensor
    parents_n: Tensor
    depths_n: Tensor
    scores_n: Tensor
    valid_n: Tensor


class Walk(NamedTuple):
    """The accepted path. `path_d[d]` is the row accepted at depth d, 0 beyond `accepted` (a 0-dim int64)."""

    path_d: Tensor
    accepted: Tensor


class Summary(NamedTuple):
    """What a tree looks like. `expected_accepted` is Σ exp(score): the accepted depth to expect if the
    drafter's marginals were the truth (Proposition 1)."""

    nodes: int
    nodes_by_depth: tuple[int, ...]
    leaves: int
    expected_accepted: float


def chain(tokens_l: Tensor, log_probs_l: Tensor, root: Tensor) -> Tree:
    """The linear draft block as a tree of one branch: DFlash's proposal. Shapes [l], result [l + 1] rows."""
    index = torch.arange(len(tokens_l) + 1, device=tokens_l.device)
    return Tree(
        tokens_n=torch.cat([root.reshape(1), tokens_l]),
        parents_n=(index - 1).clamp_min(0),
        depths_n=index,
        scores_n=torch.cat([log_probs_l.new_zeros(1), log_probs_l.cumsum(0)]),
        valid_n=torch.ones_like(index, dtype=torch.bool),
    )


def root_only(root: Tensor) -> Tree:
    """The tree without a draft: one row, the root (a 0-dim int64)."""
    zero = torch.zeros(1, dtype=torch.int64, device=root.device)
    return Tree(root.reshape(1).clone(), zero, zero, zero.to(torch.float32), zero == 0)


@lru_cache(maxsize=64)
def _pairs(parents: int, ranks: int, budget: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(parent, rank) pairs that can be among the best `budget` of their depth, in tie order.

    Every pair (i' ≤ i, r' ≤ r) precedes (i, r), so (i + 1)(r + 1) ≤ budget is necessary.
    """
    pairs = [(i, r) for i in range(parents) for r in range(min(ranks, budget // (i + 1)))]
    index = torch.tensor(pairs, dtype=torch.int64, device=device)
    return index[:, 0].contiguous(), index[:, 1].contiguous()


def build(candidates: Candidates, root: Tensor, budget: int, *, chain_seed: bool = False) -> Tree:
    """The best-first tree of `budget` nodes.

    Args:
        candidates: [l, k] with k = min(budget, vocabulary).
        root: the root's token id, 0-dim int64.
        budget: the number of non-root nodes, at least 1.
        chain_seed: take the top-1 chain first, then best-first: the order keeps a full-depth spine at small
            budgets.
    """
    if kernels.usable(root.device):
        from methods.reference.kernels import tree as fast

        return fast.build(candidates, root, budget, chain_seed=chain_seed)
    builder = build_by_heap if root.device.type == "cpu" else build_by_depth
    return builder(candidates, root, budget, chain_seed=chain_seed)


def build_by_depth(candidates: Candidates, root: Tensor, budget: int, *, chain_seed: bool = False) -> Tree:
    """`build` with static shapes and no host control.

    At each depth the at most `budget` best nodes are kept in order: a stable sort over pairs listed by
    (parent, rank) breaks ties as the order asks. One more stable sort merges the depths.
    """
    log_probs_lk, ids_lk = candidates
    device = ids_lk.device
    score, start = log_probs_lk.new_zeros(1), -1  # the level above, and where it starts among all nodes (root: −1)
    levels: list[tuple[Tensor, Tensor, Tensor]] = []  # score, token, parent
    count = 0
    for depth in range(len(ids_lk)):
        parent, rank = _pairs(len(score), ids_lk.shape[1], budget, device)
        ordered, order = torch.sort(score[parent] + log_probs_lk[depth, rank], descending=True, stable=True)
        score, order = ordered[:budget], order[:budget]
        levels.append((score, ids_lk[depth, rank[order]], parent[order] + start))
        start, count = count, count + len(score)
    scores_m, tokens_m, parents_m = (torch.cat(part) for part in zip(*levels, strict=True))
    depths_m = torch.cat([torch.full_like(level[1], d + 1) for d, level in enumerate(levels)])
    order = _order(scores_m, depths_m, chain_seed)[:budget]
    place = torch.zeros(count + 1, dtype=torch.int64, device=device)  # where a node ends up; the root at the end: 0
    place[order] = torch.arange(1, len(order) + 1, device=device)
    tree = Tree(
        tokens_n=torch.cat([root.reshape(1), tokens_m[order]]),
        parents_n=torch.cat([place.new_zeros(1), place[parents_m[order]]]),
        depths_n=torch.cat([place.new_zeros(1), depths_m[order]]),
        scores_n=torch.cat([scores_m.new_zeros(1), scores_m[order]]),
        valid_n=torch.ones(len(order) + 1, dtype=torch.bool, device=device),
    )
    return _pad(tree, 1 + budget)


def _order(scores_m: Tensor, depths_m: Tensor, chain_seed: bool) -> Tensor:
    """The final order of nodes that stand depth by depth, each depth in order; the chain first if asked."""
    order = torch.sort(scores_m, descending=True, stable=True).indices
    if not chain_seed:
        return order
    first_of_depth = torch.ones_like(depths_m, dtype=torch.bool)
    first_of_depth[1:] = depths_m[1:] != depths_m[:-1]  # the best of each depth is the top-1 chain's node
    return order[torch.sort((~first_of_depth[order]).to(torch.int8), stable=True).indices]


def _pad(tree: Tree, width: int) -> Tree:
    """Padding rows up to the static width: invalid, token 0, at the root's depth."""
    missing = width - len(tree.tokens_n)
    if not missing:
        return tree
    return Tree(*(torch.nn.functional.pad(column, (0, missing)) for column in tree))


def build_by_heap(candidates: Candidates, root: Tensor, budget: int, *, chain_seed: bool = False) -> Tree:
    """`build` by a heap on the host: the definition, and the judge of other builders.

    For every node taken the heap holds its next sibling and its first child; both come later in the order.
    """
    log_probs: list[list[float]] = candidates.log_probs_lk.tolist()
    ids: list[list[int]] = candidates.ids_lk.tolist()
    rows: list[tuple[int, int, int, float]] = [(int(root), 0, 0, 0.0)]  # token, parent, depth, score
    heap: list[tuple[float, int, int, int]] = []  # −score, depth, parent, rank

    def score_of(parent: int, rank: int) -> float:
        total = rows[parent][3] + log_probs[rows[parent][2]][rank]
        return float(struct.unpack("f", struct.pack("f", total))[0])  # a float32 sum: rounding twice is harmless

    def push(parent: int, rank: int) -> None:
        depth = rows[parent][2] + 1
        if depth <= len(ids) and rank < len(ids[0]):
            heapq.heappush(heap, (-score_of(parent, rank), depth, parent, rank))

    def take(parent: int, rank: int) -> None:
        depth = rows[parent][2] + 1
        rows.append((ids[depth - 1][rank], parent, depth, score_of(parent, rank)))
        push(parent, rank + 1)

    if chain_seed:
        for depth in range(1, min(len(ids), budget) + 1):
            take(depth - 1, 0)
    else:
        push(0, 0)
    while heap and len(rows) <= budget:
        _, _, parent, rank = heapq.heappop(heap)
        take(parent, rank)
        push(len(rows) - 1, 0)
    tokens, parents, depths, scores = zip(*rows, strict=True)
    device = root.device
    tree = Tree(
        tokens_n=torch.tensor(tokens, device=device),
        parents_n=torch.tensor(parents, device=device),
        depths_n=torch.tensor(depths, device=device),
        scores_n=torch.tensor(scores, device=device),
        valid_n=torch.ones(len(rows), dtype=torch.bool, device=device),
    )
    return _pad(tree, 1 + budget)


def positions(tree: Tree, root_position: Tensor) -> Tensor:
    """Each row's position in the text, [n]: the root's plus the depth, never the row's slot."""
    return root_position + tree.depths_n


def visibility(parents_n: Tensor, depth_limit: int) -> Tensor:
    """Which rows a row may attend to: itself and its ancestors. bool [n, n], row by query.

    Pointer jumping: after s steps a row knows its ancestors up to distance 2^s − 1.
    """
    visible_nn = torch.eye(len(parents_n), dtype=torch.bool, device=parents_n.device)
    jump_n, reach = parents_n, 1
    while reach <= depth_limit:
        visible_nn = visible_nn | visible_nn[jump_n]
        jump_n, reach = jump_n[jump_n], 2 * reach
    return visible_nn


def walk(tree: Tree, visible_nn: Tensor, choices_n: Tensor, depth_limit: int) -> Walk:
    """Follow the target's choices from the root while they are children of the row reached.

    Args:
        choices_n: the target's own next token after each row, int64 [n].
        depth_limit: the deepest a node can be; `path_d` has depth_limit + 1 entries.

    A row is accepted when its token is what the target chose after its parent, and so for all its ancestors.
    """
    matches_n = tree.valid_n & (tree.tokens_n == choices_n[tree.parents_n])
    matches_n[:1].fill_(True)
    accepted_n = ~(visible_nn & ~matches_n).any(dim=1)
    rows = torch.arange(len(matches_n), device=matches_n.device)
    place_n = torch.where(accepted_n, tree.depths_n, depth_limit + 1)  # siblings differ: one row a depth at most
    path_d = torch.zeros(depth_limit + 2, dtype=torch.int64, device=rows.device).scatter(0, place_n, rows)
    return Walk(path_d[: depth_limit + 1], accepted_n.sum() - 1)


def check(tree: Tree) -> None:
    """Raise a ValueError naming the first row that breaks a tree's rules.

    Parents come first, a depth is the parent's plus one, siblings carry different tokens, padding comes last.
    """
    tokens, parents, depths = (column.tolist() for column in tree[:3])
    valid = tree.valid_n.tolist()
    if not valid or not valid[0] or parents[0] != 0 or depths[0] != 0:
        raise ValueError("row 0 must be the root: valid, its own parent, at depth 0")
    children: set[tuple[int, int]] = set()
    for row in range(1, len(tokens)):
        if not valid[row]:
            if any(valid[row:]):
                raise ValueError(f"row {row} is padding, yet nodes follow it")
            return
        parent = parents[row]
        if not 0 <= parent < row:
            raise ValueError(f"row {row} has parent {parent}: a parent must come before its child")
        if depths[row] != depths[parent] + 1:
            raise ValueError(f"row {row} is at depth {depths[row]}, its parent at {depths[parent]}")
        if (parent, tokens[row]) in children:
            raise ValueError(f"row {row} repeats token {tokens[row]} below row {parent}")
        children.add((parent, tokens[row]))


def summary(tree: Tree) -> Summary:
    """Count a tree's nodes, the root not among them."""
    nodes = int(tree.valid_n.sum()) - 1
    depths = tree.depths_n[1 : 1 + nodes]
    leaves = 1 + nodes - len(tree.parents_n[1 : 1 + nodes].unique())
    by_depth = torch.bincount(depths)[1:].tolist() if nodes else []
    return Summary(nodes, tuple(by_depth), leaves if nodes else 0, float(tree.scores_n[1 : 1 + nodes].exp().sum()))


def expected_accepted(tree: Tree, widths: Sequence[int]) -> Tensor:
    """`Summary.expected_accepted` of the tree's first so many rows, for each of these widths: float64 [w].

    The sums are of fixed order, so that ranks with the same tree have the same bits.
    """
    within_wn = _within(tuple(widths), len(tree.scores_n), tree.scores_n.device)
    reached_n = torch.where(tree.valid_n, tree.scores_n.double().exp(), 0.0)
    return torch.where(within_wn, reached_n, 0.0).sum(dim=1)


@lru_cache(maxsize=64)
def _within(widths: tuple[int, ...], rows: int, device: torch.device) -> Tensor:
    """Which rows are nodes of a tree's first so many rows: bool [w, n]."""
    row_n = torch.arange(rows, device=device)
    return (row_n > 0) & (row_n < torch.tensor(widths, device=device)[:, None])


def checksum(tree: Tree, previous: Tensor) -> Tensor:
    """A running 64-bit checksum over trees (0-dim int64, wrapping), by which ranks prove that they agree."""
    row = torch.arange(len(tree.tokens_n), device=previous.device)
    mixed = (tree.tokens_n * 0x9E3779B1 + tree.parents_n * 0x85EBCA77 + tree.valid_n) * (2 * row + 0xC2B2AE3D)
    return previous * 0x100000001B3 + mixed.sum()
