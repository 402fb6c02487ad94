"""The oracle of trees on SGLang: AR's server judges, once it is up, what a verify pass chose at every node.

Each path to a leaf is a text of its own, read by the plain target in one pass behind the text before it; the choice at
the leaf ends it, so that something is told of the leaf too. After every node the server tells the log-probs of its own
choice and of the verify pass's, which differ as their logits do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from methods.base import Generation, Inspect, Inspected, OracleCheck, Request, Unchecked
from methods.engines.sglang_client import forced, log_probs
from methods.reference.drawn import drawn

PATHS = 64  # leaves of a tree that are asked for, beside the accepted path's: each costs a pass over the whole text
TOGETHER = 16  # paths that one request to the server asks for, so that it answers in time


def left(done: Generation, request: Request, inspect: Inspect) -> Generation:
    """An answer whose every tree was told with its choices, less the trees that are not dumped and all nodes but those
    that the oracle looks at."""

    def one(index: int, seen: Inspected) -> Inspected:
        assert seen.tree and seen.unchecked
        rows = drawn(request, index, inspect.oracle_rate, seen.tree, PATHS)
        nodes = None if rows is None else _only(rows, seen.unchecked)
        return seen._replace(tree=seen.tree if inspect.dump_rounds else None, unchecked=nodes)

    return replace(done, inspected=tuple(one(*each) for each in enumerate(done.inspected or ())))


def _only(rows: Sequence[int], nodes: Unchecked) -> Unchecked:
    place = {row: index for index, row in enumerate(rows)}
    return Unchecked(
        nodes.root_at,
        tuple(nodes.tokens[row] for row in rows),
        tuple(place[nodes.parents[row]] for row in rows),
        tuple(nodes.choices[row] for row in rows),
    )


def questions(text: Sequence[int], nodes: Unchecked) -> Iterator[dict[str, Any]]:
    """What is asked of the server. `text`: the prompt and the output."""
    whole, before = paths(nodes), text[: nodes.root_at]
    for first in range(0, len(whole), TOGETHER):
        some = whole[first : first + TOGETHER]
        texts = [[*before, *(nodes.tokens[row] for row in path), nodes.choices[path[-1]]] for path in some]
        chosen = [[nodes.choices[row] for row in path] for path in some]
        yield {**forced(texts, nodes.root_at, 1), "token_ids_logprob": chosen}


def judged(nodes: Unchecked, answers: Sequence[dict[str, Any]], tolerance: float) -> OracleCheck:
    """What the answers say of the nodes."""
    gaps: dict[int, float] = {}
    for path, answer in zip(paths(nodes), answers, strict=True):
        told = answer["meta_info"]
        own, *more = (told[f"input_{name}"][1:] for name in ("token_logprobs", "top_logprobs", "token_ids_logprobs"))
        rows = log_probs(own, [[*best, *chosen] for best, chosen in zip(*more, strict=True)])
        for row, values in zip(path, rows, strict=True):
            gaps[row] = max(0.0, max(values.values()) - values[nodes.choices[row]])
    return OracleCheck(len(gaps), max(gaps.values()), sum(not gap <= tolerance for gap in gaps.values()))


def paths(nodes: Unchecked) -> list[list[int]]:
    """The rows from the root to each leaf."""
    to: list[list[int]] = [[0]]
    for row, parent in enumerate(nodes.parents[1:], start=1):
        to.append([*to[parent], row])
    return [to[row] for row in sorted(set(range(len(to))) - set(nodes.parents[1:]))]
