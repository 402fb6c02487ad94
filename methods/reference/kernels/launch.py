"""What kernels ask of the GPU before a launch, and launches that begin while the one before them ends.

In a graph of short kernels the gaps between them cost as much as small kernels themselves. Where the GPU can do that
(compute capability 9.0 on), a chained kernel is set up early, may read what no kernel of the round writes (weights),
and waits for all results before it before it reads or writes anything else. Elsewhere `CHAIN` is false and a launch
begins when the one before it has ended.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

CHAINED = True
ROOMY = 156 * 1024  # bytes of shared memory of one program, from which deeper pipelines fit
COMMON, RESERVED = 99 * 1024, 3 * 1024  # what any GPU has; what is left to barriers and to the system


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many programs run side by side; 1 where there is no GPU (Triton's interpreter)."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@functools.cache
def roomy(device: torch.device) -> bool:
    """Whether a program may have more shared memory than the 99 KiB of a consumer GPU."""
    return shared_memory(device) >= ROOMY


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program can have on this machine."""
    found = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return int(getattr(found, "shared_memory_per_block_optin", COMMON)) - RESERVED


@functools.cache
def _capable(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def chain(device: torch.device) -> dict[str, bool]:
    """Launch arguments of a kernel that has a `CHAIN` argument and calls `ready`."""
    return {"CHAIN": True, "launch_pdl": True} if CHAINED and _capable(device) else {"CHAIN": False}


@triton.jit
def ready(CHAIN: tl.constexpr):
    """Wait for all results of the launches before, and let the next one be set up."""
    if CHAIN:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
