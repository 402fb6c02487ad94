"""The draft trees of a whole batch at once, in the reference order, and what a verify pass of them sees.

Every function has static shapes and reads nothing on the host, so that it runs on any device and inside a CUDA graph.
A request's tree is `methods.reference.tree.build`'s, node for node and bit for bit.

Shape letters: b requests, n rows of a tree (1 + budget), l draft positions, k candidates per position, r = b · l.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from methods.reference import sampling
from methods.reference.parallel import Vocabulary
from methods.reference.tree import Candidates, Tree


class Trees(NamedTuple):
    """`methods.reference.tree.Tree` for each request; padding rows are invalid, at the root."""

    tokens_bn: Tensor
    parents_bn: Tensor
    depths_bn: Tensor
    scores_bn: Tensor
    valid_bn: Tensor

    def of(self, request: int) -> Tree:
        return Tree(*(column[request] for column in self))


def candidates(logits_rv: Tensor, requests: int, k: int, vocabulary: Vocabulary) -> Candidates:
    """Each position's best tokens from this rank's part of the drafter's logits: [b, l, k], equal on all ranks.

    Ranks exchange their own top k and the sums of their chunks, never a vocabulary.
    """
    found = sampling.candidates(logits_rv, k, vocabulary)
    return Candidates(*(part.unflatten(0, (requests, -1)) for part in found))


@cache  # never dropped: captured graphs read them
def _pairs(parents: int, ranks: int, budget: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(parent, rank) pairs that can be among the best `budget` of their depth, in tie order: (i + 1)(r + 1) ≤ budget,
    since every pair before it precedes it."""
    pairs = [(i, r) for i in range(parents) for r in range(min(ranks, budget // (i + 1)))]
    index = torch.tensor(pairs, dtype=torch.int64, device=device)
    return index[:, 0].contiguous(), index[:, 1].contiguous()


def build(found: Candidates, roots_b: Tensor, budget: int, *, chain_seed: bool = False) -> Trees:
    """The best-first tree of `budget` nodes of every request.

    Args:
        found: log-probs float32 and ids int64 [b, l, k], best first, k = min(budget, vocabulary).
        roots_b: the roots' token ids, int64.
        chain_seed: take the top-1 chain first, then best-first.

    At each depth the at most `budget` best nodes are kept in order: a stable sort over pairs listed by (parent, rank)
    breaks ties as the order asks. One more stable sort merges the depths.
    """
    log_probs_blk, ids_blk = found
    requests, length, ranks = ids_blk.shape
    device = ids_blk.device
    score_bp = log_probs_blk.new_zeros(requests, 1)
    start, count = -1, 0  # where the level above starts among all nodes (root: −1), and how many there are
    scores, tokens, parents, depths = [], [], [], []
    for depth in range(length):
        parent, rank = _pairs(score_bp.shape[1], ranks, budget, device)
        sums = score_bp[:, parent] + log_probs_blk[:, depth, rank]
        ordered, order = torch.sort(sums, dim=1, descending=True, stable=True)
        score_bp, order = ordered[:, :budget], order[:, :budget]
        scores.append(score_bp)
        tokens.append(ids_blk[:, depth].gather(1, rank[order]))
        parents.append(parent[order] + start)
        depths.append(torch.full_like(order, depth + 1))
        start, count = count, count + score_bp.shape[1]
    scores_bm, tokens_bm, parents_bm, depths_bm = (torch.cat(part, 1) for part in (scores, tokens, parents, depths))
    order_bm = _order(scores_bm, depths_bm, chain_seed)[:, :budget]
    nodes = order_bm.shape[1]
    places = torch.arange(1, nodes + 1, device=device).expand(requests, -1)
    place_bm = torch.zeros(requests, count + 1, dtype=torch.int64, device=device).scatter(1, order_bm, places)
    parents_bm = parents_bm.masked_fill(parents_bm < 0, count)  # the root stands at the end, at place 0
    missing = budget - nodes

    def column(root: Tensor, nodes_bm: Tensor) -> Tensor:
        return torch.nn.functional.pad(torch.cat([root, nodes_bm], 1), (0, missing))

    zero = torch.zeros(requests, 1, dtype=torch.int64, device=device)
    return Trees(
        tokens_bn=column(roots_b[:, None], tokens_bm.gather(1, order_bm)),
        parents_bn=column(zero, place_bm.gather(1, parents_bm.gather(1, order_bm))),
        depths_bn=column(zero, depths_bm.gather(1, order_bm)),
        scores_bn=column(log_probs_blk.new_zeros(requests, 1), scores_bm.gather(1, order_bm)),
        valid_bn=column(zero == 0, torch.ones_like(order_bm, dtype=torch.bool)),
    )


def _order(scores_bm: Tensor, depths_bm: Tensor, chain_seed: bool) -> Tensor:
    """The final order of nodes that stand depth by depth, each depth in order; the chain first if asked."""
    order = torch.sort(scores_bm, dim=1, descending=True, stable=True).indices
    if not chain_seed:
        return order
    first = torch.ones_like(depths_bm, dtype=torch.bool)
    first[:, 1:] = depths_bm[:, 1:] != depths_bm[:, :-1]  # the best of each depth is the top-1 chain's node
    return order.gather(1, torch.sort((~first.gather(1, order)).to(torch.int8), dim=1, stable=True).indices)


def positions(trees: Trees, lengths_b: Tensor) -> Tensor:
    """Each row's position in its text, int64 [b, n]: the root's, which is the committed length, plus the depth."""
    return lengths_b[:, None] + trees.depths_bn


def visibility(parents_bn: Tensor, depth_limit: int) -> Tensor:
    """Which rows of its tree a row may attend to: itself and its ancestors. bool [b, n, n], row by query."""
    requests, rows = parents_bn.shape
    visible = torch.eye(rows, dtype=torch.bool, device=parents_bn.device).expand(requests, -1, -1)
    jump, reach = parents_bn, 1
    while reach <= depth_limit:
        visible = visible | visible.gather(1, jump[:, :, None].expand(-1, -1, rows))
        jump, reach = jump.gather(1, jump), 2 * reach
    return visible


class Mask:
    """SGLang's custom mask in a buffer of its own size for captured graphs: per request [n, length + n] row by row, one
    after the other, all True but for the trees themselves, where it says what a row may attend to.

    `fill` first makes True where the last trees were written, and then writes this round's trees: b · n² entries,
    whatever the texts' lengths. Entries beyond the batch's own are never read.
    """

    def __init__(self, buffer: Tensor, requests: int, rows: int) -> None:
        """Args: `buffer`, 1-dim, bool or uint8, has room for `requests` masks of the longest text."""
        self._buffer = buffer.fill_(True)
        self._first_bn = torch.zeros(requests, rows, dtype=torch.int64, device=buffer.device)  # of each tree's row
        self._column = torch.arange(rows, device=buffer.device)

    def fill(self, visible_bnn: Tensor, lengths_b: Tensor) -> Tensor:
        """Write the batch's masks and return where each begins, int64 [b + 1]."""
        requests, rows, _ = visible_bnn.shape
        lengths_b = lengths_b.long()
        row_length_b = lengths_b + rows
        begins = torch.nn.functional.pad((row_length_b * rows).cumsum(0), (1, 0))
        first_bn = begins[:-1, None] + self._column * row_length_b[:, None] + lengths_b[:, None]
        self._buffer.index_fill_(0, (self._first_bn[:, :, None] + self._column).flatten(), 1)
        place_bnn = first_bn[:, :, None] + self._column
        self._buffer.index_copy_(0, place_bnn.flatten(), visible_bnn.flatten().to(self._buffer.dtype))
        self._first_bn[:requests] = first_bn
        return begins
