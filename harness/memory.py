"""Whether an arm fits: what its engine says a rank needs against what is free, before any weight is loaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from harness.gpu import GpuWatch
from harness.sitting import Event, EventSender
from methods.base import Engine, EngineSpec, Method

CGROUP = Path("/sys/fs/cgroup")
GIB = 2**30


def unfit(
    engine_class: type[Engine], spec: EngineSpec, methods: Sequence[Method], free_bytes: int | None
) -> dict[str, str]:
    """The arms that cannot fit, with the reason. `free_bytes` is what a rank may take, None where it is not known."""
    if free_bytes is None:
        return {}
    needs = {method.arm: engine_class.memory_bytes(spec, method) for method in methods}
    return {
        arm: f"needs {need / GIB:.3g} GiB a rank, {free_bytes / GIB:.3g} GiB are free"
        for arm, need in needs.items()
        if need > free_bytes
    }


def fits(
    engine_class: type[Engine],
    spec: EngineSpec,
    methods: Sequence[Method],
    free_bytes: int | None,
    events: EventSender,
) -> bool:
    """Whether every arm fits; those that do not are told, so that the parent marks them and goes on without them."""
    lacking = unfit(engine_class, spec, methods, free_bytes)
    for arm, reason in lacking.items():
        print(f"{arm} {reason}")
        events.send(Event("unfit", arm, text=reason))
    return not lacking


def free_per_rank(spec: EngineSpec, watch: GpuWatch) -> int | None:
    """Bytes that are free for each rank: on its GPU, or its share of the machine's memory."""
    if spec.device == "cpu":
        free = free_host_bytes()
        return None if free is None else free // spec.tp
    free = watch.free_bytes()
    return _first_gpu() if free is None else free


def _first_gpu() -> int:
    """Without NVML only this process's own GPU is asked: asking another takes memory on it."""
    import torch

    free, _ = torch.cuda.mem_get_info(0)
    return int(free)


def free_host_bytes() -> int | None:
    """What the machine and this process's control group still give; None where neither can be told."""
    found = [free for free in (_available(), _left_in_group()) if free is not None]
    return min(found, default=None)


def _available() -> int | None:
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _left_in_group(group: Path = CGROUP) -> int | None:
    """The group's limit less what it holds, where file pages that can be dropped do not count."""
    try:
        limit, held = (group / "memory.max").read_text().strip(), int((group / "memory.current").read_text())
        droppable = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None
    return max(0, int(limit) - held + (int(droppable[1]) if droppable else 0))
