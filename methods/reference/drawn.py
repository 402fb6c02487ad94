"""Which rounds an oracle looks at, and which nodes of their trees: drawn from the request's seed, so that every engine
looks at the same rounds of the same text."""

from __future__ import annotations

import random

from methods.base import Request, TreeDump


def drawn(request: Request, round_index: int, rate: float, tree: TreeDump, paths: int) -> list[int] | None:
    """The rows of a round's tree to look at, the root first; None where the round is not among the share `rate`.

    They are those of the accepted path and of the paths to some random leaves, `paths` of them at most.
    """
    chance = random.Random(f"{request.sampling.seed}:{request.prompt_id}:{request.turn}:{round_index}")
    if chance.random() >= rate:
        return None
    leaves = sorted(set(range(len(tree.tokens))) - set(tree.parents[1:]))
    rows = {0}
    for row in (tree.path[-1], *chance.sample(leaves, min(paths, len(leaves)))):
        while row not in rows:
            rows.add(row)
            row = tree.parents[row]
    return sorted(rows)
