"""The steady-state window and its figures, on traces written by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.load_window import Slos, Window, closed_window, in_flight, measure, open_window, pool, saturated, spread
from methods.base import Refusal
from methods.streaming import Trace


def trace(start, *gaps, tokens=1, due=None, error=None):
    """A request started at `start` whose chunks come after these gaps."""
    times = np.cumsum([start, *gaps])
    chunks = tuple((float(time_s), tokens) for time_s in times[1:])
    return Trace(start if due is None else due, start, float(times[-1]), chunks, error)


def waves(n, c, seconds=1.0):
    """A closed loop of c slots, slightly apart, whose requests take `seconds`: first token after a half."""
    return [
        trace(slot * 0.1 + wave * seconds, seconds / 2, seconds / 4, seconds / 4)
        for wave in range(n)
        for slot in range(c)
    ]


def test_closed_window_cuts_ramp_and_drain():
    traces = waves(5, 3)
    window = closed_window(traces, 3)
    assert tuple(window) == pytest.approx((1.2, 4.2))  # the second wave is in; the last request starts
    assert measure(traces, window).concurrency == pytest.approx(3)
    whole = Window(0.0, max(each.ended_s for each in traces))
    assert measure(traces, whole).concurrency < 3
    assert measure(traces, window).tokens_per_s == pytest.approx(9)
    assert measure(traces, whole).tokens_per_s == pytest.approx(44 / 5.2)  # the end is not in it
    # What happens outside the window does not move the figures of chunks within it.
    slow = [replace(each, chunks=((each.ended_s, 99),)) if each.started_s >= 4 else each for each in traces]
    assert measure(slow, Window(0.7, 4.0)).tokens_per_s == measure(traces, Window(0.7, 4.0)).tokens_per_s


@pytest.mark.parametrize("apart", [0.0, 0.03125, 0.25])
@pytest.mark.parametrize("n", [3, 4, 10])
def test_closed_window_neither_owes_nor_is_given_prefill(n, apart):
    """Half of each request is prefill, 4 slots in or out of step: 12 tokens a second for any number of waves. From
    the first tokens on it would be up to 12 · (n − 1) / (n − 1.5)."""
    traces = [trace(slot * apart + wave, 0.5, 0.25, 0.25) for wave in range(n) for slot in range(4)]
    assert measure(traces, closed_window(traces, 4)).tokens_per_s == pytest.approx(12)


def test_a_straggler_does_not_hold_up_the_window():
    traces = [trace(0.0, 9.0), *(trace(float(second), 1.0) for second in range(9))]
    assert closed_window(traces, 2) == Window(2.0, 8.0)


def test_too_few_requests_leave_no_window_and_no_figures():
    traces = waves(2, 3)
    window = closed_window(traces, 3)
    assert window.seconds == 0
    steady = measure(traces, window, Slos(e2e_s=9))
    assert steady.n_requests == 0 and steady.ttft_s.n == 0
    nothing = (steady.tokens_per_s, steady.requests_per_s, steady.concurrency, steady.goodput_per_s, steady.ttft_s.p50)
    assert all(math.isnan(each) for each in nothing)
    assert closed_window([], 3).seconds == open_window([]).seconds == 0
    assert not saturated([], open_window([]))


def test_open_window_cuts_the_warm_up_share_and_the_drain():
    traces = [trace(float(second), 5.0) for second in range(11)]
    assert open_window(traces) == Window(1.0, 10.0)
    assert open_window(traces, 0.5) == Window(5.0, 10.0)
    steady = measure(traces, open_window(traces, 0.5))
    assert steady.n_requests == 5 and steady.concurrency == pytest.approx(5)  # Little: 1 a second for 5 s
    for share in (-0.1, 1.0, math.nan):
        with pytest.raises(Refusal, match=f"warmup_share={share} is not accepted"):
            open_window(traces, share)


def test_figures_by_their_definitions():
    traces = [
        trace(1.0, 0.5, 0.2, 0.2, tokens=3),
        trace(2.0, 1.0, 0.1, due=1.5),
        trace(3.0, 0.25, error="the server died"),
        trace(9.0, 1.0),
    ]
    steady = measure(traces, Window(1.0, 5.0), Slos(ttft_s=1.0))
    assert (steady.n_requests, steady.n_failed) == (3, 1)
    assert steady.ttft_s.mean == pytest.approx((0.5 + 1.5) / 2)  # from the schedule
    assert steady.e2e_s.mean == pytest.approx((0.9 + 1.6) / 2)
    assert steady.tpot_s.mean == pytest.approx((0.4 / 8 + 0.1 / 1) / 2)
    assert steady.inter_chunk_s.n == 3 and steady.inter_chunk_s.mean == pytest.approx(0.5 / 3)
    assert steady.tokens_per_s == (9 + 2) / 4 and steady.requests_per_s == 2 / 4
    assert steady.goodput_per_s == 1 / 4  # the second missed its TTFT, the third failed
    assert steady.tokens_per_chunk == pytest.approx(7 / 3) and steady.first_chunk_tokens == 2
    assert steady.start_lag_s.n == 3 and steady.start_lag_s.mean == pytest.approx(0.5 / 3)
    assert math.isnan(measure(traces, Window(1.0, 5.0)).goodput_per_s)


def test_tokens_count_by_chunk_even_if_their_request_ends_outside():
    long = trace(0.0, *[1.0] * 10)
    steady = measure([long], Window(3.0, 6.0))
    assert steady.tokens_per_s == 1 and steady.requests_per_s == 0 and steady.inter_chunk_s.n == 3


def test_a_single_token_has_no_tpot_and_a_failure_no_latency():
    assert math.isnan(Trace(0, 0, 1, ((1, 1),)).tpot_s)
    failed = Trace(0, 0, 1, (), "no")
    assert math.isnan(failed.ttft_s) and math.isnan(failed.e2e_s) and failed.n_output == 0


def test_slos():
    request = trace(0.0, 0.5, 0.1, 0.1)
    assert Slos(ttft_s=0.5, tpot_s=0.11, e2e_s=0.71).met_by(request)
    for missed in (Slos(ttft_s=0.49), Slos(tpot_s=0.09), Slos(e2e_s=0.69)):
        assert not missed.met_by(request)
    assert Slos(tpot_s=0.01).met_by(trace(0.0, 0.5)) and not Slos().stated
    assert not Slos(ttft_s=9).met_by(trace(0.0, 0.5, error="no"))
    assert Slos.from_mapping({"ttft_s": 0.5, "e2e_s": 2}) == Slos(ttft_s=0.5, e2e_s=2)
    with pytest.raises(Refusal, match=r"^slo 'ttft_ms' is not known: ttft_s, tpot_s, e2e_s are\.$"):
        Slos.from_mapping({"ttft_ms": 500})
    for wrong in (0, -1.0, math.nan, "fast"):
        with pytest.raises(Refusal, match=f"^slo tpot_s={wrong} is not accepted: a number of seconds above 0 is"):
            Slos.from_mapping({"tpot_s": wrong})


requests_of_any_kind = st.lists(
    st.builds(
        trace,
        st.floats(0, 50),
        st.floats(0.01, 5),
        st.floats(0.01, 5),
        tokens=st.integers(1, 9),
        error=st.sampled_from([None, None, None, "no"]),
    ),
    min_size=1,
    max_size=30,
)


@given(requests_of_any_kind, st.floats(0, 30), st.floats(0.1, 30), st.floats(0.1, 30), st.floats(0.1, 5))
def test_windows_add_up_and_goodput_is_bounded(traces, start, first, second, limit):
    """Tokens, requests and time in flight of two neighbouring windows are those of both together."""
    left, right = Window(start, start + first), Window(start + first, start + first + second)
    parts, both = [measure(traces, each) for each in (left, right)], measure(traces, Window(left.start_s, right.end_s))
    for name in ("tokens_per_s", "requests_per_s", "concurrency"):
        summed = sum(getattr(part, name) * part.window.seconds for part in parts)
        assert summed == pytest.approx(getattr(both, name) * both.window.seconds, abs=1e-6)
    assert sum(part.n_requests for part in parts) == both.n_requests
    tight, loose = (measure(traces, left, Slos(ttft_s=x)).goodput_per_s for x in (limit, 2 * limit))
    assert 0 <= tight <= loose <= parts[0].requests_per_s
    assert 0 <= in_flight(traces, left) <= len(traces)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_are_numpys(values):
    found = spread([*values, math.nan])
    assert found.n == len(values) and found.mean == pytest.approx(np.mean(values))
    assert list(found[2:]) == pytest.approx(np.percentile(values, [50, 90, 95, 99]).tolist())


def queue(rate, capacity, n, seed, burstiness=1.0):
    """One server, gamma arrivals: when each request is due and done."""
    free, traces = 0.0, []
    gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (rate * burstiness), n)
    for due in np.cumsum(gaps).tolist():
        free = max(free, due) + 1 / capacity
        traces.append(Trace(due, due, free, ((free, 1),)))
    return traces


def test_saturation_tells_a_growing_queue_from_a_busy_one():
    def share(rate, n, burstiness=1.0):
        runs = [queue(rate, 10.0, n, seed, burstiness) for seed in range(100)]
        return np.mean([saturated(traces, open_window(traces), burstiness) for traces in runs])

    assert share(5.0, 300) == 0 and share(8.0, 60) <= 0.02 and share(9.0, 60) <= 0.08
    assert share(12.5, 300) > 0.88 and share(15.0, 300) == 1 and share(20.0, 60) > 0.9
    assert share(9.0, 60, 0.25) <= 0.06 and share(15.0, 300, 0.25) > 0.85  # bursts move a queue more
    assert share(9.0, 60, 4.0) <= 0.01 and share(12.5, 300, 4.0) > 0.95


def test_a_stall_that_passes_is_no_saturation():
    """Requests pile up in the middle and are worked off, quickly or not yet wholly."""
    due = np.arange(0, 20, 0.05).tolist()
    quick = [trace(t, 10 - t if 4 <= t < 10 else 0.1) for t in due]
    slow = [trace(t, max(0.1, (10 - t) + 0.15 * (t - 4) * 20) if 4 <= t < 10 else 0.1) for t in due]
    for traces in (quick, slow):
        window = open_window(traces, 0.0)
        assert not saturated(traces, window)
    first, second, third = (in_flight(slow, part) for part in window.thirds())
    assert first + math.sqrt(len(slow)) < third < second
    assert saturated([trace(t, t) for t in np.arange(0.1, 40, 0.05).tolist()], window)


def test_several_loads_are_pooled_by_their_seconds():
    short, long = waves(5, 3), waves(20, 3, seconds=2.0)
    loads = [(traces, closed_window(traces, 3)) for traces in (short, long)]
    apart = [measure(*load) for load in loads]
    both = pool(loads, Slos(e2e_s=1.5))
    seconds = [each.window.seconds for each in apart]
    assert both.window.seconds == pytest.approx(sum(seconds))
    assert both.n_requests == sum(each.n_requests for each in apart)
    for name in ("tokens_per_s", "requests_per_s", "concurrency"):
        weighed = sum(getattr(each, name) * span for each, span in zip(apart, seconds, strict=True)) / sum(seconds)
        assert getattr(both, name) == pytest.approx(weighed)
    assert both.e2e_s.n == both.n_requests and both.goodput_per_s < both.requests_per_s
    assert math.isnan(pool([]).tokens_per_s)
    assert pool(loads[:1]).tokens_per_s == apart[0].tokens_per_s


def test_objectives_are_read_from_words():
    assert Slos.read(["ttft_s=0.5", "e2e_s=2"]) == Slos(ttft_s=0.5, e2e_s=2.0) and Slos.read([]) == Slos()
    for word, said in (("ttft_s=x", "NAME=SECONDS is"), ("ttft=1", "is not known"), ("tpot_s=0", "above 0 is")):
        with pytest.raises(Refusal, match=said):
            Slos.read([word])
