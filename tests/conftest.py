"""Shared fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_world import FakeWorld


@pytest.fixture
def world(tmp_path: Path) -> FakeWorld:
    return FakeWorld.make(tmp_path / "world")
