"""Many requests in flight: a closed loop that keeps c of them going, or an open loop whose arrivals do not wait.

How a serving engine uses it: its client is a `methods.streaming.StreamingClient`, one `async def stream(request)`
that yields `Chunk`s, written for one protocol. The rest is here:

    load = ClosedLoop(concurrency=8)  # or OpenLoop(rate=4.0, burstiness=1.0, seed=0)
    await drive(client, warmup, load, record_warmup, timeout_s=600)  # at the measured concurrency
    run = await drive(client, requests, load, record, timeout_s=600)
    window = closed_window(run.traces, 8)  # analysis.load_window; open_window for an open loop
    steady = measure(run.traces, window, Slos(ttft_s=0.5))

`record` gets every answer, failed ones too, and returns once it is on disk: only then does the request's slot take
the next one. It is called in a thread, one answer at a time, so that syncing to disk delays no other stream's
clock. A record's `Generation` takes `answer.output_ids` and the trace's `ttft_s` and `decode_s`; the trace itself is
kept as `vars(answer.trace)`. The server's counters are read before and after `drive`, as a difference.

A closed loop says what a server gives c users who wait for their answers, and slows down with it. An open loop says
what it gives users who come at a rate of their own: every arrival is laid down before the first request is sent, and
latencies count from it, so that the requests a slow server kept waiting are not left out ("coordinated omission").
The generator is one process and can be the slow one: `Trace.start_lag_s` is how late a request was sent,
`LoadRun.loop_lag_max_s` how late the event loop came to anything at all. Neither loop sends a request twice.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from methods.base import Refusal, Request
from methods.streaming import Chunk, StreamingClient, Trace

BEAT_S = 0.02  # how often the event loop's lag is looked at


@dataclass(frozen=True)
class Answer:
    """A request that ended, well or not. `index` is its place among the requests of its load."""

    index: int
    request: Request
    chunks: tuple[Chunk, ...]
    trace: Trace

    @property
    def output_ids(self) -> tuple[int, ...]:
        return tuple(token for chunk in self.chunks for token in chunk.token_ids)


@dataclass(frozen=True)
class LoadRun:
    """What a load left: a trace per request, in their order, and how late the event loop ran (seconds)."""

    traces: tuple[Trace, ...]
    loop_lag_p99_s: float
    loop_lag_max_s: float


class Load(Protocol):
    """When requests are sent."""

    def check(self, n_requests: int) -> None:
        """Raise a `Refusal` where so many requests do not make such a load."""
        ...

    async def send(self, asker: Asker, group: asyncio.TaskGroup) -> None:
        """Ask every request, in order, and return when the last was handed on."""
        ...


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` slots, each of which takes the next request the moment its last one is recorded."""

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise Refusal(f"concurrency={self.concurrency} is not accepted: an integer of at least 1 is.")

    def check(self, n_requests: int) -> None:
        if n_requests < self.concurrency:
            raise Refusal(
                f"concurrency={self.concurrency} is not accepted for {n_requests} requests: at most {n_requests} is."
            )

    async def send(self, asker: Asker, group: asyncio.TaskGroup) -> None:
        waiting = iter(range(len(asker.requests)))

        async def slot() -> None:
            for index in waiting:
                await asker.ask(index)

        await asyncio.wait([group.create_task(slot()) for _ in range(self.concurrency)])


@dataclass(frozen=True)
class OpenLoop:
    """Arrivals at `rate` requests a second with gamma-distributed gaps of shape `burstiness`: 1 is a Poisson process,
    below 1 comes in bursts, above 1 is more even (vLLM's meaning of the word)."""

    rate: float
    burstiness: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("rate", self.rate), ("burstiness", self.burstiness)):
            if not (math.isfinite(value) and value > 0):
                raise Refusal(f"{name}={value} is not accepted: a number above 0 is.")

    def arrivals(self, n_requests: int) -> list[float]:
        """When each request is due, in seconds from the beginning. The same seed gives the same arrivals, and fewer
        requests their first ones."""
        draw = random.Random(self.seed)
        gaps = (draw.gammavariate(self.burstiness, 1 / (self.rate * self.burstiness)) for _ in range(n_requests))
        return list(itertools.accumulate(gaps))

    def check(self, n_requests: int) -> None:
        """Any number of requests will do."""

    async def send(self, asker: Asker, group: asyncio.TaskGroup) -> None:
        asked = []
        for index, due_s in enumerate(self.arrivals(len(asker.requests))):
            await asyncio.sleep(asker.start_s + due_s - asker.clock())
            asked.append(group.create_task(asker.ask(index, asker.start_s + due_s)))
        await asyncio.wait(asked)


