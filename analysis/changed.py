"""What differs between two cells besides their numbers: settings, arms, engine, machine, versions, code.

From what the harness wrote down: `cell.json`, `arms/*.json` and each sitting's `environment.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple, cast

from analysis.records import Cell

_FACTS = ("engine", "fingerprints", "git", "packages", "variables", "gpu_facts")  # told key by key
_PLAIN = (
    *("gap_tolerance", "python", "platform", "cpu", "cpu_governor", "cores", "memory_bytes", "hostname_sha256"),
    *("tokenizer_sha256", "chat_template_sha256", "rendered_prompts_sha256"),
)
_MOVING = re.compile(r"(_s|_seconds|_bytes_rank\d*|free_bytes|_utc|utilization|temperature|clock\w*|power\w*)$")
_HASH = re.compile(r"[0-9a-f]{40,64}")
MISSING = "not recorded"

Facts = dict[str, str]


class Changes(NamedTuple):
    """What differs: its name and what it is in each of two cells; and the names of what only one has a word on."""

    differing: tuple[tuple[str, str, str], ...]
    one_sided: tuple[str, ...]


def changed(first: Cell, second: Cell) -> Changes:
    """What differs between two cells, and the arms that both have."""
    arms = {arm.name for arm in first.arms} & {arm.name for arm in second.arms}
    sides = [facts_of(cell, arms) for cell in (first, second)]
    names = dict.fromkeys(name for side in sides for name in side)
    both = [name for name in names if all(name in side for side in sides)]
    differing = tuple((name, *(side[name] for side in sides)) for name in both if sides[0][name] != sides[1][name])
    return Changes(cast(Any, differing), tuple(name for name in names if name not in both))


def facts_of(cell: Cell, arms: Container[str]) -> Facts:
    """All that is known of how a cell came about, as text; several values, where its sittings differ, with commas."""
    found: Facts = {name: _text(value) for name, value in cell.settings.items() if value is not None}
    for arm in cell.arms:
        if arm.name in arms:
            found |= {f"{arm.name}: {key}": _text(value) for key, value in arm.settings.items()}
    sittings = [dict(_facts(environment)) for environment in environments(cell)]
    for name in dict.fromkeys(name for sitting in sittings for name in sitting):
        if name.removeprefix("engine ") not in found:
            found[name] = ", ".join(dict.fromkeys(sitting.get(name, MISSING) for sitting in sittings))
    return found


def environments(cell: Cell) -> Iterator[Mapping[str, Any]]:
    """What each sitting wrote down, first sitting first."""
    files = cell.folder.glob("sittings/*/environment.json")
    yield from (json.loads(file.read_text()) for file in sorted(files, key=lambda file: int(file.parent.name)))


def _facts(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    gpus = environment.get("gpus")
    if gpus is not None:
        names = [str(gpu.get("name")) for gpu in gpus]
        yield "GPUs", ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "none"
    for key in sorted({key for gpu in gpus or () for key in gpu} - {"name", "uuid", "index"}):
        told = dict.fromkeys(_text(gpu[key]) for gpu in gpus or () if gpu.get(key) is not None)
        if told and not _MOVING.search(key):
            yield f"GPU {key}", ", ".join(told)
    for group in _FACTS:
        for key, value in (environment.get(group) or {}).items():
            if not isinstance(value, dict | list) and value is not None and not _MOVING.search(key):
                yield f"{group} {key}", _text(value)
    for key in _PLAIN:
        if environment.get(key) is not None:
            yield key, _text(environment[key])


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return _HASH.sub(lambda found: found.group()[:12], str(value))
