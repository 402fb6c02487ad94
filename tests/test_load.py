"""The load generator against a scripted client on a virtual clock: who is in flight when, arrivals, faults, the end."""

import asyncio
import math
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import virtual_clock
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.load import ClosedLoop, OpenLoop, drive
from methods.base import Refusal, Request
from methods.streaming import Chunk, Trace


def requests(n, tokens=4):
    return [Request(f"p{i}", (i + 1,), tokens) for i in range(n)]


@dataclass
class Scripted:
    """Answers by a plan for each prompt: seconds before each chunk of two tokens, or a fault after them."""

    plans: dict[str, tuple[float | str, ...]] = field(default_factory=dict)
    usual: tuple[float | str, ...] = (0.5, 0.25, 0.25)
    in_flight: int = 0
    seen: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    closed: int = 0

    async def stream(self, request):
        loop = asyncio.get_running_loop()
        self.in_flight += 1
        self.seen.append(self.in_flight)
        self.asked.append(request.prompt_id)
        try:
            for step in self.plans.get(request.prompt_id, self.usual):
                if step == "raise":
                    raise ConnectionError("the line is dead\nand more")
                if step == "mute":
                    raise ConnectionError
                if step == "cancel":
                    raise asyncio.CancelledError
                if step == "end":
                    return
                if step == "wrong clock":
                    yield Chunk((1,), time.time())
                elif step == "block":  # a client that holds up the whole loop
                    loop.now += 0.5
                else:
                    await asyncio.sleep(step)
                    yield Chunk((7, 8), loop.time())
            yield Chunk((), loop.time(), "length")
        finally:
            self.in_flight -= 1
            self.closed += 1


def load(client, asked, how, on_done=None, timeout_s=60.0):
    """The run and the answers in the order they ended."""
    answers = []

    def done(answer):
        answers.append(answer)
        if on_done:
            on_done(answer)

    return virtual_clock.run(drive(client, asked, how, done, timeout_s)), answers


def in_flight_at(traces, moment):
    return sum(trace.started_s <= moment < trace.ended_s for trace in traces)


def test_every_time_of_a_request():
    run, [answer] = load(Scripted(), requests(1), ClosedLoop(1))
    [trace] = run.traces
    assert answer.trace == trace and answer.index == 0
    assert answer.output_ids == (7, 8, 7, 8, 7, 8)
    assert trace == Trace(0, 0, pytest.approx(1), tuple((pytest.approx(time_s), 2) for time_s in (0.5, 0.75, 1.0)))
    assert (trace.ttft_s, trace.e2e_s, trace.n_output) == (pytest.approx(0.5), pytest.approx(1), 6)
    assert trace.tpot_s == pytest.approx(0.5 / 5)
    assert run.loop_lag_max_s == pytest.approx(0, abs=1e-6)
    assert Trace.from_line({**vars(trace), "chunks": [list(chunk) for chunk in trace.chunks]}) == trace


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 6),
    st.lists(
        st.one_of(
            st.lists(st.floats(0, 3), min_size=1, max_size=4).map(tuple),
            st.sampled_from([("raise",), (0.2, "raise"), ("mute",), (0.1, "end"), ("cancel",), (99.0,), ()]),
        ),
        min_size=6,
        max_size=25,
    ),
)
def test_closed_loop_holds_exactly_c_whatever_happens(c, plans):
    client = Scripted({f"p{i}": plan for i, plan in enumerate(plans)})
    run, answers = load(client, requests(len(plans)), ClosedLoop(c), timeout_s=5)
    assert max(client.seen) <= c and client.closed == len(plans)
    assert client.asked == [f"p{i}" for i in range(len(plans))]
    assert sorted(answer.index for answer in answers) == list(range(len(plans)))
    last_start = max(trace.started_s for trace in run.traces)
    for trace in run.traces:
        assert trace.scheduled_s == trace.started_s <= trace.ended_s <= trace.started_s + 5 + 1e-6
        assert trace.started_s == last_start or in_flight_at(run.traces, trace.started_s) >= min(c, len(plans))
        times = [trace.started_s, *(time_s for time_s, _ in trace.chunks), trace.ended_s]
        assert times == sorted(times)
    ends = sorted(trace.ended_s for trace in run.traces)
    starts = sorted(trace.started_s for trace in run.traces)
    assert starts[c:] == pytest.approx(ends[: len(plans) - c])  # the next starts the moment one ends
    for trace, plan in zip(run.traces, plans, strict=True):
        good = bool(plan) and all(isinstance(step, float) for step in plan) and sum(plan) < 5
        assert (trace.error is None) == good, trace


