"""Where and with what a sitting ran: versions, machine, git state, command line. Secrets never."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import machine

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = (
    *("draft-tree-harness", "hydra-core", "omegaconf", "torch", "transformers", "tokenizers", "safetensors"),
    *("numpy", "pandas", "pyarrow", "rich"),
)
_SECRET = re.compile(r"(?i)^([^=]*(?:secret|password|credential|api_?key|(?:^|[._-])(?:hf_)?token))=.*")


def now_utc() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def package_versions() -> dict[str, str | None]:
    """The installed version of each package the numbers may depend on, None where it is missing."""
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def git_state(folder: Path = REPOSITORY) -> dict[str, str | bool]:
    """The commit of the code and whether the tree differs from it; `unknown` outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": "unknown", "dirty": "unknown"}
    return {"commit": commit, "dirty": _git(folder, "status", "--porcelain") != ""}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def redacted(argv: Iterable[str]) -> list[str]:
    """The command line without the values of settings that are named like a secret."""
    return [_SECRET.sub(r"\1=<redacted>", word) for word in argv]


def environment(argv: Iterable[str]) -> dict[str, Any]:
    """The facts of this process's machine and code, as plain data."""
    return {
        "started_utc": now_utc(),
        "argv": redacted(argv),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": machine.cpu_name(),
        "cores": machine.cores(),
        "memory_bytes": machine.memory_bytes(),
        "gpus": [asdict(gpu) for gpu in machine.gpus()],
        "packages": package_versions(),
        "git": git_state(),
    }
