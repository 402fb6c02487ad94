"""What this machine has, found out without importing a tensor library: cores, memory, GPUs, the torch build.

The command line needs the answers before anything is loaded; the doctor and the records print them.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal
from uuid import UUID

from methods.base import Refusal


@dataclass(frozen=True)
class Gpu:
    """One CUDA device as the driver names it."""

    name: str
    memory_bytes: int
    uuid: str = ""


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch: its version and the CUDA version it was built for, None for a CPU build."""

    version: str
    cuda: str | None


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cpu_name() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def cpu_governor() -> str | None:
    """The frequency governor of the first core, None where the system does not say."""
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        return None


@cache
def gpus() -> tuple[Gpu, ...]:
    """The CUDA devices the driver shows this process (CUDA_VISIBLE_DEVICES counts); none without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int(0)
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    return tuple(_gpu(cuda, index) for index in range(count.value))


def _gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    device, name, memory = ctypes.c_int(0), ctypes.create_string_buffer(256), ctypes.c_size_t(0)
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    uuid = (ctypes.c_ubyte * 16)()
    known = cuda.cuDeviceGetUuid(ctypes.byref(uuid), device) == 0
    return Gpu(name.value.decode(errors="replace"), memory.value, f"GPU-{UUID(bytes=bytes(uuid))}" if known else "")


@cache
def torch_build() -> TorchBuild | None:
    """Read from torch's version file, since importing torch takes seconds; None where torch is missing."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = (Path(spec.origin).parent / "version.py").read_text()
    version = re.search(r"^__version__\s*=\s*['\"](.+?)['\"]", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=\n]*=\s*['\"](.+?)['\"]", text, re.MULTILINE)
    return TorchBuild(version[1] if version else "unknown", cuda[1] if cuda else None)


def choose_device(device: str, tp: int) -> Literal["cpu", "cuda"]:
    """The device behind `device=auto|cpu|cuda` for `tp` ranks, or a `Refusal` where this machine lacks it."""
    build, count = torch_build(), len(gpus())
    if device not in ("auto", "cpu", "cuda"):
        raise Refusal(f"device={device} is not accepted: auto, cpu or cuda is.")
    if device == "cpu" or (device == "auto" and (count == 0 or build is None or build.cuda is None)):
        return "cpu"
    if count == 0:
        raise Refusal("device=cuda is not accepted: this machine shows no NVIDIA GPU; device=cpu is.")
    if build is None or build.cuda is None:
        raise Refusal("device=cuda is not accepted: the installed torch is a CPU build; device=cpu is.")
    if tp > count:
        raise Refusal(
            f"tp={tp} is not accepted on device=cuda: this machine shows {count} GPU{'s' * (count > 1)}; "
            f"a tp of at most {count}, or device=cpu, is."
        )
    return "cuda"
