"""What the plugin computes in a round, beside SGLang's two passes, in three steps on buffers that stay where they are.

`propose` takes the drafter's hidden states to candidates, `grow` makes every request's tree and writes its mask, and
`settle` takes the target's choices to what is committed. A step reads nothing but the buffers and writes nothing else,
so that it can be captured for some numbers of requests and replayed; where it was not captured it runs. A batch smaller
than what was captured is filled up with requests of one token whose rows lie in the slot that SGLang keeps for that.

Shape letters: b requests, n rows of a tree, l draft positions, h hidden, v this rank's part of the vocabulary.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from methods.engines.sglang_ddtree.commit import Commit, Walks, commit, walk
from methods.engines.sglang_ddtree.settings import Settings
from methods.engines.sglang_ddtree.trees import Mask, Trees, build, candidates, positions, visibility
from methods.reference.parallel import Vocabulary, up
from methods.reference.tree import Candidates

Run = Callable[[], None]
ROWS_TOGETHER = 64  # SGLang pads a vocabulary to a multiple of this before it shares it out


@dataclass(frozen=True)
class Shards(Vocabulary):
    """A vocabulary as SGLang shares it out. Where 64 divides its size, sums over it are the built-in engine's."""

    @property
    def padded(self) -> int:
        return up(self.size, ROWS_TOGETHER)


@dataclass(frozen=True)
class Head:
    """This rank's part of the target's head, `weight_vh`, whose rows beyond the vocabulary do not count."""

    weight_vh: Tensor
    vocabulary: Vocabulary

    def __call__(self, hidden_rh: Tensor) -> Tensor:
        """This rank's logits, −inf beyond the vocabulary."""
        rows = self.vocabulary.rows
        real = max(min(self.vocabulary.size, rows.stop) - rows.start, 0)
        logits_rv = torch.nn.functional.linear(hidden_rh, self.weight_vh[:real])
        missing = rows.stop - rows.start - real
        return torch.nn.functional.pad(logits_rv, (0, missing), value=-torch.inf) if missing else logits_rv


class Steps:
    """The steps of at most `most` requests of at most `longest` tokens.

    Args:
        memory: keys and values of every layer of the target, each [slots, …].
    """

    def __init__(self, told: Settings, most: int, longest: int, head: Head, memory: Sequence[Tensor]) -> None:
        self._told, self._head, self._memory = told, head, memory
        device, length, width, depths = head.weight_vh.device, told.block_size - 1, told.width, told.depth + 1
        whole, real = partial(torch.zeros, dtype=torch.int64, device=device), partial(torch.zeros, device=device)
        k = min(told.budget, head.vocabulary.size)
        self.mask = torch.zeros(most * width * (longest + width), dtype=torch.uint8, device=device)
        self._mask = Mask(self.mask, most, width)
        self._roots_b, self._lengths_b, self._slots_bn = whole(most), whole(most).fill_(1), whole(most, width)
        self._hidden_blh = real(most, length, head.weight_vh.shape[1], dtype=head.weight_vh.dtype)
        self._found = Candidates(real(most, length, k), whole(most, length, k))
        self._trees = Trees(
            whole(most, width), whole(most, width), whole(most, width), real(most, width), whole(most, width).bool()
        )
        self._positions_bn, self._choices_bn = whole(most, width), whole(most, width)
        self._walks = Walks(whole(most, depths), whole(most))
        self._done = Commit(
            whole(most, depths).int(), whole(most).int(), whole(most, width), whole(most), whole(most),
            whole(most, depths), whole(most, depths), whole(most, depths), whole(most, depths),
        )  # fmt: skip
        self._steps = {"propose": self._propose, "grow": self._grow, "settle": self._settle}
        self._sizes: list[int] = []
        self._replays: dict[tuple[str, int], Run] = {}
        self._requests = 0

    def capture(self, sizes: Sequence[int], captured: Callable[[Run], Run]) -> None:
        """Have every step captured for these numbers of requests, the largest first, as SGLang does."""
        self._sizes = sorted(sizes)
        for size in reversed(self._sizes):
            for name, step in self._steps.items():
                self._replays[name, size] = captured(partial(step, size))

    def begin(self, roots_b: Tensor, lengths_b: Tensor, slots_bn: Tensor) -> None:
        """A round of these requests: their roots, committed lengths and the slots of their trees' rows."""
        requests = self._requests = len(roots_b)
        for kept, given in zip(
            (self._roots_b, self._lengths_b, self._slots_bn), (roots_b, lengths_b, slots_bn), strict=True
        ):
            kept[:requests].copy_(given)
        self._lengths_b[requests : self._size].fill_(1)
        self._slots_bn[requests : self._size].zero_()

    def propose(self, hidden_blh: Tensor) -> Candidates:
        """Every position's best tokens, from the drafter's hidden states of the positions after the roots."""
        self._hidden_blh[: self._requests].copy_(hidden_blh)
        self._run("propose")
        return Candidates(*self._first(self._found, self._requests))

    def grow(self) -> tuple[Trees, Tensor]:
        """The trees and their rows' positions; `mask` has been written."""
        self._run("grow")
        return Trees(*self._first(self._trees, self._requests)), self._positions_bn[: self._requests]

    def settle(self, logits_rv: Tensor) -> tuple[Walks, Commit]:
        """What is committed, from the target's logits of every row; keys and values have been moved."""
        torch.argmax(logits_rv, dim=-1, out=self.choices_bn.view(-1))
        self._run("settle")
        return Walks(*self._first(self._walks, self._requests)), Commit(*self._first(self._done, self._requests))

    @property
    def choices_bn(self) -> Tensor:
        """What the target chose after each row, once it is settled."""
        return self._choices_bn[: self._requests]

    @property
    def _size(self) -> int:
        """The number of requests that steps run for: what was captured and has room for the batch, or just that."""
        place = bisect_left(self._sizes, self._requests)
        return self._sizes[place] if place < len(self._sizes) else self._requests

    def _run(self, name: str) -> None:
        replay = self._replays.get((name, self._size))
        if replay is None:
            self._steps[name](self._size)
        else:
            replay()

    def _propose(self, size: int) -> None:
        with torch.no_grad():
            logits_rv = self._head(self._hidden_blh[:size].flatten(0, 1))
        self._keep(self._found, candidates(logits_rv, size, self._told.budget, self._head.vocabulary))

    def _grow(self, size: int) -> None:
        found, lengths_b = Candidates(*self._first(self._found, size)), self._lengths_b[:size]
        trees = build(found, self._roots_b[:size], self._told.budget, chain_seed=self._told.chain_seed)
        self._mask.fill(visibility(trees.parents_bn, self._told.depth), lengths_b)
        self._keep(self._trees, trees)
        self._positions_bn[:size].copy_(positions(trees, lengths_b))

    def _settle(self, size: int) -> None:
        trees, choices_bn = Trees(*self._first(self._trees, size)), self._choices_bn[:size]
        walks = walk(trees, choices_bn, self._told.depth)
        done = commit(walks, choices_bn, self._lengths_b[:size], self._slots_bn[:size])
        sources, targets = done.sources_bd.flatten(), done.targets_bd.flatten()
        for part in self._memory:
            part.index_copy_(0, targets, part.index_select(0, sources))
        self._keep(self._walks, walks)
        self._keep(self._done, done)

    @staticmethod
    def _first(kept: Any, requests: int) -> list[Tensor]:
        return [part[:requests] for part in kept]

    @staticmethod
    def _keep(kept: Any, made: Any) -> None:
        for part, new in zip(kept, made, strict=True):
            part[: len(new)].copy_(new)
