"""Clocks that do not disturb what they time.

On a GPU a mark is an event in the stream, and the host follows the device one round behind through pinned memory: it
never waits for work it has just queued. On a CPU, where work is done when a call returns, a mark is the time.
"""

from __future__ import annotations

import time
from collections import deque

import torch
from torch import Tensor

from methods.base import Stages

Mark = float | torch.cuda.Event
STAGES = ("draft", "build", "verify", "commit")


class Clock:
    """Marks in the flow of work, and the seconds between two of them."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            torch.cuda.synchronize(device)  # a request starts on an idle device

    def mark(self) -> Mark:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, earlier: Mark, later: Mark) -> float:
        """Seconds; waits for `later` to have happened."""
        if isinstance(earlier, float) or isinstance(later, float):
            assert isinstance(earlier, float) and isinstance(later, float)
            return later - earlier
        later.synchronize()
        return float(earlier.elapsed_time(later)) / 1e3


class Follower:
    """What the host knows of a request on the device: how far its root is, and whether it is finished."""

    LAG = 1  # rounds the host runs ahead of what it knows, on a GPU

    def __init__(self, root_at: Tensor, finished: Tensor, position: int, is_finished: bool) -> None:
        self._tensors = (root_at, finished)
        self._on_gpu = root_at.device.type == "cuda"
        self._position, self.finished = position, is_finished
        self._pending: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    def position_limit(self, per_round: int) -> int:
        """A position the root cannot have passed, when a round advances it by at most `per_round`."""
        return self._position + len(self._pending) * per_round

    def note(self) -> None:
        """Call after queuing a round (or the prefill): learn what has become known by now."""
        if not self._on_gpu:
            root_at, finished = self._tensors
            self._position, self.finished = int(root_at), bool(finished)
            return
        known = torch.empty(2, dtype=torch.int64, pin_memory=True)
        known.copy_(torch.stack([t.to(torch.int64) for t in self._tensors]), non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._pending.append((known, event))
        if len(self._pending) > self.LAG:
            known, event = self._pending.popleft()
            event.synchronize()
            self._position, self.finished = int(known[0]), bool(known[1])


class StageClock:
    """Seconds per stage of a profiled request's rounds. What lies between two stages is the later one's."""

    def __init__(self, clock: Clock, on: bool) -> None:
        self._clock, self.on = clock, on
        self._rounds: list[list[Mark]] = []

    def start(self) -> None:
        """A round begins, unless one has begun already."""
        if self.on and (not self._rounds or len(self._rounds[-1]) > len(STAGES)):
            self._rounds.append([self._clock.mark()])

    def end(self) -> None:
        """The next of the stages has ended."""
        if self.on:
            self._rounds[-1].append(self._clock.mark())

    def total(self, rounds: int) -> Stages | None:
        """The sums over the first `rounds` rounds; later ones were queued before the host knew of the end."""
        if not self.on:
            return None
        kept, between = self._rounds[:rounds], self._clock.between
        return Stages(*(sum(between(marks[i], marks[i + 1]) for marks in kept) for i in range(len(STAGES))))
