"""`python -m harness.doctor`: what this machine can run, and how to get what is missing."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

try:
    from packaging.requirements import Requirement
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
except ModuleNotFoundError as absent:
    sys.exit(f"The package {absent.name} is not installed: `pip install .` in the repository gets everything needed.")

from harness import machine
from methods.base import Refusal
from methods.locate import resolve

Verdict = Literal["ok", "optional", "missing"]
PAIR = ("builtin:tiny/target", "builtin:tiny/drafter")
EXTRAS = (  # module, distribution, extra
    ("wandb", "wandb", "wandb"),
    ("datasets", "datasets", "datasets"),
    ("submitit", "submitit", "submitit"),
    ("pynvml", "nvidia-ml-py", "nvml"),
)
PYTHONS = ((3, 11), (3, 14))
MARKS: dict[Verdict, str] = {"ok": "[green]ok[/]", "optional": "[yellow]not here[/]", "missing": "[red]missing[/]"}


class Finding(NamedTuple):
    """One line of the report. `remedy` says how to get what is not there."""

    what: str
    verdict: Verdict
    found: str
    remedy: str = ""


def findings() -> Iterator[Finding]:
    """Everything looked at, in the order of the report."""
    yield _python()
    yield Finding("CPU", "ok", f"{machine.cores()} cores, {machine.cpu_name()}")
    yield Finding("memory", "ok", _gib(machine.memory_bytes()))
    yield Finding("disk", "ok", f"{_gib(shutil.disk_usage(Path.cwd()).free)} free here, where results land")
    yield from _gpu()
    yield from _packages()
    yield _pair()
    for names in EXTRAS:
        yield _extra(*names)


def _python() -> Finding:
    low, high = PYTHONS
    good = low <= sys.version_info[:2] < high
    wanted = f"use Python {low[0]}.{low[1]} up to {high[0]}.{high[1] - 1}"
    return Finding("Python", "ok" if good else "missing", platform.python_version(), "" if good else wanted)


def _gpu() -> Iterator[Finding]:
    build, gpus = machine.torch_build(), machine.gpus()
    for gpu in gpus:
        yield Finding("GPU", "ok", f"{gpu.name}, {_gib(gpu.memory_bytes)}")
    if not gpus:
        yield Finding("GPU", "optional", "no NVIDIA GPU: everything runs on the CPU")
    if build is not None and gpus and build.cuda is None:
        yield Finding("CUDA torch", "optional", "a CPU build", "install the CUDA build of torch to use the GPU")
    elif build is not None:
        yield Finding("torch build", "ok", f"{build.version}, {f'CUDA {build.cuda}' if build.cuda else 'CPU'}")


def _packages() -> Iterator[Finding]:
    for requirement in _requirements():
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield Finding(requirement.name, "missing", "not installed", f'pip install "{requirement}"')
            continue
        if requirement.specifier.contains(version, prereleases=True):
            yield Finding(requirement.name, "ok", version)
        else:
            yield Finding(requirement.name, "missing", version, f'pip install "{requirement}"')


def _requirements() -> list[Requirement]:
    """What the project asks for: from its pyproject.toml, or from its metadata where it is installed."""
    pyproject = Path(__file__).resolve().parents[1] / "pyproject.toml"
    if pyproject.exists():
        import tomllib

        lines = tomllib.loads(pyproject.read_text())["project"]["dependencies"]
    else:
        lines = metadata.requires("draft-tree-harness") or []
    requirements = [Requirement(line) for line in lines]
    return [requirement for requirement in requirements if not requirement.marker or requirement.marker.evaluate()]


def _pair() -> Finding:
    try:
        folders = [resolve(reference) for reference in PAIR]
    except Refusal as refusal:
        return Finding("built-in pair", "missing", str(refusal), "install the project with its package data")
    size = sum(file.stat().st_size for folder in folders for file in folder.glob("*.safetensors"))
    return Finding("built-in pair", "ok", f"model=tiny, {size / 1e6:.1f} MB of weights")


def _extra(module: str, distribution: str, extra: str) -> Finding:
    if importlib.util.find_spec(module) is not None:
        return Finding(f"extra {extra}", "ok", metadata.version(distribution))
    return Finding(f"extra {extra}", "optional", "not installed", f"pip install '.[{extra}]'")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def main() -> int:
    """Print the report. Returns 0 where the main job can run, 1 where something it needs is missing."""
    console = Console(highlight=False)
    table = Table(box=None)
    for column in ("what", "", "found", "how to get it"):
        table.add_column(column, overflow="fold")
    report = list(findings())
    for finding in report:
        table.add_row(finding.what, MARKS[finding.verdict], escape(finding.found), escape(finding.remedy))
    console.print(table, markup=True)
    missing = [finding.what for finding in report if finding.verdict == "missing"]
    if missing:
        console.print(f"The main job cannot run yet: {', '.join(missing)} missing.")
        return 1
    console.print(f"Everything the main job needs is here; it would run on {machine.choose_device('auto', 1)}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
