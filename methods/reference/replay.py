"""One text, drafted at every root: what any budget's rounds would have accepted of it.

A draft depends on the text before its root alone, never on how the text was cut into rounds, and the tree of a small
budget is the beginning of a large one's. So the text of one generation, whichever method it came from, says it all: the
target reads it once, the drafter drafts at every place where a round could start, many blocks in a pass, and the text's
own continuation is looked up in the best-first tree of each.

Shape letters: r roots of a pass, b rows of a block, l draft positions, k candidates per position, n rows of a tree.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from methods.base import Replay, Request
from methods.reference import sampling, tree
from methods.reference.drafter import Drafter
from methods.reference.memory import ROOTS_AT_ONCE
from methods.reference.reading import read
from methods.reference.target import Target
from methods.reference.tree import Candidates, Tree

NO_TOKEN = -1  # what stands behind the end of the text


class Replayer:
    """One request's output at work."""

    def __init__(
        self, target: Target, drafter: Drafter, request: Request, output_ids: Sequence[int], budget: int
    ) -> None:
        self._target, self._drafter, self._budget = target, drafter, budget
        self._block, self._depth_limit = drafter.config.block_size, drafter.config.block_size - 1
        self._first = len(request.prompt_ids)  # the position of the first root
        self._tokens = (*request.prompt_ids, *output_ids)
        ends = [NO_TOKEN] * self._depth_limit
        self._text = torch.tensor([*self._tokens, *ends], device=target.device)
        masks = torch.full((self._depth_limit,), drafter.config.mask_token_id, device=target.device)
        self._masks_bh = target.embed(masks)

    def run(self) -> Replay:
        """All roots, from the first output token to the last but one."""
        begin = time.perf_counter()
        end = len(self._tokens) - 1  # the last token starts no round
        self._read(end - 1)
        places: list[list[int]] = []
        chain: list[int] = []
        at_once = min(ROOTS_AT_ONCE, (self._drafter.cache.slots - end) // self._block)
        for first in range(self._first, end, at_once):
            roots_r = torch.arange(first, min(first + at_once, end), device=self._target.device)
            text_rl = self._text[roots_r[:, None] + 1 + torch.arange(self._depth_limit, device=roots_r.device)]
            drafts = self.propose(roots_r)
            trees = [self._build(draft, root) for draft, root in zip(drafts, self._text[roots_r], strict=True)]
            places += follow(trees, text_rl).tolist()
            firsts_rl = torch.stack([draft.ids_lk[:, 0] for draft in drafts])
            chain += (firsts_rl == text_rl).cumprod(dim=1).sum(dim=1).tolist()
        found = tuple(tuple(place for place in row if place) for row in places)
        return Replay(self._budget, found, tuple(chain), time.perf_counter() - begin)

    def propose(self, roots_r: Tensor) -> list[Candidates]:
        """The drafter's candidates behind each of the roots at these positions."""
        roots_rbh = self._target.embed(self._text[roots_r])[:, None]
        blocks_rbh = torch.cat([roots_rbh, self._masks_bh.expand(len(roots_r), -1, -1)], dim=1)
        hidden = self._drafter.blocks(blocks_rbh.flatten(0, 1), roots_r, len(self._tokens) - 1)
        drafted = hidden.unflatten(0, (len(roots_r), -1))[:, 1:].flatten(0, 1)
        vocabulary = self._target.vocabulary
        found = sampling.candidates(self._target.logits(drafted), self._budget, vocabulary)
        parts = (column.unflatten(0, (len(roots_r), -1)) for column in found)
        return [Candidates(*one) for one in zip(*parts, strict=True)]

    def _read(self, length: int) -> None:
        """Give the drafter the text up to the last root as its context."""
        for chunk in read(self._target, self._tokens[:length], self._drafter.config.target_layer_ids):
            assert chunk.features_cf is not None
            self._drafter.extend(chunk.features_cf, torch.tensor(chunk.start, device=self._target.device))

    def _build(self, draft: Candidates, root: Tensor) -> Tree:
        return tree.build(draft, root, self._budget)


def follow(trees: Sequence[Tree], text_rl: Tensor) -> Tensor:
    """The places of a text in trees: int64 [r, l], by depth from 1; 0 from the depth on where a tree lacks it.

    A node's place is its row, since the root is row 0. A row is the text's if its token and its ancestors' are:
    pointer jumping, as in `tree.visibility`.
    """
    tokens_rn, parents_rn, depths_rn, _, valid_rn = (torch.stack(column) for column in zip(*trees, strict=True))
    ours_rn = valid_rn & (tokens_rn == text_rl.gather(1, (depths_rn - 1).clamp_min(0)))
    ours_rn[:, 0] = True
    jump_rn, reach, depth_limit = parents_rn, 1, text_rl.shape[1]
    while reach <= depth_limit:
        ours_rn = ours_rn & ours_rn.gather(1, jump_rn)
        jump_rn, reach = jump_rn.gather(1, jump_rn), 2 * reach
    rows_rn = torch.arange(tokens_rn.shape[1], device=tokens_rn.device).expand_as(tokens_rn)
    where_rn = torch.where(ours_rn, depths_rn, depth_limit + 1)  # siblings differ: one row a depth at most
    places = torch.zeros(len(trees), depth_limit + 2, dtype=torch.int64, device=tokens_rn.device)
    return places.scatter(1, where_rn, rows_rn)[:, 1 : depth_limit + 1]
