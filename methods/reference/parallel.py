"""Tensor parallelism: the group of ranks, and what each rank holds of a vocabulary.

A `Group` offers the few collectives the model needs; a group of one does nothing. The vocabulary is padded to
16 chunks of equal size and a rank holds whole chunks, so that sums over chunks have the same parts, combined in
the same order, whatever the number of ranks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

CHUNKS = 16


@dataclass(frozen=True)
class Group:
    """The ranks that share one model. `size` 1 needs no process group."""

    rank: int = 0
    size: int = 1

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def max(self, tensor: Tensor) -> Tensor:
        """The largest over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        """All ranks' tensors, concatenated along `dim` in the order of ranks."""
        if self.size == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts, dim=dim)

    def share(self, length: int) -> slice:
        """This rank's equal part of `length`."""
        part = length // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary of `size` tokens, padded to `padded` and shared out over a group."""

    size: int
    group: Group

    @property
    def padded(self) -> int:
        return up(self.size, CHUNKS)

    @property
    def rows(self) -> slice:
        """The token ids this rank holds, padding included."""
        return self.group.share(self.padded)

    @property
    def chunks(self) -> int:
        """Chunks on this rank."""
        return CHUNKS // self.group.size

    def ids(self, device: torch.device) -> Tensor:
        """The token ids this rank holds, int64 [padded / tp]."""
        return torch.arange(self.rows.start, self.rows.stop, device=device)


def join(rank: int, size: int, port: int, device: torch.device, timeout_s: float) -> Group:
    """Enter the process group (gloo on CPU, NCCL on GPUs) on this host."""
    if size == 1:
        return Group()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    return Group(rank, size)


def leave(group: Group) -> None:
    """Leave the group together: nobody closes a connection another still reads from."""
    if not dist.is_initialized():
        return
    try:
        group.barrier()
    finally:
        dist.destroy_process_group()


def use_threads(size: int) -> None:
    """Share the host's cores out among the ranks, or take fewer threads where OMP_NUM_THREADS asks for that.

    Must run before the first tensor operation.
    """
    share = max(1, (os.cpu_count() or 1) // size)
    asked = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(min(share, int(asked)) if asked.isdigit() and int(asked) else share)


def up(count: int, step: int) -> int:
    """`count` rounded up to a multiple of `step`."""
    return -(-count // step) * step
