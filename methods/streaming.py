"""The words of a served request: the `Chunk`s a server streams, the `StreamingClient` that reads them, the `Trace` of
their times, and what an engine offers that answers many of them at once (`Crowded`).

A client speaks one server's protocol and nothing else; `harness.load` decides when it is asked, and
`analysis.load_window` reads what the times say.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from methods.base import FinishReason, Generation, Method, Request

T = TypeVar("T")


@dataclass(frozen=True)
class Chunk:
    """What a server sent at once: one or several tokens, or none (a role, usage figures).

    `time_s` is `asyncio.get_running_loop().time()`, read as soon as the chunk came off the socket. `finish_reason`
    stands on the chunk that ends the answer. A client may yield a subclass with what its engine tells beside tokens.
    """

    token_ids: tuple[int, ...]
    time_s: float
    finish_reason: FinishReason | None = None


class StreamingClient(Protocol):
    """Sends one request at a time to a server; many of its streams run at once on one event loop."""

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Send the request and yield the answer's chunks as they come, one of them with the finish reason.

        Written as `async def` with `yield`. Whatever goes wrong is raised, with a message that says what; an answer
        that the server broke off must not look finished. Connections are closed in a `finally`, for a stream can be
        cancelled at any moment.
        """
        ...


class Crowded(Protocol):
    """An engine that answers many requests at once (`Engine.crowds`)."""

    def crowd(self, method: Method, work: Callable[[StreamingClient], Coroutine[Any, Any, T]]) -> T:
        """Do `work` with a client of this method's server; a `ServerError` in it says how the server ended, too."""
        ...

    def finished(self, chunks: Sequence[Chunk], elapsed_s: float) -> Generation:
        """What a whole answer comes to; its last token came `elapsed_s` seconds after the request was due."""
        ...

    def counters(self, method: Method) -> dict[str, float]:
        """What the method's server has counted since it began, to be read before and after a load."""
        ...


@dataclass(frozen=True)
class Trace:
    """The times of one request, in seconds since its load began; latencies are counted from `scheduled_s`.

    `scheduled_s` is when it was due: its arrival in an open loop, the moment its slot took it in a closed one.
    `started_s` is when the client was called, `ended_s` when the stream was over, `chunks` the time and the number
    of tokens of every chunk that held some. `error` says in a sentence why there is no whole answer.
    """

    scheduled_s: float
    started_s: float
    ended_s: float
    chunks: tuple[tuple[float, int], ...]
    error: str | None = None

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> Trace:
        """A trace read back from JSON, where it was written as `vars(trace)`."""
        return cls(**{**line, "chunks": tuple((time_s, tokens) for time_s, tokens in line["chunks"])})

    @property
    def n_output(self) -> int:
        return sum(tokens for _, tokens in self.chunks)

    @property
    def first_token_s(self) -> float:
        return self.chunks[0][0] if self.chunks else math.nan

    @property
    def last_token_s(self) -> float:
        return self.chunks[-1][0] if self.chunks else math.nan

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.scheduled_s

    @property
    def e2e_s(self) -> float:
        return self.last_token_s - self.scheduled_s

    @property
    def decode_s(self) -> float:
        return self.last_token_s - self.first_token_s

    @property
    def tpot_s(self) -> float:
        """(E2E − TTFT) / (tokens − 1), as everywhere; NaN for a single token."""
        return self.decode_s / (self.n_output - 1) if self.n_output > 1 else math.nan

    @property
    def start_lag_s(self) -> float:
        """By how much the generator itself was late."""
        return self.started_s - self.scheduled_s
