"""Runs a server for as long as somebody wants it: `python guard.py FD COMMAND…`, in a session of its own.

FD is a pipe from the process that wants the server. A `q` on it asks for an orderly end; its closing, which the kernel
sees to however that process went, means the end at once. The server's own processes are found wherever they went, for
whoever is orphaned here becomes this process's child. Its exit status is the server's, 128 + the signal after one.

Runs as a script on the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 10.0
POLL_S = 0.1
DEADLINE_S = 10.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main(argv: list[str]) -> int:
    fd, command = int(argv[1]), argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        server = subprocess.Popen(
            command, preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), close_fds=True
        )
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", flush=True)
        return 127
    try:
        while server.poll() is None:
            if not select.select([fd], [], [], POLL_S)[0]:
                continue
            if os.read(fd, 1) == b"q":
                _ask_to_end(server)
            break
    finally:
        code = server.poll()
        _kill_all()
    return 0 if code is None else code if code >= 0 else 128 - code


def _ask_to_end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    deadline = time.monotonic() + GRACE_S
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_S / 2)


def _kill_all() -> None:
    """Kill every descendant, and those that come up meanwhile, until there is none."""
    deadline = time.monotonic() + DEADLINE_S
    while (left := _descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.01)


def _descendants(root: int) -> list[int]:
    """The living processes below `root`."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                _state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue  # it ended meanwhile
            children.setdefault(int(parent), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv))
