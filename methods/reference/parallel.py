"""Tensor parallelism: the group of ranks, and what each rank holds of a vocabulary.

A `Group` offers the few collectives the model needs; a group of one does nothing. A decoding step exchanges a few
kilobytes many times, so what counts is the time of one exchange, and a slow baseline flatters speculation. On CPUs
ranks meet in shared memory: through gloo's sockets an exchange costs up to a millisecond, more than the step's
arithmetic. On GPUs they write into each other's memory (`kernels.peers`), and use NCCL for what is too large for that
and where a GPU does not reach the other's memory. All of it can be captured in a CUDA graph: no collective reads a
value on the host, and all ranks call the same ones in the same order.

The vocabulary is padded to 16 chunks of equal size and a rank holds whole chunks, so that sums over chunks have the
same parts, combined in the same order, whatever the number of ranks.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from methods.reference import kernels

if TYPE_CHECKING:
    from methods.reference.kernels.peers import Peers

CHUNKS = 16
MAILBOX_BYTES = 2**22  # a tensor larger than this goes through gloo
PATIENCE = 200  # looks at the other ranks before giving the core to one of them
LOOKS_PER_ROLL_CALL = 200_000
ABORT_S = 10.0  # for a rank alone to leave NCCL


class Mailbox:
    """Shared memory in which the ranks of one host lay a tensor each and read all of them.

    Two slots alternate: a rank writes its next tensor only after all have read the one before the last. That a flag
    is seen no earlier than what was written before it holds on x86 alone, so there is no mailbox elsewhere.
    """

    def __init__(self, size: int) -> None:
        self.data = torch.zeros(2, size, MAILBOX_BYTES, dtype=torch.uint8).share_memory_()
        self.turns = torch.zeros(size, dtype=torch.int64).share_memory_()

    @staticmethod
    def usable() -> bool:
        return platform.machine().lower() in ("x86_64", "amd64")


class Reader:
    """One rank's use of a mailbox. `others_live` tells whether it is worth waiting on."""

    def __init__(self, mailbox: Mailbox, rank: int, others_live: Callable[[], bool]) -> None:
        self._mailbox, self._rank, self._others_live = mailbox, rank, others_live
        self._turns, self._turn = mailbox.turns.numpy(), 0
        self._patience = PATIENCE if len(self._turns) <= (os.cpu_count() or 1) else 1

    def exchange(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, in the order of ranks; the views hold until the next exchange but one."""
        self._turn += 1
        slot, size = self._mailbox.data[self._turn % 2], tensor.nbytes
        slot[self._rank, :size].copy_(tensor.contiguous().view(-1).view(torch.uint8))
        self._turns[self._rank] = self._turn
        looks = 0
        while self._turns.min() < self._turn:
            looks += 1
            if looks % self._patience == 0:
                os.sched_yield()
            if looks % LOOKS_PER_ROLL_CALL == 0 and not self._others_live():
                raise RuntimeError("another rank is gone")
        return [part[:size].view(tensor.dtype).view(tensor.shape) for part in slot]


@dataclass(frozen=True)
class Group:
    """The ranks that share one model. `size` 1 needs no process group."""

    rank: int = 0
    size: int = 1
    reader: Reader | None = None
    peers: Peers | None = None

    @property
    def way(self) -> str:
        """By what the ranks exchange small tensors."""
        return "peer memory" if self.peers else "shared memory" if self.reader else dist.get_backend()

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks in their order, in place."""
        if self.size == 1:
            return tensor
        if self.peers and self.peers.fits(tensor):
            return self.peers.sum(tensor)
        parts = self._exchange(tensor) if self.reader or not tensor.is_floating_point() else []
        if not parts:
            dist.all_reduce(tensor)
            return tensor
        tensor.copy_(parts[0])
        for part in parts[1:]:
            tensor += part
        return tensor

    def add(self, x: Tensor, part: Tensor) -> Tensor:
        """x + the sum over ranks of what each adds."""
        return self.peers.add(x, part) if self.peers and self.peers.fits(part) else x + self.sum(part)

    def add_norm(self, x_nh: Tensor, part_nh: Tensor | None, weight_h: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """x + the sum over ranks, and the root-mean-square norm of that (`kernels.layers.add_norm`).

        Args:
            part_nh: what this rank adds; it may be in several parts where `takes_parts`. None: nothing is added.
        """
        from methods.reference.kernels import layers

        if self.size > 1 and part_nh is not None:
            if self.peers and self.peers.fits_rows(x_nh.shape[0], x_nh.shape[1], x_nh.dtype):
                return self.peers.add_norm(x_nh, part_nh, weight_h, eps)
            part_nh = self.sum(part_nh)
        return layers.add_norm(x_nh, part_nh, weight_h, eps)

    def takes_parts(self, n: int, h: int, dtype: torch.dtype) -> bool:
        """Whether `add_norm` to such rows takes what a rank adds in parts."""
        return self.size == 1 or bool(self.peers and self.peers.fits_rows(n, h, dtype))

    def max(self, tensor: Tensor) -> Tensor:
        """The largest over ranks; `tensor` may be overwritten."""
        if self.size == 1:
            return tensor
        if self.peers and self.peers.fits_exchange(tensor):
            return self.peers.gather(tensor).amax(dim=0)
        if parts := self._exchange(tensor):
            return torch.stack(parts).amax(dim=0)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        """All ranks' tensors, concatenated along `dim` in the order of ranks."""
        if self.size == 1:
            return tensor
        parts = self._exchange(tensor)
        if not parts:
            whole = torch.empty(self.size, *tensor.shape, dtype=tensor.dtype, device=tensor.device)
            dist.all_gather_into_tensor(whole.view(-1), tensor.contiguous().view(-1))
            parts = list(whole)
        return torch.cat(parts, dim=dim)

    def _exchange(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor through memory, or nothing where it does not fit or there is no such way."""
        if self.peers and self.peers.fits_exchange(tensor):
            return list(self.peers.gather(tensor))
        if self.reader is None or tensor.nbytes > MAILBOX_BYTES:
            return []
        return self.reader.exchange(tensor)

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


def join(
    rank: int, size: int, port: int, device: torch.device, timeout_s: float, reader: Reader | None = None
) -> Group:
    """Enter the process group (gloo on CPU, NCCL on GPUs) on this host; small tensors go through `reader` or, between
    GPUs, through each other's memory."""
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
    if device.type == "cuda" and kernels.usable(device):
        from methods.reference.kernels.peers import connect

        return Group(rank, size, reader, connect(rank, size, device))
    return Group(rank, size, reader)


def leave(group: Group, *, together: bool = True) -> None:
    """Leave the group: at a barrier, so that nobody closes a connection another still reads from; or alone, where
    the others will not come. CUDA graphs that hold collectives must be gone: NCCL waits for them."""
    if not dist.is_initialized():
        return
    if not together and dist.get_backend() == "nccl":  # what waits for the others on the device must not hold us
        abort = threading.Thread(target=_abort, daemon=True)
        abort.start()
        abort.join(ABORT_S)
        return
    try:
        if together:
            group.barrier()
    finally:
        dist.destroy_process_group()


def _abort() -> None:
    with suppress(Exception):
        dist.distributed_c10d._abort_process_group()


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