async def drive(
    client: StreamingClient,
    requests: Sequence[Request],
    load: Load,
    on_done: Callable[[Answer], None],
    timeout_s: float,
) -> LoadRun:
    """Put a load on a server. A request that fails, or takes more than `timeout_s` seconds from its start, ends with
    a sentence in its trace and disturbs no other.

    `on_done` is called once per request, outside the event loop, never twice at a time; what it raises ends the load.
    Cancelling ends every stream, waits for answers that are being recorded, and leaves no task behind.
    """
    if not requests:
        raise Refusal("a load of no requests is not accepted: at least one is needed.")
    if not timeout_s > 0:
        raise Refusal(f"timeout_s={timeout_s} is not accepted: a number above 0 is.")
    load.check(len(requests))
    clock = asyncio.get_running_loop().time
    lags: list[float] = []
    with ThreadPoolExecutor(1, thread_name_prefix="record") as recorder:
        asker = Asker(client, requests, on_done, timeout_s, recorder, clock, clock())
        try:
            async with asyncio.TaskGroup() as group:
                beat = group.create_task(_beat(clock, lags))
                await load.send(asker, group)
                beat.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
    lags.sort()
    traces = tuple(asker.traces[index] for index in range(len(requests)))
    return LoadRun(traces, lags[math.ceil(0.99 * len(lags)) - 1] if lags else 0.0, max(lags, default=0.0))


@dataclass
class Asker:
    """Asks single requests for a load: the stream, its times, its end, and its record. `clock` gives seconds, and
    was at `start_s` when the load began."""

    client: StreamingClient
    requests: Sequence[Request]
    on_done: Callable[[Answer], None]
    timeout_s: float
    recorder: ThreadPoolExecutor
    clock: Callable[[], float]
    start_s: float
    traces: dict[int, Trace] = field(default_factory=dict)

    async def ask(self, index: int, due_s: float | None = None) -> None:
        """One request, from its start to its record; it is due now, or was at `due_s` of the clock."""
        request, chunks = self.requests[index], list[Chunk]()
        started_s = self.clock()
        error = await self._read(request, chunks)
        ended_s = self.clock()
        trace = Trace(
            scheduled_s=(started_s if due_s is None else due_s) - self.start_s,
            started_s=started_s - self.start_s,
            ended_s=ended_s - self.start_s,
            chunks=tuple((chunk.time_s - self.start_s, len(chunk.token_ids)) for chunk in chunks if chunk.token_ids),
            error=error,
        )
        answer = Answer(index, request, tuple(chunks), trace)
        recorded = asyncio.get_running_loop().run_in_executor(self.recorder, self.on_done, answer)
        recorded.add_done_callback(_heard)
        await asyncio.shield(recorded)  # an answer that is there is kept, even when the load is cancelled now
        self.traces[index] = trace

    async def _read(self, request: Request, chunks: list[Chunk]) -> str | None:
        """Read the whole stream into `chunks`; what went wrong, if anything did."""
        task, limit = asyncio.current_task(), asyncio.timeout(self.timeout_s)
        assert task is not None
        try:
            async with limit, aclosing(self.client.stream(request)) as stream:
                latest_s = self.clock()
                async for chunk in stream:
                    if not latest_s <= chunk.time_s <= self.clock():
                        return f"the client's clock is not the event loop's: a chunk came at {chunk.time_s} s"
                    latest_s = chunk.time_s
                    chunks.append(chunk)
        except asyncio.CancelledError:
            if task.cancelling():
                raise
            return "the client cancelled the request"
        except Exception as error:
            if limit.expired():
                return f"no end within timeout_s={self.timeout_s:g}, {_tokens(chunks)} came"
            said = str(error).strip().splitlines()
            return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
        if all(chunk.finish_reason is None for chunk in chunks):
            return f"the stream ended without a finish reason, {_tokens(chunks)} came"
        return None if any(chunk.token_ids for chunk in chunks) else "the answer holds no token"


def _heard(recorded: asyncio.Future[None]) -> None:
    """What recording raised ends the load once; a second one, of a request that was cancelled by then, is no news."""
    if not recorded.cancelled():
        recorded.exception()


def _tokens(chunks: Sequence[Chunk]) -> str:
    n = sum(len(chunk.token_ids) for chunk in chunks)
    return f"{n or 'no'} token{'s' * (n != 1)}"


async def _beat(clock: Callable[[], float], lags: list[float]) -> None:
    """By how much a sleep of 20 ms is late, over and over."""
    while True:
        due_s = clock() + BEAT_S
        await asyncio.sleep(BEAT_S)
        lags.append(clock() - due_s)