def test_a_slot_takes_the_next_only_when_the_record_is_there():
    client, started = Scripted({"p0": (2.0,)}), {}
    load(client, requests(5), ClosedLoop(2), lambda answer: started.setdefault(answer.index, list(client.asked)))
    assert started[1] == ["p0", "p1"] and started[2] == ["p0", "p1", "p2"]


def test_records_are_made_one_at_a_time_outside_the_loop():
    """Each record waits until the event loop has gone on meanwhile, so it cannot hold the loop up."""
    recorded, alone, beat = [], threading.Lock(), threading.Event()

    def record(answer):
        assert alone.acquire(blocking=False), "two records at a time"
        beat.clear()
        assert beat.wait(20), "the loop stood still"
        recorded.append(answer.index)
        alone.release()

    async def main():
        async def tick():
            while True:
                beat.set()
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        run = await drive(Scripted(usual=(0.001,)), requests(8), ClosedLoop(4), record, 10)
        ticking.cancel()
        return run

    run = asyncio.run(main())
    assert sorted(recorded) == list(range(8)) and 0 <= run.loop_lag_p99_s <= run.loop_lag_max_s


def test_a_failing_record_ends_the_load():
    def full(answer):
        raise OSError("no space left on the disk")

    client = Scripted()
    with pytest.raises(OSError, match="no space left"):
        load(client, requests(5), ClosedLoop(2), full)
    assert client.in_flight == 0 and len(client.asked) == 2


@pytest.mark.parametrize(
    ("plan", "said", "tokens"),
    [
        ((0.1, "raise"), "ConnectionError: the line is dead", 2),
        (("mute",), "ConnectionError", 0),
        ((0.1, "end"), "the stream ended without a finish reason, 2 tokens came", 2),
        (("end",), "the stream ended without a finish reason, no tokens came", 0),
        ((), "the answer holds no token", 0),
        ((0.5, 99.0), "no end within timeout_s=5, 2 tokens came", 2),
        (("cancel",), "the client cancelled the request", 0),
    ],
)
def test_a_failing_request_is_a_sentence_and_stops_no_other(plan, said, tokens):
    for how in (ClosedLoop(2), OpenLoop(1.0)):
        run, answers = load(Scripted({"p1": plan}), requests(6), how, timeout_s=5)
        assert [trace.error for trace in run.traces] == [None, said, None, None, None, None]
        assert run.traces[1].n_output == tokens and len(answers) == 6


def test_a_client_on_another_clock_is_found_out():
    client, open_then = Scripted({"p0": ("wrong clock",)}), []
    run, _ = load(client, requests(2), ClosedLoop(1), lambda answer: open_then.append(client.in_flight))
    assert open_then == [0, 0]  # the stream that is not read to its end is closed, not left to the collector
    assert "clock is not the event loop's" in run.traces[0].error and run.traces[1].error is None


@pytest.mark.parametrize("how", [ClosedLoop(3), OpenLoop(4.0)])
@settings(deadline=None, max_examples=15)
@given(after=st.floats(0, 5))
def test_cancelling_leaves_nothing_behind_and_loses_no_answer(how, after):
    client, answers = Scripted(), []

    async def main():
        task = asyncio.create_task(drive(client, requests(20), how, answers.append, 60))
        await asyncio.sleep(after)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    virtual_clock.run(main())  # refuses tasks that were left
    assert client.in_flight == 0
    assert all(answer.trace.error is None for answer in answers)


