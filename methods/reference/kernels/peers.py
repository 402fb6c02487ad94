"""Sums and exchanges over ranks through each other's memory, in one launch each.

A decoding step of a split model sums a few kilobytes after every block, 70 times and more: what counts is the time
until a word is there, not the bandwidth. So a rank writes its part straight into the memory of the others, which wait
for it in their own. Data and signal are one: every 32 bits travel in a 64-bit word whose other half is the number of
the turn, and a word of 64 bits arrives whole (NCCL's low-latency protocol). Nothing else orders the ranks: no barrier,
no fence.

Each program has a region of its own in every inbox and counts its turns in device memory, so a CUDA graph can be
replayed and launches of any size may follow each other. A region has two slots that alternate: a rank writes turn t
after it has the others' parts of turn t − 1, and these were sent by launches that began after turn t − 2 was read.
Program i waits for program i of the other ranks alone, and programs start in order, so a grid may be larger than the
GPU.

Parts are added in the order of ranks in float32, on every rank alike: all hold the same bits. What follows a block is
added in the same launch: the residual, and the next norm. Where many ranks or rows make it dear to send everything to
everyone, in words half of which is data, the sum takes `two_shot`.

Shape letters: n rows, h hidden size, p parts of a product that was split over its inner dimension.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import Tensor

from methods.reference.kernels import two_shot
from methods.reference.kernels.launch import chain, ready
from methods.reference.kernels.two_shot import inside_of, own_part, way

PROGRAMS = 1024  # regions, shared out over the ranks: what all receive grows with their number
CAPACITY = 4096  # words of a region's slot
WORDS = PROGRAMS * 2 * CAPACITY  # of all regions; what `two_shot` needs lies behind them
INBOX = WORDS + two_shot.words()
BLOCK = 1024  # words a program exchanges
SMALLEST = 256  # elements a program sums
DEAR = 1_600_000  # bytes that a link carries in the time which two more hops take
PATIENCE = 2**28  # looks into the own memory, some minutes, before a kernel gives its process up
LOW = tl.constexpr(0xFFFFFFFF)

_times_connected = 0


class Peers:
    """One rank's way into the memory of the others.

    Args:
        inbox: the own inbox, int64 [`INBOX`] of zeros, that the others write to.
        inboxes: the addresses of all ranks' inboxes, as this process sees them.
        owner: kept alive as long as the inbox is in use.
    """

    def __init__(self, rank: int, inbox: Tensor, inboxes: Sequence[int], owner: object = None) -> None:
        self._rank, self._size, self._inbox, self._owner = rank, len(inboxes), inbox, owner
        self._programs = PROGRAMS // self._size
        self._inboxes = torch.tensor(inboxes, dtype=torch.int64, device=inbox.device)
        self._turns = torch.zeros(self._programs, dtype=torch.int32, device=inbox.device)

    def fits(self, tensor: Tensor) -> bool:
        """Whether `sum` and `add` take a tensor."""
        summed = tensor.is_floating_point() and tensor.itemsize in (2, 4) and tensor.is_contiguous()
        return summed and self._fits(*self._blocks(tensor), tensor.itemsize)

    def fits_rows(self, n: int, h: int, dtype: torch.dtype) -> bool:
        """Whether `add_norm` takes rows of this shape and dtype."""
        return self._fits(n, h, dtype.itemsize)

    def _fits(self, blocks: int, h: int, itemsize: int) -> bool:
        return self._sent_to_all(blocks, h, itemsize) or two_shot.fits(blocks, h, itemsize, self._size)

    def _sent_to_all(self, blocks: int, h: int, itemsize: int) -> bool:
        """Whether blocks of h elements go to every rank at once: there is room, and not too much to send."""
        room = blocks <= self._programs and h % 2 == 0 and h * itemsize <= 4 * CAPACITY
        more = 2 * blocks * h * itemsize * (self._size - 1) ** 2 // self._size  # than in two shots
        return room and more <= DEAR

    def fits_exchange(self, tensor: Tensor) -> bool:
        """Whether `gather` takes a tensor."""
        return tensor.nbytes % 4 == 0 and triton.cdiv(tensor.nbytes // 4, BLOCK) <= self._programs

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place of the part."""
        self._sum_blocks(tensor, None, tensor)
        return tensor

    def add(self, x: Tensor, part: Tensor) -> Tensor:
        """x + the sum over ranks, rounded before it is added."""
        total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        self._sum_blocks(part, x.contiguous(), total)
        return total

    def add_norm(self, x_nh: Tensor, part_nh: Tensor, weight_h: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """`layers.add_norm` of the sum over ranks: x + that sum, and its root-mean-square norm.

        Args:
            part_nh: in x's dtype; or float32 parts [p, n, h] of it, summed in order and rounded before they are sent.
        """
        n, h = x_nh.shape
        total_nh, normed_nh = torch.empty_like(x_nh), torch.empty_like(x_nh)
        parts = len(part_nh) if part_nh.dim() == 3 else 1
        self._launch(n, h, part_nh, x_nh, weight_h, total_nh, normed_nh, eps, parts)
        return total_nh, normed_nh

    def gather(self, tensor: Tensor) -> Tensor:
        """All ranks' tensors, [ranks, …]."""
        words = tensor.contiguous().view(-1).view(torch.int32)
        out = torch.empty(self._size, *tensor.shape, dtype=tensor.dtype, device=tensor.device)
        _gather[(triton.cdiv(len(words), BLOCK),)](
            words, out.view(-1).view(torch.int32), self._inbox, self._inboxes, self._turns, len(words),
            BLOCK=BLOCK, SLOT=CAPACITY, num_warps=4, **self._place,
        )  # fmt: skip
        return out

    def _blocks(self, tensor: Tensor) -> tuple[int, int]:
        """How many blocks a tensor is summed in, and of how many elements."""
        share = triton.next_power_of_2(triton.cdiv(tensor.numel(), 128))
        block = max(SMALLEST, min(share, 4 * CAPACITY // tensor.itemsize))
        return triton.cdiv(tensor.numel(), block), block

    def _sum_blocks(self, part: Tensor, x: Tensor | None, total: Tensor) -> None:
        blocks, block = self._blocks(part)
        self._launch(blocks, block, part.contiguous(), x, None, total, None, 0.0, 1)

    def _launch(
        self, blocks: int, h: int, part: Tensor, x: Tensor | None, weight: Tensor | None, total: Tensor,
        normed: Tensor | None, eps: float, parts: int,
    ) -> None:  # fmt: skip
        whole = {"PARTS": parts, "ADD": x is not None, "NORM": normed is not None, "H": h, **self._place}
        whole["EVEN"] = total.numel() == blocks * h
        tensors = (
            part, total if x is None else x, total if weight is None else weight, total,
            total if normed is None else normed, self._inbox, self._inboxes, self._turns,
        )  # fmt: skip
        if self._sent_to_all(blocks, h, total.itemsize):
            wide = triton.next_power_of_2(h // 2)
            warps = max(1, min(8, wide // 256))
            _sum[(blocks,)](*tensors, eps, total.numel(), WIDE=wide, SLOT=CAPACITY, num_warps=warps, **whole)
        else:
            wide, programs = triton.next_power_of_2(h), min(blocks, two_shot.PROGRAMS)
            two_shot.two_shot[(programs,)](
                *tensors, eps, blocks, total.numel(), WIDE=wide, FIRST=WORDS, ALL=two_shot.PROGRAMS,
                BYTES=two_shot.ROOM, num_warps=max(1, min(8, wide // 512)), **whole,
            )  # fmt: skip

    @property
    def _place(self) -> dict[str, int | bool]:
        device = self._inbox.device
        limit = PATIENCE if device.type == "cuda" else 0
        return {"RANK": self._rank, "RANKS": self._size, "LIMIT": limit, **chain(device)}


def connect(rank: int, size: int, device: torch.device) -> Peers | None:
    """Open the ranks' memory to each other; all ranks call it, and all get a way or none does.

    None where a GPU does not reach another's memory, and where this process was connected before and another was not:
    torch numbers such meetings by process, so they would miss each other.
    """
    global _times_connected
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # nothing here uses it
    import torch.distributed._symmetric_memory as symmetric

    others = [other for other in range(size) if other != rank]
    reach = all(torch.cuda.can_device_access_peer(device.index or 0, other) for other in others)
    if not _agreed(reach, _times_connected, size, device):
        return None
    _times_connected += 1
    inbox, inboxes, handle = None, [0] * size, None
    world = dist.distributed_c10d._get_default_group()
    try:
        inbox = symmetric.empty(INBOX, dtype=torch.int64, device=device)
        handle = symmetric.rendezvous(inbox, world)
        within = inbox.data_ptr() - handle.buffer_ptrs[rank]
        inboxes = [address + within for address in handle.buffer_ptrs]
        inbox.zero_()
    except RuntimeError as error:
        print(f"rank {rank} has no memory in common with the others: {error}", flush=True)
    if not _agreed(handle is not None, 0, size, device) or inbox is None:  # and every inbox is empty
        return None
    return Peers(rank, inbox, inboxes, handle)


def _agreed(able: bool, times: int, size: int, device: torch.device) -> bool:
    """Whether all ranks are able, and have come as often."""
    mine = torch.tensor([able, times], device=device)
    seen = torch.empty(size * 2, dtype=mine.dtype, device=device)
    dist.all_gather_into_tensor(seen, mine)
    found: list[list[int]] = seen.view(size, 2).tolist()
    return all(row == [1, times] for row in found)


@triton.jit
def _send(to, word, turn, inside):
    """Write words, each with the turn in its upper half."""
    tl.store(to, (word.to(tl.int64) & LOW) | (turn.to(tl.int64) << 32), mask=inside)


@triton.jit
def _receive(at, turn, inside, LIMIT: tl.constexpr):
    """The words that carry this turn, once all are there. A kernel that waits too long ends its process."""
    found = tl.load(at, mask=inside, other=0, volatile=True)
    missing = tl.max((inside & ((found >> 32).to(tl.int32) != turn)).to(tl.int32), 0)
    looks = 0
    while missing != 0:
        found = tl.load(at, mask=inside, other=0, volatile=True)
        missing = tl.max((inside & ((found >> 32).to(tl.int32) != turn)).to(tl.int32), 0)
        looks += 1
        if LIMIT > 0:  # noqa: SIM102 — a constant of the compiler and a value on the device
            if looks == LIMIT:
                tl.inline_asm_elementwise("trap; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    return found.to(tl.int32)


@triton.jit
def _bits(value):
    """A value's bits in the lower part of an int32."""
    if value.dtype.primitive_bitwidth == 16:
        bits = value.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    else:
        bits = value.to(tl.int32, bitcast=True)
    return bits


@triton.jit(do_not_specialize=["eps", "size"])
def _sum(
    part, x, weight, total, normed, inbox, inboxes, turns, eps, size,
    H: tl.constexpr, WIDE: tl.constexpr, PARTS: tl.constexpr, ADD: tl.constexpr, NORM: tl.constexpr,
    EVEN: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, SLOT: tl.constexpr, LIMIT: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    """H elements, in two halves so that two of 16 bits share a word without changing lanes."""
    dtype = total.dtype.element_ty
    PAIRED: tl.constexpr = dtype.primitive_bitwidth == 16
    HALF: tl.constexpr = H // 2
    program, col = tl.program_id(0), tl.arange(0, WIDE)
    left = program * H + col
    right = left + HALF
    in_left, in_right = inside_of(left, col, size, HALF, EVEN), inside_of(right, col, size, HALF, EVEN)
    if NORM:
        scale_left = tl.load(weight + col, mask=col < HALF, other=0.0).to(tl.float32)
        scale_right = tl.load(weight + HALF + col, mask=col < HALF, other=0.0).to(tl.float32)
    ready(CHAIN)
    turn = tl.load(turns + program) + 1
    region = (program * 2 + (turn & 1)) * (RANKS * SLOT) + col
    own_left = own_part(part, left, in_left, size, PARTS).to(dtype)
    own_right = own_part(part, right, in_right, size, PARTS).to(dtype)
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            to = way(inboxes, rank) + region + RANK * SLOT
            if PAIRED:
                _send(to, _bits(own_left) | (_bits(own_right) << 16), turn, in_left)
            else:
                _send(to, _bits(own_left), turn, in_left)
                _send(to + HALF, _bits(own_right), turn, in_right)
    if ADD:
        x_left = tl.load(x + left, mask=in_left, other=0.0).to(tl.float32)
        x_right = tl.load(x + right, mask=in_right, other=0.0).to(tl.float32)
    sum_left, sum_right = tl.zeros([WIDE], tl.float32), tl.zeros([WIDE], tl.float32)
    for rank in tl.static_range(RANKS):
        if rank == RANK:
            sum_left += own_left.to(tl.float32)
            sum_right += own_right.to(tl.float32)
        else:
            at = inbox + region + rank * SLOT
            if PAIRED:
                word = _receive(at, turn, in_left, LIMIT)
                sum_left += word.to(tl.int16).to(dtype, bitcast=True).to(tl.float32)
                sum_right += (word >> 16).to(tl.int16).to(dtype, bitcast=True).to(tl.float32)
            else:
                sum_left += _receive(at, turn, in_left, LIMIT).to(dtype, bitcast=True)
                sum_right += _receive(at + HALF, turn, in_right, LIMIT).to(dtype, bitcast=True)
    sum_left, sum_right = sum_left.to(dtype), sum_right.to(dtype)
    if ADD:
        sum_left = (x_left + sum_left.to(tl.float32)).to(dtype)
        sum_right = (x_right + sum_right.to(tl.float32)).to(dtype)
    tl.store(total + left, sum_left, mask=in_left)
    tl.store(total + right, sum_right, mask=in_right)
    if NORM:
        value_left, value_right = sum_left.to(tl.float32), sum_right.to(tl.float32)
        squares = tl.where(in_left, value_left * value_left, 0.0) + tl.where(in_right, value_right * value_right, 0.0)
        spread = tl.rsqrt(tl.sum(squares, 0) / H + eps)
        tl.store(normed + left, (value_left * spread * scale_left).to(dtype), mask=in_left)
        tl.store(normed + right, (value_right * spread * scale_right).to(dtype), mask=in_right)
    tl.store(turns + program, turn)


@triton.jit(do_not_specialize=["count"])
def _gather(
    words, out, inbox, inboxes, turns, count,
    BLOCK: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, SLOT: tl.constexpr, LIMIT: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    program, col = tl.program_id(0), tl.arange(0, BLOCK)
    at = program * BLOCK + col
    inside = at < count
    ready(CHAIN)
    turn = tl.load(turns + program) + 1
    region = (program * 2 + (turn & 1)) * (RANKS * SLOT) + col
    own = tl.load(words + at, mask=inside, other=0)
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            to = way(inboxes, rank) + region + RANK * SLOT
            _send(to, own, turn, inside)
    for rank in tl.static_range(RANKS):
        if rank == RANK:
            tl.store(out + rank * count + at, own, mask=inside)
        else:
            word = _receive(inbox + region + rank * SLOT, turn, inside, LIMIT)
            tl.store(out + rank * count + at, word, mask=inside)
    tl.store(turns + program, turn)
