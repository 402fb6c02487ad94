"""Where results are told to besides the results folder. A tracker is named by `_target_` in conf/tracker.

Nothing in the results depends on a tracker: it hears of each arm once it is on disk, in a process of its own, where it
can fail or hang as it likes. A new tracker is one file and one YAML: a dataclass of its settings that makes a listener.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from harness.sitting import Event


class Listener:
    """Hears what a command does. What it has no use for it leaves as it is here, where nothing comes of it.

    A text that `cell_began`, `cell_ended` or `close` returns is shown to whoever runs the command.
    """

    def cell_began(self, cell_folder: Path, requests: int) -> str | None:
        """The work on a cell that owes something begins; `cell.json` and `arms/` are in `cell_folder`, and as many
        timed `requests` from earlier sittings."""
        return None

    def request_ended(self, event: Event) -> None:
        """A timed request of the cell is on disk; `event` (`done`) has its counts."""

    def arm_ended(self, cell_folder: Path, arm: str, status: str) -> None:
        """An arm of the cell reached `complete`, `invalid` or `failed`; its records are in `cell_folder`."""

    def cell_ended(self, cell_folder: Path) -> str | None:
        """The work on the cell has ended, also by a failure or an interrupt; its Parquet files are folded."""
        return None

    def close(self) -> str | None:
        """The command has ended, also by a failure. Called once."""
        return None


class Tracker(ABC):
    """What is to be told to whom: a dataclass, whose fields are the settings under `tracker.*`.

    `patience_s` is how long a command waits for it where a cell ends; what takes longer is ended.
    """

    patience_s: ClassVar[float] = 60.0

    def check(self) -> None:
        """Called before anything starts.

        Raises:
            Refusal: a package that the tracker needs is missing, or a setting cannot be done.
        """
        return None

    @abstractmethod
    def listener(self, sweep: str) -> Listener:
        """What hears of the command whose cells hash to `sweep`. Called in the tracker's own process."""

    def open(self, sweep: str) -> Listener:
        """What the command tells: it passes everything on to a `listener` in a process of its own."""
        from harness.tracker_process import Aside

        return Aside(self, sweep)


@dataclass(frozen=True)
class NoTracker(Tracker):
    """Tells nobody."""

    def listener(self, sweep: str) -> Listener:
        return Listener()

    def open(self, sweep: str) -> Listener:
        return Listener()
