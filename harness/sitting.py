"""A sitting's order: what the parent tells the process that works a cell, and the events that come back.

The order is a file (`sitting.json`), so that a sitting can be read, and run again by hand, afterwards.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harness.cells import CellSettings
from harness.records import read_json, write_json
from harness.results import Step, Turn
from harness.targets import build_method
from methods.base import Method


@dataclass(frozen=True)
class Sitting:
    """One stretch of a cell's work in one process: the arms' methods, the timed steps they owe, the prompts that AR
    answers at start, middle and end of those to show a drift, the steps whose stages are timed afterwards, and the
    turns whose AR text is replayed at the very end."""

    number: int
    settings: CellSettings
    methods: tuple[Method, ...]
    method_settings: tuple[dict[str, Any], ...]
    steps: tuple[Step, ...]
    sentinel: tuple[str, ...]
    profile: tuple[Step, ...]
    fingerprints: dict[str, str]
    argv: tuple[str, ...]
    replay: tuple[Turn, ...] = ()

    def write(self, folder: Path) -> Path:
        path = folder / "sitting.json"
        content = {
            "number": self.number,
            "settings": asdict(self.settings),
            "arms": self.method_settings,
            "steps": self.steps,
            "sentinel": self.sentinel,
            "profile": self.profile,
            "fingerprints": self.fingerprints,
            "argv": self.argv,
            "replay": self.replay,
        }
        write_json(path, content)
        return path

    @classmethod
    def read(cls, path: Path) -> Sitting:
        content = read_json(path)
        arms = tuple(content["arms"])
        return cls(
            content["number"],
            CellSettings(**content["settings"]),
            tuple(build_method(arm) for arm in arms),
            arms,
            _steps(content["steps"]),
            tuple(content["sentinel"]),
            _steps(content["profile"]),
            content["fingerprints"],
            tuple(content["argv"]),
            tuple(Turn(*turn) for turn in content["replay"]),
        )

    @property
    def requests(self) -> int:
        """Timed requests in all."""
        return sum(len(step.arms) for step in self.steps)


def _steps(content: list[Any]) -> tuple[Step, ...]:
    return tuple(Step(repeat, prompt_id, tuple(asked), *turn) for repeat, prompt_id, asked, *turn in content)


@dataclass(frozen=True)
class Event:
    """One line from the cell's process. `started`: a request of `arm` is in flight. `done`: it is on disk, with
    its counts. `stage`: what the process is busy with (`text`), and how many requests that takes where they are counted
    (`total`). `unfit`: `arm` does not fit in memory, and `text` says
    by how much. `failed`, `refused`: why it ends (`text`)."""

    kind: Literal["stage", "started", "done", "unfit", "failed", "refused"]
    arm: str | None = None
    timed: bool = False
    counted: bool = False
    tokens: int = 0
    decode_s: float = 0.0
    rounds: int = 0
    accepted: int = 0
    total: int = 0
    text: str = ""

    def line(self) -> bytes:
        return json.dumps(vars(self)).encode() + b"\n"


class EventSender:
    """The cell's end of the pipe. Without a pipe (a sitting run by hand) events go nowhere."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def send(self, event: Event) -> None:
        if self._fd is not None:
            os.write(self._fd, event.line())


class EventReader:
    """The parent's end of the pipe: whole lines as they come."""

    def __init__(self, fd: int) -> None:
        self._fd, self._rest = fd, b""
        os.set_blocking(fd, False)

    def read(self) -> list[Event]:
        """The events that have arrived; never waits."""
        chunks = [self._rest]
        while True:
            try:
                chunk = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                break
            if not chunk:
                break
            chunks.append(chunk)
        *lines, self._rest = b"".join(chunks).split(b"\n")
        return [Event(**json.loads(line)) for line in lines]
