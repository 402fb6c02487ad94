"""Looking at rounds from outside: the sequential oracle, the linear shadow, the round dump.

The oracle judges a tree by the plainest means there is. It keeps a text of its own, read token by token into slots of
its own, which take the place of the decoder's while it works; from there it decodes the accepted path and some
root-to-leaf paths node by node, one row a pass. No mask, no tree, no commit of a tree is involved, so a node's choice
in the verify pass must be the oracle's or a near tie.

All of it waits for the device, round for round: nothing that is inspected is a headline time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from methods.base import Inspect, Inspected, OracleCheck, Request, TreeDump
from methods.reference import sampling
from methods.reference.drawn import drawn
from methods.reference.reading import read
from methods.reference.shadow import shadowed
from methods.reference.target import Target
from methods.reference.tree import Candidates, Tree, Walk

PATHS = 8  # random root-to-leaf paths the oracle follows, beside the accepted one


class Verified(NamedTuple):
    """A round after its verify pass and walk."""

    draft: Tree
    candidates: Candidates | None
    choices_n: Tensor
    walk: Walk


class Oracle:
    """The plain target, one token a pass, on a text of its own beside the decoder's."""

    def __init__(self, target: Target, request: Request, tolerance: float) -> None:
        self._target, self._request, self._tolerance = target, request, tolerance
        self._slots, self._states = torch.zeros_like(target.cache.data), target.snapshot()
        self._length = 0
        with self._own_text(keep=True):
            list(read(target, request.prompt_ids))
        self._length = len(request.prompt_ids)

    def extend(self, tokens: Sequence[int]) -> None:
        """More text, read token by token."""
        with self._own_text(keep=True):
            list(read(self._target, tokens, start=self._length, rows=1))
        self._length += len(tokens)

    def check(self, tree: TreeDump, choices: Sequence[int], rows: Sequence[int]) -> OracleCheck:
        """Decode the paths that some rows make. `choices`: what the verify pass chose after each row of the tree."""
        with self._own_text(keep=False):
            gaps = list(self._below(0, tree, choices, rows))
        return OracleCheck(len(gaps), max(gaps), sum(not gap <= self._tolerance for gap in gaps))

    def _below(self, row: int, tree: TreeDump, choices: Sequence[int], chosen: Sequence[int]) -> Iterator[float]:
        """The gaps of a row and of the chosen rows below it. The text before the row is its ancestors'."""
        target, position = self._target, self._length + tree.depths[row]
        (chunk,) = read(target, tree.tokens[row : row + 1], start=position, rows=1)
        place = torch.tensor([position + 1 - len(self._request.prompt_ids)], device=target.device)
        choice = torch.tensor([choices[row]], device=target.device)
        logits = target.logits(chunk.hidden_ch)
        yield float(sampling.gaps(logits, choice, place, self._request, target.vocabulary, self._tolerance))
        after = target.snapshot()
        for child in chosen:
            if child and tree.parents[child] == row:
                target.restore(after)
                yield from self._below(child, tree, choices, chosen)

    @contextmanager
    def _own_text(self, *, keep: bool) -> Iterator[None]:
        """The target with the oracle's text instead of the decoder's; what is read becomes text if it is to be kept."""
        target, slots = self._target, self._target.cache.data
        decoders, states = slots.clone(), target.snapshot()
        slots.copy_(self._slots)
        target.restore(self._states)
        try:
            yield
            if keep:
                self._slots.copy_(slots)
                self._states = target.snapshot()
        finally:
            slots.copy_(decoders)
            target.restore(states)


class Inspector:
    """Takes down what is asked of each round of one request."""

    def __init__(self, target: Target, request: Request, inspect: Inspect) -> None:
        self._request, self._inspect = request, inspect
        self._oracle = Oracle(target, request, inspect.tolerance) if inspect.oracle_rate else None
        self._root_at = len(request.prompt_ids)
        self._unread: list[int] = []  # text that the oracle has not read yet
        self._rounds: list[Inspected] = []
        self._chains: list[list[int]] = []  # the drafter's first choices, by round

    def look(self, verified: Verified) -> None:
        """Note a round down. Not for rounds after the request's end."""
        tree, choices = self._dump(verified), verified.choices_n.tolist()
        oracle = self._check(tree, choices) if self._oracle else None
        candidates = verified.candidates
        self._chains.append([] if candidates is None else candidates.ids_lk[:, 0].tolist())
        self._rounds.append(Inspected(len(tree.path) - 1, oracle, None, tree if self._inspect.dump_rounds else None))
        self._unread += [tree.tokens[row] for row in tree.path]
        self._root_at += len(tree.path)

    def finish(self, output: Sequence[int]) -> tuple[Inspected, ...]:
        """All rounds, once the output is whole."""
        if not self._inspect.shadow_linear:
            return tuple(self._rounds)
        return shadowed(self._rounds, self._chains, output)

    def _check(self, tree: TreeDump, choices: Sequence[int]) -> OracleCheck | None:
        assert self._oracle is not None
        rows = drawn(self._request, len(self._rounds), self._inspect.oracle_rate, tree, PATHS)
        if rows is None:
            return None
        self._oracle.extend(self._unread)
        self._unread = []
        return self._oracle.check(tree, choices, rows)

    def _dump(self, verified: Verified) -> TreeDump:
        draft, walk = verified.draft, verified.walk
        valid = draft.valid_n
        path = walk.path_d[: int(walk.accepted) + 1].tolist()
        own_n = torch.where(draft.scores_n.isinf(), draft.scores_n, draft.scores_n - draft.scores_n[draft.parents_n])
        return TreeDump(
            root_at=self._root_at,
            tokens=tuple(draft.tokens_n[valid].tolist()),
            parents=tuple(draft.parents_n[valid].tolist()),
            depths=tuple(draft.depths_n[valid].tolist()),
            log_probs=tuple(own_n[valid].tolist()),
            path=tuple(path),
            bonus=int(verified.choices_n[path[-1]]),
        )
