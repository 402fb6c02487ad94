"""What is told of a round, to the requests that ask for it: the others pay nothing.

A request asks with `custom_params={"draft_tree": [...]}` among its sampling parameters; the list may name `stages`,
`chain`, `tree` and `choices`. The answer's `meta_info` then has `draft_tree`: an entry for each output token, null but
for the first token of each round, which has the round's figures (SGLang cuts such lists as it cuts the tokens they
stand beside, so that a streamed chunk has its own rounds). The same figures, with `request`, are a line of the file
`Settings.rounds`, since SGLang's OpenAI endpoints leave `meta_info` out. A round's figures are

- `root_at`: the root's position; `drafted`: nodes of its tree, and `depths` of depth 1, 2, …;
- `accepted`: drafted tokens it accepted, and `emitted` with the bonus, both whole even where the output ends inside;
- `checksum`: of all the request's trees so far (`methods.reference.tree.checksum`), which the ranks compare;
- `stages`: seconds of draft, build, verify and commit, of the whole batch;
- `chain`: the drafter's first choices, by which the linear shadow is told;
- `tree`: `tokens`, `parents`, `depths` and own `log_probs` of its rows, the root first, accepted `path` and `bonus`;
- `choices`: what the target chose after each of these rows, the rejected ones too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from methods.engines.sglang_ddtree.commit import Commit, Walks
from methods.engines.sglang_ddtree.settings import CHAIN, CHOICES, KEY, STAGES, TREE, Settings
from methods.engines.sglang_ddtree.trees import Trees
from methods.reference.clock import Clock, Mark
from methods.reference.parallel import Group
from methods.reference.tree import Candidates, checksum

LOWEST = -1e308  # JSON has no infinity


class Sampling(Protocol):
    """What is read of a request's sampling parameters."""

    custom_params: dict[str, Any] | None


class Request(Protocol):
    """What is read of SGLang's request, and, in `customized_info`, what is told with its answer."""

    rid: str
    output_ids: Sequence[int]
    sampling_params: Sampling
    customized_info: dict[str, list[Any]] | None


def asked(request: Request) -> Sequence[str] | None:
    """What a request wants to be told beside the counts; None: not even those."""
    return (request.sampling_params.custom_params or {}).get(KEY)


class RoundLog:
    """Tells each round of one rank's worker, which marks where its stages end."""

    def __init__(self, settings: Settings, device: torch.device, group: Group | None = None) -> None:
        self._settings, self._device, self._group = settings, device, group or Group()
        self._asking: list[tuple[int, Request, Sequence[str]]] = []  # with their places in the batch
        self._clock: Clock | None = None
        self._marks: list[Mark] = []

    def expect(self, requests: Sequence[Request]) -> None:
        """These requests' prompts are read; the token that this gives is no round's."""
        for request in requests:
            if asked(request) is not None and request.customized_info is None:
                request.customized_info = {KEY: [None]}

    def begin(self, requests: Sequence[Request]) -> None:
        """A round of these requests begins."""
        wanted = [(index, request, asked(request)) for index, request in enumerate(requests)]
        self._asking = [(index, request, words) for index, request, words in wanted if words is not None]
        self._clock = Clock(self._device) if any(STAGES in words for _, _, words in self._asking) else None
        self._marks = []
        self.mark()

    def mark(self) -> None:
        """The round begins, or the next of its stages has ended."""
        if self._clock:
            self._marks.append(self._clock.mark())

    def end(self, trees: Trees, walks: Walks, commit: Commit, found: Candidates, choices_bn: Tensor) -> None:
        """Tell the round to those who asked. `choices_bn`: the target's own next token after each row."""
        if not self._asking:
            return
        clock, lines = self._clock, []
        seconds = [clock.between(*pair) for pair in pairwise(self._marks)] if clock else []
        for index, request, words in self._asking:
            told = self._told(request)
            figures = _figures(index, trees, walks, commit) | {"checksum": self._checksum(index, told, trees)}
            if STAGES in words:
                figures[STAGES] = seconds
            if CHAIN in words:
                figures[CHAIN] = found.ids_lk[index, :, 0].tolist()
            if TREE in words:
                figures[TREE] = _tree(index, trees, walks, commit)
            if CHOICES in words:
                figures[CHOICES] = choices_bn[index][trees.valid_bn[index]].tolist()
            told += [figures, *[None] * figures["accepted"]]
            lines.append(json.dumps({"request": request.rid, **figures}) + "\n")
        if self._settings.rounds is not None and self._group.rank == 0:
            with Path(self._settings.rounds).open("a") as file:
                file.writelines(lines)

    @staticmethod
    def _told(request: Request) -> list[Any]:
        """What was told of a request so far, an entry for each output token."""
        info = request.customized_info = request.customized_info or {}
        told = info.setdefault(KEY, [])
        told += [None] * (len(request.output_ids) - len(told))
        return told

    def _checksum(self, index: int, told: Sequence[Any], trees: Trees) -> int:
        """The running checksum of a request's trees, compared over the ranks."""
        before = next((figures["checksum"] for figures in reversed(told) if figures), 0)
        mine = checksum(trees.of(index), torch.tensor(before, device=trees.tokens_bn.device))
        if len(seen := set(self._group.gather(mine[None], dim=0).tolist())) > 1:
            raise AssertionError(f"the ranks verified different trees: checksums {sorted(seen)}")
        return int(mine)


def _figures(index: int, trees: Trees, walks: Walks, commit: Commit) -> dict[str, Any]:
    valid_n, accepted = trees.valid_bn[index], int(walks.accepted_b[index])
    return {
        "root_at": int(commit.positions_bd[index, 0]),
        "drafted": int(valid_n.sum()) - 1,
        "depths": torch.bincount(trees.depths_bn[index][valid_n])[1:].tolist(),
        "accepted": accepted,
        "emitted": accepted + 1,
    }


def _tree(index: int, trees: Trees, walks: Walks, commit: Commit) -> dict[str, Any]:
    tree, accepted = trees.of(index), int(walks.accepted_b[index])
    own_n = torch.where(tree.scores_n.isinf(), tree.scores_n, tree.scores_n - tree.scores_n[tree.parents_n])
    rows: dict[str, Tensor] = {"tokens": tree.tokens_n, "parents": tree.parents_n, "depths": tree.depths_n}
    return {
        **{name: column[tree.valid_n].tolist() for name, column in rows.items()},
        "log_probs": [max(value, LOWEST) for value in own_n[tree.valid_n].tolist()],
        "path": walks.path_bd[index, : accepted + 1].tolist(),
        "bonus": int(commit.bonus_b[index]),
    }
