"""Where results are told to besides the results folder. A tracker is named by `_target_` in conf/tracker.

Nothing in the results depends on a tracker: it hears of each arm once it is on disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path


class Tracker(ABC):
    """Hears what a command finishes. Made without arguments; `close` is called once, also after a failure."""

    @abstractmethod
    def arm_ended(self, cell_folder: Path, arm: str, status: str) -> None:
        """An arm of the cell reached `complete`, `invalid` or `failed`; its records are in `cell_folder`."""

    @abstractmethod
    def close(self) -> None:
        """The command has ended."""


class NoTracker(Tracker):
    """Tells nobody."""

    def arm_ended(self, cell_folder: Path, arm: str, status: str) -> None:
        pass

    def close(self) -> None:
        pass
