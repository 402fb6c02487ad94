"""Shared fixtures."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from fake_world import REPOSITORY, FakeWorld

os.environ.setdefault("OMP_NUM_THREADS", "1")  # files are shared out over the cores already


@pytest.fixture
def world(tmp_path: Path) -> FakeWorld:
    return FakeWorld.make(tmp_path / "world")


@pytest.fixture(scope="session")
def serving() -> ModuleType:
    """`benchmarks/serving.py`."""
    sys.path.append(str(REPOSITORY / "benchmarks"))  # behind all else: it has an analysis.py, too
    return importlib.import_module("serving")
