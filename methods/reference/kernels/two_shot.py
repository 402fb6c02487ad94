"""The sum over ranks of what is too large to be sent to every rank: each rank adds its share of the blocks.

Two shots through the others' memory, in one launch: every rank hands its part of a block to the block's owner, the
owner adds the parts in the order of ranks in float32 and hands the sum to all. What is sent is plain data; a flag
behind it, released and acquired at the scope of the system, says that it is there. A program's blocks are owned by the
ranks in turn, and program i waits for program i of the others alone.

The regions need no second slot. A rank writes its parts of the next launch when its own launch has ended; by then all
have told it that they have read the last one's. And it writes the next sums after all have begun the next launch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from methods.reference.kernels.launch import ready

PROGRAMS = 129  # odd: the next block of a program has another owner
ROOM = 3 * 2**23  # bytes of a tensor that is summed
FLAGS = tl.constexpr(16)  # of a program and a shot: as many as there may be ranks


def words() -> int:
    """The memory needed, in words of 64 bits: flags, parts, sums."""
    return PROGRAMS * 2 * int(FLAGS.value) + 2 * ROOM // 8


def fits(blocks: int, h: int, itemsize: int, ranks: int) -> bool:
    """Whether so many blocks of h elements find room."""
    return -(-blocks // ranks) * h * itemsize <= ROOM // ranks


@triton.jit
def way(inboxes, rank):
    """A rank's inbox."""
    return tl.multiple_of(tl.load(inboxes + rank).to(tl.pointer_type(tl.int64)), 16)


@triton.jit
def inside_of(at, col, size, H: tl.constexpr, EVEN: tl.constexpr):
    """Which elements of a block there are. With `EVEN` blocks are whole: then loads and stores are wide."""
    inside = col < H
    if not EVEN:
        inside = inside & (at < size)
    return inside


@triton.jit
def _signal(inboxes, at, turn, RANK: tl.constexpr, RANKS: tl.constexpr):
    """Tell the others that what this program sent is there."""
    tl.debug_barrier()
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            flag = way(inboxes, rank) + at + RANK
            tl.atomic_xchg(flag, turn.to(tl.int64), sem="release", scope="sys")


@triton.jit
def _wait(inbox, at, turn, RANK: tl.constexpr, RANKS: tl.constexpr, LIMIT: tl.constexpr):
    """Wait for what the others send. A kernel that waits too long ends its process."""
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            seen = tl.atomic_add(inbox + at + rank, 0, sem="acquire", scope="sys")
            looks = 0
            while seen.to(tl.int32) != turn:
                seen = tl.atomic_add(inbox + at + rank, 0, sem="acquire", scope="sys")
                looks += 1
                if LIMIT > 0:  # noqa: SIM102 — a constant of the compiler and a value on the device
                    if looks == LIMIT:
                        tl.inline_asm_elementwise(
                            "trap; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
                        )
    tl.debug_barrier()


@triton.jit
def own_part(part, at, inside, size, PARTS: tl.constexpr):
    """This rank's part of the sum, before it is rounded."""
    value = tl.load(part + at, mask=inside, other=0.0).to(tl.float32)
    for i in tl.static_range(1, PARTS):
        value += tl.load(part + i * size + at, mask=inside, other=0.0)
    return value


@triton.jit(do_not_specialize=["eps", "blocks", "size"])
def two_shot(
    part, x, weight, total, normed, inbox, inboxes, turns, eps, blocks, size,
    H: tl.constexpr, WIDE: tl.constexpr, PARTS: tl.constexpr, ADD: tl.constexpr, NORM: tl.constexpr,
    EVEN: tl.constexpr, FIRST: tl.constexpr, ALL: tl.constexpr, BYTES: tl.constexpr, RANK: tl.constexpr,
    RANKS: tl.constexpr, LIMIT: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Blocks of H elements: x + the sum over ranks, and its norm, as `peers` has them.

    FIRST: where in the inbox the flags begin, in words; ALL: how many programs have some; BYTES: the room of a tensor.
    """
    dtype = total.dtype.element_ty
    SHARE: tl.constexpr = BYTES // RANKS // (dtype.primitive_bitwidth // 8)
    PARTS_AT: tl.constexpr = FIRST + ALL * 2 * FLAGS
    SUMS_AT: tl.constexpr = PARTS_AT + BYTES // 8
    program, programs, col = tl.program_id(0), tl.num_programs(0), tl.arange(0, WIDE)
    flags = FIRST + program * 2 * FLAGS
    ready(CHAIN)
    turn = tl.load(turns + program) + 1
    for block in range(program, blocks, programs):
        owner = block % RANKS
        if owner != RANK:
            at = block * H + col
            inside = inside_of(at, col, size, H, EVEN)
            to = (way(inboxes, owner) + PARTS_AT).to(tl.pointer_type(dtype))
            sent = own_part(part, at, inside, size, PARTS).to(dtype)
            tl.store(to + RANK * SHARE + block // RANKS * H + col, sent, mask=inside)
    _signal(inboxes, flags, turn, RANK, RANKS)
    _wait(inbox, flags, turn, RANK, RANKS, LIMIT)
    own_parts = (inbox + PARTS_AT).to(tl.pointer_type(dtype))
    for block in range(program, blocks, programs):
        if block % RANKS == RANK:
            at = block * H + col
            inside = inside_of(at, col, size, H, EVEN)
            value = tl.zeros([WIDE], tl.float32)
            for rank in tl.static_range(RANKS):
                if rank == RANK:
                    value += own_part(part, at, inside, size, PARTS).to(dtype).to(tl.float32)
                else:
                    given = own_parts + rank * SHARE + block // RANKS * H + col
                    value += tl.load(given, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
            for rank in tl.static_range(RANKS):
                to = (way(inboxes, rank) + SUMS_AT).to(tl.pointer_type(dtype))
                tl.store(to + at, value.to(dtype), mask=inside)
    _signal(inboxes, flags + FLAGS, turn, RANK, RANKS)
    _wait(inbox, flags + FLAGS, turn, RANK, RANKS, LIMIT)
    sums = (inbox + SUMS_AT).to(tl.pointer_type(dtype))
    for block in range(program, blocks, programs):
        at = block * H + col
        inside = inside_of(at, col, size, H, EVEN)
        value = tl.load(sums + at, mask=inside, other=0.0, cache_modifier=".cg")
        if ADD:
            value = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + value.to(tl.float32)).to(dtype)
        tl.store(total + at, value, mask=inside)
        if NORM:
            scale = tl.load(weight + col, mask=col < H, other=0.0).to(tl.float32)
            exact = value.to(tl.float32)
            spread = tl.rsqrt(tl.sum(exact * exact, 0) / H + eps)
            tl.store(normed + at, (exact * spread * scale).to(dtype), mask=inside)
    tl.store(turns + program, turn)
