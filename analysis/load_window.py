"""What the traces of a load say: the stretch in which it was steady, and throughput, latencies, goodput there.

Filling and draining a server are not its steady state, so both are cut off. Tokens count by the time of their chunk,
wherever in the window their request began or ended; latencies are of the requests due within the window, however
long they took, so that long answers are not left out; requests per second and goodput count the answers whose last
token fell into it. Requests that failed have no latency and count for no throughput: their number stands beside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from methods.base import Refusal
from methods.streaming import Trace


class Window(NamedTuple):
    """From `start_s` up to but not including `end_s`, in seconds since the load began; empty where they meet."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def holds(self, time_s: float) -> bool:
        return self.start_s <= time_s < self.end_s

    def thirds(self) -> tuple[Window, Window, Window]:
        third = self.seconds / 3
        first, second = self.start_s + third, self.end_s - third
        return Window(self.start_s, first), Window(first, second), Window(second, self.end_s)


class Spread(NamedTuple):
    """`n` values: their mean and percentiles (interpolated linearly); NaN where there is none."""

    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True)
class Slos:
    """What a request has to keep to, in seconds, to count for goodput; None is no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None and not (isinstance(limit, int | float) and limit > 0):
                raise Refusal(f"slo {name}={limit} is not accepted: a number of seconds above 0 is.")

    @classmethod
    def from_mapping(cls, limits: Mapping[str, float]) -> Slos:
        """The objectives a user wrote, as `{"ttft_s": 0.5}`."""
        known = [each.name for each in fields(cls)]
        for name in limits:
            if name not in known:
                raise Refusal(f"slo {name!r} is not known: {', '.join(known)} are.")
        return cls(**limits)

    @classmethod
    def read(cls, words: Iterable[str]) -> Slos:
        """From `ttft_s=0.5` and the like, as on a command line."""
        limits: dict[str, float] = {}
        for word in words:
            name, _, value = word.partition("=")
            try:
                limits[name] = float(value)
            except ValueError:
                raise Refusal(f"slo {word!r} is not accepted: NAME=SECONDS is.") from None
        return cls.from_mapping(limits)

    @property
    def stated(self) -> bool:
        return any(limit is not None for limit in vars(self).values())

    def met_by(self, trace: Trace) -> bool:
        """Whether a request was answered within every limit; a single token has no TPOT to miss."""
        return trace.error is None and not any(
            limit is not None and getattr(trace, name) > limit for name, limit in vars(self).items()
        )


@dataclass(frozen=True)
class Steady:
    """The figures of a window. Rates are per second of it; `goodput_per_s` is NaN without a stated SLO.

    `n_requests` were due within the window, `n_failed` of them have no answer. `concurrency` is the time-averaged
    number of requests in flight. `inter_chunk_s` is between chunks, which hold `tokens_per_chunk` tokens each after
    the first, so it is no TPOT. `first_chunk_tokens` above 1 says that TPOT divides by tokens that TTFT paid for.
    `start_lag_s` is the generator's own: how much later than due a request was sent.
    """

    window: Window
    n_requests: int
    n_failed: int
    tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float
    concurrency: float
    ttft_s: Spread
    tpot_s: Spread
    inter_chunk_s: Spread
    e2e_s: Spread
    tokens_per_chunk: float
    first_chunk_tokens: float
    start_lag_s: Spread


def closed_window(traces: Sequence[Trace], concurrency: int) -> Window:
    """From when the slots had been taken twice over until the last request was started and slots began to stay empty.

    The first c requests start at once, in step, and their prefills queue up. A window from their first tokens on would
    have that work for nothing (a simulated server at c = 32 seems 5 % faster than it is, after 10c requests); by the
    start of request 2c the slots are out of step, or in the same step as at the window's end. So 2c requests or fewer
    leave an empty window; 10c are a sound number, more where a few answers are much longer than most.
    """
    starts = sorted(trace.started_s for trace in traces)
    if not starts:
        return Window(0.0, 0.0)
    return Window(starts[min(2 * concurrency, len(starts)) - 1], starts[-1])


def open_window(traces: Sequence[Trace], warmup_share: float = 0.1) -> Window:
    """Until the last arrival, without the first `warmup_share` of that time, in which the server fills."""
    if not 0 <= warmup_share < 1:
        raise Refusal(f"warmup_share={warmup_share} is not accepted: a number of at least 0 and below 1 is.")
    last = max((trace.scheduled_s for trace in traces), default=0.0)
    return Window(warmup_share * last, last)


def measure(traces: Sequence[Trace], window: Window, slos: Slos | None = None) -> Steady:
    """Everything a window says. `traces` are all of the load, those outside the window too."""
    return replace(pool([(traces, window)], slos), window=window)


def pool(loads: Sequence[tuple[Sequence[Trace], Window]], slos: Slos | None = None) -> Steady:
    """Several loads of one kind as one: rates over all of their windows, whose seconds stand in `window`."""
    slos = slos or Slos()
    due = [trace for traces, window in loads for trace in traces if window.holds(trace.scheduled_s)]
    answered = [trace for trace in due if trace.error is None]
    whole = [(trace, window) for traces, window in loads for trace in traces if trace.error is None]
    done = [trace for trace, window in whole if window.holds(trace.last_token_s)]
    chunks = [
        (time_s - before_s, tokens)
        for trace, window in whole
        for (before_s, _), (time_s, tokens) in zip(((math.nan, 0), *trace.chunks), trace.chunks, strict=False)
        if window.holds(time_s)
    ]
    later = [(gap_s, tokens) for gap_s, tokens in chunks if not math.isnan(gap_s)]
    seconds = sum(window.seconds for _, window in loads)
    return Steady(
        window=Window(0.0, seconds),
        n_requests=len(due),
        n_failed=len(due) - len(answered),
        tokens_per_s=_ratio(sum(tokens for _, tokens in chunks), seconds),
        requests_per_s=_ratio(len(done), seconds),
        goodput_per_s=_ratio(sum(map(slos.met_by, done)), seconds) if slos.stated else math.nan,
        concurrency=_ratio(sum(_request_seconds(traces, window) for traces, window in loads), seconds),
        ttft_s=spread(trace.ttft_s for trace in answered),
        tpot_s=spread(trace.tpot_s for trace in answered),
        inter_chunk_s=spread(gap_s for gap_s, _ in later),
        e2e_s=spread(trace.e2e_s for trace in answered),
        tokens_per_chunk=_ratio(sum(tokens for _, tokens in later), len(later)),
        first_chunk_tokens=_ratio(sum(trace.chunks[0][1] for trace in answered), len(answered)),
        start_lag_s=spread(trace.start_lag_s for trace in due),
    )


def spread(values: Iterable[float]) -> Spread:
    """The mean and percentiles of what is not NaN."""
    sample = np.asarray([value for value in values if not math.isnan(value)], dtype=np.float64)
    if not len(sample):
        return Spread(0, *[math.nan] * 5)
    return Spread(len(sample), float(sample.mean()), *map(float, np.quantile(sample, [0.5, 0.9, 0.95, 0.99])))


def in_flight(traces: Iterable[Trace], window: Window) -> float:
    """The time-averaged number of requests between their start and their end, failed ones too; NaN of no time."""
    return _ratio(_request_seconds(traces, window), window.seconds)


def _request_seconds(traces: Iterable[Trace], window: Window) -> float:
    overlaps = (min(trace.ended_s, window.end_s) - max(trace.started_s, window.start_s) for trace in traces)
    return sum(overlap for overlap in overlaps if overlap > 0)


def saturated(traces: Sequence[Trace], window: Window, burstiness: float = 1.0) -> bool:
    """Whether an open loop's queue kept growing: latencies then say how long the load lasted, not what the server does.

    The mean number in flight has to rise from each third of the window to the next, in all by more than
    √(n · max(1, 1 / burstiness)) for n arrivals, about what a queue at the edge moves by chance. Simulated with one
    server and Poisson arrivals: a server in use for 90 % of the time is called saturated in 4 % of loads of 60 requests
    and 1 % of 300; one asked for 1.25 times what it can give in 47 % and 94 %. Fewer requests tell less.
    """
    arrivals = sum(window.holds(trace.scheduled_s) for trace in traces)
    first, second, third = (in_flight(traces, part) for part in window.thirds())
    by_chance = math.sqrt(arrivals * max(1.0, 1 / burstiness))
    return first < second < third and third - first > by_chance


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan
