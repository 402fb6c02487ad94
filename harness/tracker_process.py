"""A tracker in a process of its own: the command's end, which never waits long and never raises, and the tracker's.

The command writes one JSON line a call and gets one back: what to show, or what went wrong. It waits for the tracker
where a cell ends, so that uploads do not run beside the next cell's timing, and no longer than its patience.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from harness.sitting import Event
from harness.targets import build_tracker, target_of
from harness.tracker import Listener, Tracker


class Aside(Listener):
    """The command's end. The first failure is shown in one sentence; one that ends the process ends the telling."""

    def __init__(self, tracker: Tracker, sweep: str) -> None:
        self._patience_s, self._warned = tracker.patience_s, False
        self._unsent, self._unread = bytearray(), b""
        self._open_calls = 0
        self._child: subprocess.Popen[bytes] | None = None
        order = {"tracker": {"_target_": target_of(tracker), **asdict(cast(Any, tracker))}, "sweep": sweep}
        try:
            self._start(order)
        except (OSError, ValueError, TypeError) as error:
            self._warn(f"it cannot be started ({_words(error)})")

    def cell_began(self, cell_folder: Path, requests: int) -> None:
        self._tell("cell_began", str(cell_folder), requests)

    def request_ended(self, event: Event) -> None:
        self._tell("request_ended", vars(event))

    def arm_ended(self, cell_folder: Path, arm: str, status: str) -> None:
        self._tell("arm_ended", str(cell_folder), arm, status)

    def cell_ended(self, cell_folder: Path) -> None:
        self._tell("cell_ended", str(cell_folder), wait=True)

    def close(self) -> None:
        self._tell("close", wait=True)
        self._end()

    def _start(self, order: dict[str, Any]) -> None:
        calls_read, self._calls = os.pipe()
        self._answers, answers_write = os.pipe()
        command = [sys.executable, "-m", "harness.tracker_process"]
        command += ["--calls-fd", str(calls_read), "--answers-fd", str(answers_write)]
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is for the command, which then lets the tracker finish
                pass_fds=(calls_read, answers_write),
            )
        finally:
            os.close(calls_read)
            os.close(answers_write)
        os.set_blocking(self._calls, False)
        os.set_blocking(self._answers, False)
        self._unsent += _line(order)

    def _tell(self, call: str, *words: Any, wait: bool = False) -> None:
        """Pass a call on as far as the pipe takes it; with `wait`, until all calls are answered or patience ends."""
        if self._child is None:
            return
        self._unsent += _line([call, *words])
        self._open_calls += 1
        deadline = time.monotonic() + (self._patience_s if wait else 0)
        try:
            while True:
                self._pump()
                left = deadline - time.monotonic()
                if not self._open_calls or left <= 0:
                    break
                select.select([self._answers], [self._calls] if self._unsent else [], [], left)
        except (OSError, ValueError, KeyError) as error:
            self._give_up(f"its process ended early ({_words(error)})")
            return
        if wait and self._open_calls:
            self._give_up(f"it did not answer within {self._patience_s:g} s")

    def _pump(self) -> None:
        """Write and read what is possible now."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: os.write(self._calls, self._unsent[: 1 << 16])]
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._answers, 1 << 16):
                self._unread += chunk
            raise OSError("no more answers")
        *lines, self._unread = self._unread.split(b"\n")
        for answer in map(json.loads, lines):
            self._open_calls -= 1
            if answer["failed"] is not None:
                self._warn(answer["failed"])
            elif answer["said"] is not None:
                print(answer["said"], flush=True)

    def _warn(self, reason: str) -> None:
        if not self._warned:
            print(f"The tracker failed, which costs the results nothing: {reason.rstrip('.')}.", file=sys.stderr)
        self._warned = True

    def _give_up(self, reason: str) -> None:
        self._warn(reason)
        self._end(at_once=True)

    def _end(self, at_once: bool = False) -> None:
        """Leave no process behind: it may finish by itself once its calls have ended, unless it hangs already."""
        child, self._child = self._child, None
        if child is None:
            return
        os.close(self._calls)
        os.close(self._answers)
        try:
            if not at_once:
                child.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self._warn(f"its process did not end within {self._patience_s:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _line(content: Any) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _words(error: BaseException) -> str:
    """An error as part of a sentence."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _calls(file: Iterator[bytes]) -> Iterator[tuple[str, list[Any]]]:
    for line in file:
        call, *words = json.loads(line)
        if call == "request_ended":
            words = [Event(**words[0])]
        elif words:
            words[0] = Path(words[0])
        yield call, words


def main(argv: Sequence[str] | None = None) -> int:
    """The tracker's process: listens until its calls end, and finishes what is open even if the command was killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls-fd", type=int, required=True)
    parser.add_argument("--answers-fd", type=int, required=True)
    options = parser.parse_args(argv)
    with open(options.calls_fd, "rb") as calls, open(options.answers_fd, "wb", buffering=0) as answers:
        order = json.loads(calls.readline())
        tracker: Tracker | None = None
        listener: Listener | None = None
        closed = False
        for call, words in _calls(iter(calls.readline, b"")):
            answer: dict[str, str | None] = {"said": None, "failed": None}
            try:
                tracker = tracker or build_tracker(order["tracker"])
                listener = listener or tracker.listener(order["sweep"])
                answer["said"] = getattr(listener, call)(*words)
            except Exception as error:
                answer["failed"] = _words(error)
            closed = call == "close"
            with contextlib.suppress(BrokenPipeError):
                answers.write(_line(answer))
    if tracker is not None and listener is not None and not closed:
        _close_soon(listener, tracker.patience_s)
    return 0


def _close_soon(listener: Listener, patience_s: float) -> None:
    """The command is gone, and nobody would end this process if closing hung."""
    limit = threading.Timer(patience_s, os._exit, (1,))
    limit.daemon = True
    limit.start()
    with contextlib.suppress(Exception):
        listener.close()


if __name__ == "__main__":
    sys.exit(main())
