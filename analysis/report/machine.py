"""On what it was measured: GPUs, driver, versions, git state, and the command line of every sitting."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from analysis.report.folder import Folder

_COMMANDS = 40  # command lines that are shown of one machine
_GIB = 2**30
_MEASURES = {
    "memory_bytes": ("{:.0f} GiB", _GIB),
    "power_limit_w": ("{:.0f} W at most", 1),
    "sm_clock_max_hz": ("{:.0f} MHz at most", 1e6),
}


@dataclass
class Machine:
    """One machine and state of the code: its facts, and the sittings on it with when they began and their command."""

    facts: list[tuple[str, str]]
    packages: list[tuple[str, str]]
    sittings: list[tuple[str, str, str]] = field(default_factory=list)
    hidden: int = 0


def machines(folder: Folder) -> list[Machine]:
    """Every machine, in the order in which the cells name them; sittings that agree in all facts share one."""
    found: dict[str, Machine] = {}
    for place, cell in folder.cells.items():
        for number, content in folder.environments(cell):
            facts, packages = list(_facts(content)), list(_packages(content))
            key = json.dumps([facts, packages])
            machine = found.setdefault(key, Machine(facts, packages))
            if len(machine.sittings) == _COMMANDS:
                machine.hidden += 1
                continue
            argv = content.get("argv")
            command = "python -m harness " + shlex.join(map(str, argv)) if isinstance(argv, list) else "not recorded"
            label = folder.labels.get(place, f"cell {cell.cell_id}")
            machine.sittings.append((f"{label}, sitting {number}", str(content.get("started_utc", "")), command))
    return list(found.values())


def _facts(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _gpus(content.get("gpu_facts") or content.get("gpus") or [])
    cores = f", {content['cores']} cores" if content.get("cores") else ""
    yield "CPU", f"{content.get('cpu') or 'not recorded'}{cores}"
    if content.get("memory_bytes"):
        yield "memory", f"{content['memory_bytes'] / _GIB:.0f} GiB"
    yield "system", str(content.get("platform") or "not recorded")
    yield "Python", str(content.get("python") or "not recorded")
    yield "git", _git(content.get("git") or {})
    for name, value in sorted((content.get("variables") or {}).items()):
        yield name, str(value)


def _gpus(gpus: list[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    if not gpus:
        yield "GPU", "none"
    kinds: dict[str, int] = {}
    for gpu in gpus:
        facts = [said.format(gpu[key] / scale) for key, (said, scale) in _MEASURES.items() if gpu.get(key)]
        driver = [f"driver {gpu['driver']}"] if gpu.get("driver") else []
        kind = ", ".join([str(gpu.get("name")), *facts, *driver, *(["MIG"] if gpu.get("mig_mode") else [])])
        kinds[kind] = kinds.get(kind, 0) + 1
    for kind, number in kinds.items():
        yield "GPU", kind if number == 1 else f"{number} × {kind}"


def _git(state: Mapping[str, Any]) -> str:
    commit = str(state.get("commit") or "unknown")
    dirty = state.get("dirty")
    return commit + (", with changes not committed" if dirty is True else "" if dirty is False else ", state unknown")


def _packages(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, version in (content.get("packages") or {}).items():
        if version:
            yield str(name), str(version)
