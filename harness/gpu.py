"""What NVML tells of the GPUs a cell runs on: facts once; clocks, power, temperature and throttling between
requests; energy and free memory. pynvml is never required: without it, or on a CPU, nothing is watched.
"""

from __future__ import annotations

import importlib
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness import machine

SAMPLE_EVERY_S = 1.0
THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
HARMLESS = ("idle", "application clocks", "sync boost", "display clocks")


@dataclass
class _Samples:
    """One GPU's readings so far."""

    values: dict[str, list[float]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        """Least and median of every reading, and how often each throttle reason was set."""
        found: dict[str, Any] = {}
        for name, values in self.values.items():
            found[name] = {"min": min(values), "median": statistics.median(values), "samples": len(values)}
        throttled = {reason: count for reason, count in self.reasons.items() if reason not in HARMLESS}
        return found | {"throttle_reasons": dict(self.reasons), "throttled": bool(throttled)}


@dataclass
class GpuWatch:
    """The GPUs of one cell, none where NVML cannot be asked. What one GPU does not offer is None."""

    nvml: Any
    handles: tuple[Any, ...]
    samples: list[_Samples] = field(default_factory=list)
    sampled_s: float = -math.inf

    @classmethod
    def open(cls, device: str, tp: int) -> GpuWatch:
        """Watch the first `tp` GPUs this process sees; nobody on a CPU or without a working NVML."""
        if device != "cuda":
            return cls(None, ())
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            handles = tuple(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in machine.gpus()[:tp])
        except Exception:  # no package, no library, no permission: all mean that nothing can be watched
            return cls(None, ())
        return cls(nvml, handles, [_Samples() for _ in handles])

    def facts(self) -> list[dict[str, Any]]:
        """What holds for the whole sitting, a dictionary a GPU."""
        return [
            {
                "name": self._ask("nvmlDeviceGetName", handle),
                "uuid": self._ask("nvmlDeviceGetUUID", handle),
                "driver": self._ask("nvmlSystemGetDriverVersion"),
                "memory_bytes": self._ask("nvmlDeviceGetMemoryInfo", handle, convert=lambda info: int(info.total)),
                "power_limit_w": self._ask("nvmlDeviceGetEnforcedPowerLimit", handle, convert=_thousandth),
                "sm_clock_max_hz": self._clock("nvmlDeviceGetMaxClockInfo", handle, "NVML_CLOCK_SM"),
                "memory_clock_max_hz": self._clock("nvmlDeviceGetMaxClockInfo", handle, "NVML_CLOCK_MEM"),
                "memory_bus_bits": self._ask("nvmlDeviceGetMemoryBusWidth", handle),
                "persistence_mode": self._ask("nvmlDeviceGetPersistenceMode", handle, convert=bool),
                "mig_mode": self._ask("nvmlDeviceGetMigMode", handle, convert=lambda modes: bool(modes[0])),
                "compute_processes": self._ask("nvmlDeviceGetComputeRunningProcesses", handle, convert=len),
            }
            for handle in self.handles
        ]

    def sample(self) -> None:
        """Read every GPU's clocks, power, temperature and throttle reasons, unless that was done within the last
        second: NVML takes milliseconds. Never inside a timed region."""
        if time.monotonic() - self.sampled_s < SAMPLE_EVERY_S:
            return
        self.sampled_s = time.monotonic()
        for handle, samples in zip(self.handles, self.samples, strict=True):
            readings = {
                "sm_clock_hz": self._clock("nvmlDeviceGetClockInfo", handle, "NVML_CLOCK_SM"),
                "memory_clock_hz": self._clock("nvmlDeviceGetClockInfo", handle, "NVML_CLOCK_MEM"),
                "power_w": self._ask("nvmlDeviceGetPowerUsage", handle, convert=_thousandth),
                "temperature_c": self._ask("nvmlDeviceGetTemperature", handle, 0),
            }
            for name, value in readings.items():
                if value is not None:
                    samples.values.setdefault(name, []).append(value)
            mask = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
            samples.reasons.update(name for bit, name in THROTTLE_REASONS.items() if mask & bit)

    def summary(self) -> list[dict[str, Any]]:
        """The samples of the sitting so far, a dictionary a GPU."""
        return [samples.summary() for samples in self.samples]

    def energy_j(self) -> float | None:
        """A counter that rises by the energy the cell's GPUs use, in joules; None where one of them has none."""
        counters = [
            self._ask("nvmlDeviceGetTotalEnergyConsumption", handle, convert=_thousandth) for handle in self.handles
        ]
        return None if None in counters or not counters else float(sum(counters))

    def free_bytes(self) -> int | None:
        """Free memory of the fullest of the cell's GPUs."""
        found = [
            self._ask("nvmlDeviceGetMemoryInfo", handle, convert=lambda info: int(info.free)) for handle in self.handles
        ]
        known: list[int] = [free for free in found if free is not None]
        return min(known, default=None)

    def _clock(self, name: str, handle: Any, kind: str) -> Any:
        return self._ask(name, handle, getattr(self.nvml, kind), convert=lambda megahertz: megahertz * 1e6)

    def _ask(self, name: str, *arguments: Any, convert: Callable[[Any], Any] = lambda value: value) -> Any:
        try:
            return convert(getattr(self.nvml, name)(*arguments))
        except Exception:  # this GPU or this NVML does not offer it
            return None


def _thousandth(value: float) -> float:
    return value / 1000
