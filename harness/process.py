"""One sitting as a process group of its own: started, listened to, limited in time, and ended with all it started."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.results import Lock
from harness.sitting import Event, EventReader

POLL_S = 0.2


@dataclass(frozen=True)
class Outcome:
    """How a sitting ended. `arm` is the arm whose request was in flight when it ended badly, None outside one.
    `reason` is None after a good end; `explained` says that the reason needs no log beside it. `unfit` are the arms
    that do not fit in memory, with why: nothing was started then."""

    reason: str | None = None
    arm: str | None = None
    explained: bool = False
    unfit: Mapping[str, str] = field(default_factory=dict)


def sit(order: Path, lock: Lock, timeout_s: float, listen: Callable[[Event | None], None]) -> Outcome:
    """Run the sitting whose order lies at `order` to its end. `listen` gets every event, and None between them."""
    parent_read, parent_write = os.pipe()
    events_read, events_write = os.pipe()
    command = [sys.executable, "-m", "harness.cell", str(order)]
    command += ["--parent-fd", str(parent_read), "--events-fd", str(events_write)]
    with (order.parent / "log.txt").open("wb") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(parent_read, events_write, lock.fileno()),
            env={**os.environ, "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
    os.close(parent_read)
    os.close(events_write)
    try:
        return _follow(child, events_read, timeout_s, listen)
    finally:
        _end(child)
        os.close(events_read)
        os.close(parent_write)


def _follow(
    child: subprocess.Popen[bytes], events_fd: int, timeout_s: float, listen: Callable[[Event | None], None]
) -> Outcome:
    reader, deadline = EventReader(events_fd), time.monotonic() + timeout_s
    in_flight: str | None = None
    told: Event | None = None
    unfit: dict[str, str] = {}
    while True:
        code = child.poll()
        for event in reader.read():
            if event.kind in ("failed", "refused"):
                told = event
            elif event.kind == "unfit" and event.arm is not None:
                unfit[event.arm] = event.text
            elif event.kind in ("started", "done"):
                in_flight = event.arm if event.kind == "started" else None
            listen(event)
        listen(None)
        if code == 0:
            return Outcome(unfit=unfit)
        if code is not None:
            return Outcome(told.text if told else _ended(code), in_flight, told is not None and told.kind == "refused")
        if time.monotonic() > deadline:
            return Outcome(f"no end within timeout_s={timeout_s:g}", in_flight)
        with contextlib.suppress(InterruptedError):
            select.select([events_fd], [], [], POLL_S)


def _ended(code: int) -> str:
    if code >= 0:
        return f"the cell's process ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = ", which the system sends when memory runs out" if -code == signal.SIGKILL else ""
    return f"the cell's process was killed by {name}{hint}"


def _end(child: subprocess.Popen[bytes]) -> None:
    """End whatever is left of the group; its records are synced, so nothing is owed a farewell."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
