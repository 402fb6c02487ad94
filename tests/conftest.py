"""Shared fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_world import FakeWorld

os.environ.setdefault("OMP_NUM_THREADS", "1")  # files are shared out over the cores already


@pytest.fixture
def world(tmp_path: Path) -> FakeWorld:
    return FakeWorld.make(tmp_path / "world")
