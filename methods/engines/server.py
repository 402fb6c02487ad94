"""A server process of another environment: started on loopback, waited for, and taken down with all it started.

Between this process and the server stands `guard.py`, which ends the server when this process is gone, however it
went. What the server prints goes to a log file, whose last lines stand in the reason when it fails.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from methods.engines.http import ServerError

GUARD = Path(__file__).with_name("guard.py")
READY_S = 1800.0
POLL_S = 0.2
END_S = 30.0
TAIL_LINES = 20
LEFT_OUT = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # ours, not the other environment's
PORT_TAKEN = "address already in use"


@dataclass(frozen=True)
class Launch:
    """What is started: `command`, with `variables` added to the environment, its output in `log`. `name` is what the
    sentences call it."""

    name: str
    command: tuple[str, ...]
    variables: Mapping[str, str]
    log: Path


class Server:
    """A running server; `close` ends it, and so does the end of this process."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        kept = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        guard_end, self._pipe = os.pipe()
        with launch.log.open("wb") as log:
            self._guard = subprocess.Popen(
                [sys.executable, str(GUARD), str(guard_end), *launch.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(guard_end,),
                cwd=launch.log.parent,
                env={**kept, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", **launch.variables},
            )
        os.close(guard_end)

    def wait(self, ready: Callable[[], bool], limit_s: float = READY_S) -> None:
        """Return once `ready` says so; a ServerError as soon as the server has ended, or after `limit_s` seconds."""
        deadline = time.monotonic() + limit_s
        while not ready():
            if (ended := self.ended()) is not None:
                raise ServerError(f"{self.launch.name} {ended} before it was ready{self._last_words()}")
            if time.monotonic() > deadline:
                raise ServerError(f"{self.launch.name} was not ready after {limit_s:g} s{self._last_words()}")
            time.sleep(POLL_S)

    def ended(self, within_s: float = 0.0) -> str | None:
        """How the server ended, at the latest `within_s` seconds from now; None while it runs."""
        try:
            code = self._guard.wait(within_s)
        except subprocess.TimeoutExpired:
            return None
        if code <= 128:
            return f"ended with exit code {code}"
        hint = ", which the system sends when memory runs out" if code == 128 + signal.SIGKILL else ""
        return f"was killed by {signal.Signals(code - 128).name}{hint}"

    def last_lines(self) -> str:
        """The end of its log, under the log's name."""
        return "\n".join([f"The last lines of {self.launch.log.name}:", *self._tail()])

    def _tail(self) -> list[str]:
        lines = self.launch.log.read_text(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-TAIL_LINES:]

    def _last_words(self) -> str:
        """The last line that names an error, or else the last line."""
        lines = self._tail()
        named = [line for line in lines if "Error" in line or PORT_TAKEN in line.lower()]
        return f": {(named or lines)[-1].strip()[-300:]}" if lines else ""

    def close(self) -> None:
        """End it in order, or by force where that takes too long; safe to call twice."""
        if self._pipe < 0:
            return
        with contextlib.suppress(OSError):
            os.write(self._pipe, b"q")
        try:
            self._guard.wait(END_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        finally:
            os.close(self._pipe)
            self._pipe = -1


def free_port() -> int:
    """A port of loopback that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def flags(settings: Mapping[str, str | int | float | bool | None], given: Sequence[tuple[str, object]]) -> list[str]:
    """Command-line words: `name: value` is `--name value`, True `--name`, False `--no-name`, None nothing."""
    words: list[str] = []
    for name, value in (*settings.items(), *given):
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", str(value)]
    return words
