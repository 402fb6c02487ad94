"""What the terminal shows while cells run: one moving line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness.sitting import Event

PLAIN_EVERY_S = 10.0


@dataclass
class Rate:
    """An arm's running counts in this sitting."""

    later_tokens: int = 0
    decode_s: float = 0.0
    rounds: int = 0
    accepted: int = 0

    def add(self, event: Event) -> None:
        self.later_tokens += event.tokens - 1
        self.decode_s += event.decode_s
        self.rounds += event.rounds
        self.accepted += event.accepted

    @property
    def tokens_per_s(self) -> float:
        """Tokens after each request's first over the time they took; NaN before there are any."""
        return self.later_tokens / self.decode_s if self.decode_s else math.nan

    @property
    def acceptance_length(self) -> float:
        """1 + accepted a round so far, over uncut rounds; NaN before there is one."""
        return 1 + self.accepted / self.rounds if self.rounds else math.nan

    def __str__(self) -> str:
        words = []
        if self.decode_s:
            words.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.rounds:
            words.append(f"acceptance length {self.acceptance_length:.2f}")
        return ", ".join(words)


@dataclass
class Progress:
    """The line of one sitting: cell k of n, arm, requests, speed, acceptance, time left."""

    console: Console
    title: str
    total: int
    done: int = 0
    arm: str = ""
    stage: str = "starting"
    began: float = field(default_factory=time.monotonic)
    rates: dict[str, Rate] = field(default_factory=dict)
    _first: float | None = None
    _printed: float = 0.0
    _live: Live | None = None

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._live = Live(Text(self.title), console=self.console, transient=True, refresh_per_second=4)
            self._live.start()
        else:
            self.console.print(Text(f"{self.title}: {self.total} requests"), soft_wrap=True)
            self._printed = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def take(self, event: Event) -> None:
        if event.kind == "stage":
            self.stage = event.text
            if event.total:
                self.done, self.total, self._first = 0, event.total, None
        elif event.arm is not None:
            self.arm = event.arm
        if event.kind == "done" and event.counted:
            self.done += 1
            self._first = self._first or time.monotonic() - event.decode_s
        if event.kind == "done" and event.timed:
            self.stage = ""
            self.rates.setdefault(self.arm, Rate()).add(event)

    def show(self) -> None:
        """Refresh the line; call it as often as you like."""
        now = time.monotonic()
        if self._live is not None:
            self._live.update(Text(str(self), no_wrap=True, overflow="ellipsis"))
        elif now - self._printed >= PLAIN_EVERY_S:
            self._printed = now
            self.console.print(Text(str(self)), soft_wrap=True)

    def __str__(self) -> str:
        parts = [f"{self.title}: {self.done}/{self.total}"]
        if self.stage:
            parts.append(self.stage)
        if self.arm:
            rate = str(self.rates.get(self.arm, ""))
            parts.append(f"{self.arm}{': ' if rate else ''}{rate}")
        if self._first is not None and self.done:
            left = (time.monotonic() - self._first) / self.done * (self.total - self.done)
            parts.append(f"{clock(left)} left")
        return ", ".join(parts)

    @property
    def elapsed(self) -> str:
        return clock(time.monotonic() - self.began)


def clock(seconds: float) -> str:
    """A span of time as a person says it."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
