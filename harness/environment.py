"""Where and with what a sitting ran: versions, machine, code, models, prompts, settings, command line. Secrets never:
no variable of the process's environment is recorded but those of a fixed list.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
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
    *("triton", "numpy", "pandas", "pyarrow", "rich", "nvidia-ml-py"),
)
VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NCCL_P2P_DISABLE", "NCCL_NVLS_ENABLE", "HF_HUB_OFFLINE"),
)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json")
LARGE_FILE_BYTES = 1 << 20
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
    """The commit of the code, whether the tree differs from it, and a hash of the difference; `unknown` outside a
    repository. Untracked files count with their contents, large ones with their size."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": "unknown", "dirty": "unknown"}
    untracked = (_git(folder, "ls-files", "--others", "--exclude-standard", "--full-name", "-z") or b"").split(b"\0")
    changed = _git(folder, "diff", "HEAD", "--binary") or b""
    names = [name.decode(errors="surrogateescape") for name in untracked if name]
    found: dict[str, str | bool] = {"commit": commit.decode().strip(), "dirty": bool(changed or names)}
    if found["dirty"]:
        digest = hashlib.sha256(changed)
        for name in names:
            digest.update(_untracked(folder, name))
        found["diff_sha256"] = digest.hexdigest()
    return found


def _untracked(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= LARGE_FILE_BYTES else str(size).encode()
    except OSError:
        content = b""
    return name.encode(errors="surrogateescape") + b"\0" + hashlib.sha256(content).digest()


def _git(folder: Path, *words: str) -> bytes | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def redacted(argv: Iterable[str]) -> list[str]:
    """The command line without the values of settings that are named like a secret."""
    return [_SECRET.sub(r"\1=<redacted>", word) for word in argv]


def tokenizer_facts(folder: Path, chat_template: object) -> dict[str, str]:
    """Hashes of the tokenizer's files and of the chat template that rendered the prompts."""
    digest = hashlib.sha256()
    for path in (folder / name for name in TOKENIZER_FILES):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    template = hashlib.sha256(str(chat_template).encode()).hexdigest()
    return {"tokenizer_sha256": digest.hexdigest(), "chat_template_sha256": template}


def environment(argv: Iterable[str]) -> dict[str, Any]:
    """The facts of this process's machine and code, as plain data."""
    return {
        "started_utc": now_utc(),
        "argv": redacted(argv),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hostname_sha256": hashlib.sha256(socket.gethostname().encode()).hexdigest(),
        "cpu": machine.cpu_name(),
        "cpu_governor": machine.cpu_governor(),
        "cores": machine.cores(),
        "load_average": os.getloadavg()[0],
        "memory_bytes": machine.memory_bytes(),
        "gpus": [asdict(gpu) for gpu in machine.gpus()],
        "packages": package_versions(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "git": git_state(),
    }
