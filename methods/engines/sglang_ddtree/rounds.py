"""The rounds' figures, one JSON object a finished request and line, as this project's records name them.

Counts stay on the device until a request ends: a round only keeps references to what it computed anyway. A line has
`request`, `accepted` (drafted tokens each round accepted, whole even where the output ends inside one), `drafted`
(nodes of its tree), `depths` (how many rounds accepted 0, 1, … tokens), and, where asked for, `chains` (the drafter's
first choices of each round) and `trees` (each with `root_at`, `tokens`, `parents`, `depths`, `path` and `bonus`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from methods.engines.sglang_ddtree.commit import Commit, Walks
from methods.engines.sglang_ddtree.settings import Settings
from methods.engines.sglang_ddtree.trees import Trees


class _Kept(NamedTuple):
    """One round of one request: its place in that round's batch, and the batch's tensors."""

    request: int
    trees: Trees
    walks: Walks
    commit: Commit
    chain_bl: Tensor | None


@dataclass
class RoundLog:
    """Keeps every running request's rounds and writes them when it ends."""

    settings: Settings
    _running: dict[str, list[_Kept]] = field(default_factory=dict)

    def add(
        self, requests: Sequence[str], trees: Trees, walks: Walks, commit: Commit, chain_bl: Tensor | None = None
    ) -> None:
        """A round of these requests, in the batch's order. `chain_bl` holds the drafter's first choices."""
        for index, request in enumerate(requests):
            self._running.setdefault(request, []).append(_Kept(index, trees, walks, commit, chain_bl))

    def finish(self, request: str) -> dict[str, Any] | None:
        """Write a request that has ended, and return its line; None where it had no round."""
        kept = self._running.pop(request, None)
        if kept is None:
            return None
        line = self._line(request, kept)
        if self.settings.rounds is not None:
            with Path(self.settings.rounds).open("a") as file:
                file.write(json.dumps(line) + "\n")
        return line

    def _line(self, request: str, kept: Sequence[_Kept]) -> dict[str, Any]:
        accepted = [int(one.walks.accepted_b[one.request]) for one in kept]
        line: dict[str, Any] = {
            "request": request,
            "accepted": accepted,
            "drafted": [int(one.trees.valid_bn[one.request].sum()) - 1 for one in kept],
            "depths": [accepted.count(depth) for depth in range(self.settings.depth + 1)],
        }
        if self.settings.chains:
            line["chains"] = [[] if one.chain_bl is None else one.chain_bl[one.request].tolist() for one in kept]
        if self.settings.trees:
            line["trees"] = [_tree(one) for one in kept]
        return line


def _tree(one: _Kept) -> dict[str, Any]:
    tree, accepted = one.trees.of(one.request), int(one.walks.accepted_b[one.request])
    rows = int(tree.valid_n.sum())
    return {
        "root_at": int(one.commit.positions_bd[one.request, 0]),
        "tokens": tree.tokens_n[:rows].tolist(),
        "parents": tree.parents_n[:rows].tolist(),
        "depths": tree.depths_n[:rows].tolist(),
        "path": one.walks.path_bd[one.request, : accepted + 1].tolist(),
        "bonus": int(one.commit.bonus_b[one.request]),
    }
