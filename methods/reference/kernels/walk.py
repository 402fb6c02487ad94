"""The accepted path in Triton: one program goes from the root to the child that the target chose, and on from there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from methods.reference.kernels.launch import chain, ready
from methods.reference.tree import Tree, Walk


def walk(tree: Tree, choices_n: Tensor, depth_limit: int) -> Walk:
    """Follow the target's choices from the root: `tree.walk` in one launch, without a visibility matrix.

    Args:
        choices_n: the target's own next token after each row, int64 [n].
        depth_limit: the deepest a node can be; `path_d` has depth_limit + 1 entries.
    """
    n, device = len(choices_n), choices_n.device
    path_d = torch.empty(depth_limit + 2, dtype=torch.int64, device=device)  # and at the end `accepted`
    size = triton.next_power_of_2(max(n, depth_limit + 2))
    _walk[(1,)](
        tree.tokens_n, tree.parents_n, tree.valid_n.view(torch.uint8), choices_n, path_d, n, depth_limit,
        SIZE=size, **chain(device), num_warps=max(1, min(8, size // 128)),
    )  # fmt: skip
    return Walk(path_d[:-1], path_d[-1])


@triton.jit(do_not_specialize=["n", "depth_limit"])
def _walk(tokens, parents, valid, choices, path, n, depth_limit, SIZE: tl.constexpr, CHAIN: tl.constexpr):
    ready(CHAIN)
    row = tl.arange(0, SIZE)
    token = tl.load(tokens + row, mask=row < n, other=0)
    parent = tl.load(parents + row, mask=row < n, other=-1).to(tl.int32)
    alive = (tl.load(valid + row, mask=row < n, other=0) != 0) & (row > 0)
    tl.store(path + row, tl.zeros([SIZE], tl.int64), mask=row <= depth_limit)
    tl.debug_barrier()
    at, depth, accepted = 0, 0, 0
    while depth < depth_limit:
        found = alive & (parent == at) & (token == tl.load(choices + at))
        at = tl.max(tl.where(found, row, -1), 0)
        depth += 1
        if at >= 0:
            accepted = depth
            tl.store(path + depth, at)
        else:
            depth = depth_limit
    tl.store(path + depth_limit + 1, accepted)
