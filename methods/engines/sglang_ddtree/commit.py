"""From the target's choices to what a round commits: the walk, and every index that SGLang's commit needs.

Static shapes; nothing is read on the host, and nothing brought from it. SGLang numbers the rows of a batch through
(`b · n + row`); −1 is its word for none.

Shape letters: b requests, n rows of a tree, d depths of a path (0 … depth limit).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from methods.engines.sglang_ddtree.trees import Trees


class Walks(NamedTuple):
    """The accepted paths. `path_bd[:, d]` is the row accepted at depth d, 0 beyond `accepted_b`."""

    path_bd: Tensor
    accepted_b: Tensor


class Commit(NamedTuple):
    """A round's outcome in SGLang's terms.

    `accept_index_bd`: int32, the accepted rows of the whole batch, −1 beyond.
    `accept_lens_b`: int32, drafted tokens accepted, and the bonus: the tokens that the round emits.
    `tokens_bn`: int64, those tokens at the front of each request's row (`next_token_ids` with stride n).
    `bonus_b`: int64, the last of them, the next root.
    `lengths_b`: the committed length after the round, in the lengths' own dtype.
    `sources_bd`, `targets_bd`: int64 slots: key and value of an accepted row go from its own slot to the slot of its
    depth. Beyond the path both are the target slot, so that moving all is moving the path; parents come before their
    children, so no source is a target of a smaller depth.
    `rows_bd`: int64, the same path as rows of the whole batch, the root's beyond it: what the drafter's context is
    taken from. `positions_bd` are the path's positions: consecutive, never the rows' own order.
    """

    accept_index_bd: Tensor
    accept_lens_b: Tensor
    tokens_bn: Tensor
    bonus_b: Tensor
    lengths_b: Tensor
    sources_bd: Tensor
    targets_bd: Tensor
    rows_bd: Tensor
    positions_bd: Tensor


def walk(trees: Trees, choices_bn: Tensor, depth_limit: int) -> Walks:
    """Follow the target's choices from each root while they are children of the row reached.

    Args:
        choices_bn: the target's own next token after each row, int64.

    A row is accepted when its token is what the target chose after its parent, and so for all its ancestors: pointer
    jumping asks them all in log₂(depth) steps.
    """
    requests, rows = choices_bn.shape
    accepted_bn = trees.valid_bn & (trees.tokens_bn == choices_bn.gather(1, trees.parents_bn))
    accepted_bn[:, :1].fill_(True)
    jump, reach = trees.parents_bn, 1
    while reach <= depth_limit:
        accepted_bn = accepted_bn & accepted_bn.gather(1, jump)
        jump, reach = jump.gather(1, jump), 2 * reach
    place_bn = trees.depths_bn.masked_fill(~accepted_bn, depth_limit + 1)  # siblings differ: one row a depth at most
    index_bn = torch.arange(rows, device=choices_bn.device).expand(requests, -1)
    path_bd = torch.zeros(requests, depth_limit + 2, dtype=torch.int64, device=choices_bn.device)
    return Walks(path_bd.scatter(1, place_bn, index_bn)[:, :-1], accepted_bn.sum(1) - 1)


def commit(walks: Walks, choices_bn: Tensor, lengths_b: Tensor, slots_bn: Tensor) -> Commit:
    """What a round commits.

    Args:
        lengths_b: committed lengths before the round: the roots' positions.
        slots_bn: the slots of each request's rows, as they were reserved for the verify pass.
    """
    path_bd, accepted_b = walks
    requests, rows = choices_bn.shape
    depths = path_bd.shape[1]
    depth_d = torch.arange(depths, device=path_bd.device)
    beyond_bd = depth_d > accepted_b[:, None]
    first_b1 = torch.arange(requests, device=path_bd.device)[:, None] * rows
    emitted_bd = choices_bn.gather(1, path_bd)
    lens_b = accepted_b + 1
    targets_bd = slots_bn[:, :depths].long()
    return Commit(
        accept_index_bd=(first_b1 + path_bd).masked_fill(beyond_bd, -1).to(torch.int32),
        accept_lens_b=lens_b.to(torch.int32),
        tokens_bn=torch.nn.functional.pad(emitted_bd.masked_fill(beyond_bd, 0), (0, rows - depths)),
        bonus_b=emitted_bd.gather(1, accepted_b[:, None])[:, 0],
        lengths_b=lengths_b + lens_b.to(lengths_b.dtype),
        sources_bd=torch.where(beyond_bd, targets_bd, slots_bn.gather(1, path_bd).long()),
        targets_bd=targets_bd,
        rows_bd=first_b1 + path_bd.masked_fill(beyond_bd, 0),
        positions_bd=lengths_b[:, None] + depth_d,
    )