def test_cancelled_while_recording_waits_for_the_records():
    """Three answers are there and one is being recorded when the load is cancelled: all three are kept."""
    recorded, recording, cancelled = [], threading.Event(), threading.Event()
    client = Scripted(dict.fromkeys(("p0", "p1", "p2"), (0.0,)), usual=(60.0,))

    def record(answer):
        recording.set()
        assert cancelled.wait(20)
        recorded.append(answer.index)

    async def main():
        task = asyncio.create_task(drive(client, requests(9), ClosedLoop(3), record, 60))
        while not recording.is_set() or client.closed < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return sorted(recorded)

    assert asyncio.run(main()) == [0, 1, 2]


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 4.0])
def test_arrivals_have_the_distribution_they_claim(burstiness):
    arrivals = OpenLoop(rate=5.0, burstiness=burstiness, seed=1).arrivals(4000)
    gaps = [later - earlier for earlier, later in pairwise([0.0, *arrivals])]
    claimed = stats.expon(scale=0.2) if burstiness == 1 else stats.gamma(burstiness, scale=0.2 / burstiness)
    assert stats.kstest(gaps, claimed.cdf).pvalue > 0.01
    assert stats.kstest(gaps, stats.gamma(2.0, scale=0.1).cdf).pvalue < 1e-6  # the test can tell
    assert len(arrivals) / arrivals[-1] == pytest.approx(5.0, rel=4 / math.sqrt(4000 * burstiness))


@given(st.floats(0.01, 100), st.floats(0.1, 10), st.integers(0, 99), st.integers(0, 50), st.integers(0, 50))
def test_arrivals_are_fixed_by_the_seed(rate, burstiness, seed, n, more):
    how = OpenLoop(rate, burstiness, seed)
    arrivals = how.arrivals(n + more)
    assert arrivals == sorted(arrivals) and all(time_s >= 0 for time_s in arrivals)
    assert how.arrivals(n) == arrivals[:n]
    if n:
        assert OpenLoop(rate, burstiness, seed + 1).arrivals(n) != arrivals[:n]


def test_open_loop_does_not_slow_down_with_the_server():
    how = OpenLoop(rate=10.0, seed=3)
    for client in (Scripted(usual=(0.01,)), Scripted(usual=(50.0,))):
        run, _ = load(client, requests(30), how)
        assert [trace.scheduled_s for trace in run.traces] == pytest.approx(how.arrivals(30))
        assert [trace.started_s for trace in run.traces] == pytest.approx(how.arrivals(30))
        assert [trace.error for trace in run.traces] == [None] * 30
    assert max(client.seen) == 30
    run, _ = load(Scripted(usual=(0.0,)), requests(500), OpenLoop(rate=1e6))  # due faster than they can be started
    assert [trace.error for trace in run.traces] == [None] * 500


def test_a_late_generator_is_seen_and_counted():
    """The client holds the loop for half a second: whoever was due then is late, and its latency says so."""
    how = OpenLoop(rate=20.0, seed=0)
    run, _ = load(Scripted({"p3": ("block", 0.1)}, usual=(0.1,)), requests(20), how)
    due = how.arrivals(20)
    late = [trace for trace in run.traces if due[3] + 1e-6 < trace.scheduled_s < due[3] + 0.5]
    assert len(late) > 3
    for trace in late:
        assert trace.started_s == pytest.approx(due[3] + 0.5)
        assert trace.start_lag_s == pytest.approx(due[3] + 0.5 - trace.scheduled_s)
        assert trace.ttft_s == pytest.approx(trace.start_lag_s + 0.1)
    assert [trace.scheduled_s for trace in run.traces] == pytest.approx(due)
    assert 0.45 < run.loop_lag_max_s <= 0.5


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ClosedLoop(0), "concurrency=0 is not accepted: an integer of at least 1 is."),
        (lambda: OpenLoop(0.0), "rate=0.0 is not accepted: a number above 0 is."),
        (lambda: OpenLoop(math.nan), "rate=nan is not accepted: a number above 0 is."),
        (lambda: OpenLoop(math.inf), "rate=inf is not accepted: a number above 0 is."),
        (lambda: OpenLoop(1.0, -1.0), "burstiness=-1.0 is not accepted: a number above 0 is."),
        (lambda: load(Scripted(), [], ClosedLoop(1)), "a load of no requests is not accepted: at least one is needed."),
        (
            lambda: load(Scripted(), requests(3), ClosedLoop(4)),
            "concurrency=4 is not accepted for 3 requests: at most 3 is.",
        ),
        (
            lambda: load(Scripted(), requests(3), ClosedLoop(1), timeout_s=0),
            "timeout_s=0 is not accepted: a number above 0 is.",
        ),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(make, said):
    with pytest.raises(Refusal) as refusal:
        make()
    assert str(refusal.value) == said
