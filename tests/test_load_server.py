"""The load generator through real sockets, against a fake server; on a virtual clock but for the last test."""

import asyncio
import json

import pytest
import virtual_clock
from fake_server import FakeClient, FakeServer, truth

from analysis.load_window import Slos, closed_window, measure, open_window, saturated
from harness.load import ClosedLoop, OpenLoop, drive
from methods.base import Request
from methods.streaming import Trace


def requests(n, tokens=6):
    return [Request(f"p{i}", (i + 1, 2), tokens) for i in range(n)]


def load(server, asked, how, timeout_s=30.0, run=virtual_clock.run):
    answers = []

    async def main():
        async with server:
            return await drive(FakeClient(server.port), asked, how, answers.append, timeout_s)

    return run(main()), answers


def test_tokens_and_times_of_a_request():
    server = FakeServer(prefill_s=0.3, token_s=0.01, chunk=2)
    run, answers = load(server, requests(1), ClosedLoop(1))
    assert answers[0].output_ids == truth((1, 2), 6)
    [trace] = run.traces
    assert trace.error is None
    assert trace.ttft_s == pytest.approx(0.3)  # not the empty chunk that opens the stream
    assert trace.chunks == tuple(
        (pytest.approx(time_s), n) for time_s, n in [(0.3, 1), (0.32, 2), (0.34, 2), (0.35, 1)]
    )
    assert trace.tpot_s == pytest.approx(0.01)


def test_closed_loop_keeps_the_server_at_c():
    server = FakeServer(prefill_s=0.1, token_s=0.02)
    run, answers = load(server, requests(24), ClosedLoop(4))
    assert server.peak == 4 and len(server.served) == 24
    assert [answer.output_ids for answer in sorted(answers, key=lambda each: each.index)] == [
        truth((i + 1, 2), 6) for i in range(24)
    ]
    window = closed_window(run.traces, 4)
    assert tuple(window) == pytest.approx((0.2, 1.0))  # six waves of 0.2 s, without the first and the last
    steady = measure(run.traces, window, Slos(ttft_s=0.11))
    assert steady.concurrency == pytest.approx(4)
    assert steady.tokens_per_s == pytest.approx(4 * 6 / 0.2)
    assert steady.tpot_s.p99 == pytest.approx(0.02) and steady.ttft_s.p50 == pytest.approx(0.1)
    assert steady.goodput_per_s == steady.requests_per_s == pytest.approx(4 / 0.2)


def test_a_stall_counts_for_everyone_who_was_due():
    """Coordinated omission: the server stops for 0.5 s. A closed loop of one slot sees one slow request; latencies
    counted from the schedule see everyone who would have come."""
    how = OpenLoop(rate=40.0, burstiness=50.0, seed=0)
    run, _ = load(FakeServer(prefill_s=0.0, token_s=0.0, stall=(0.5, 1.0)), requests(80, tokens=1), how)
    for trace in run.traces:
        waited = 1.0 - trace.scheduled_s if 0.5 <= trace.scheduled_s < 1.0 else 0.0
        assert trace.ttft_s == pytest.approx(waited, abs=1e-6)
        assert trace.start_lag_s == pytest.approx(0, abs=1e-6)
    assert sum(trace.ttft_s > 0.1 for trace in run.traces) == pytest.approx(16, abs=4)
    closed, _ = load(FakeServer(prefill_s=0.025, token_s=0.0, stall=(0.5, 1.0)), requests(60, tokens=1), ClosedLoop(1))
    assert sum(trace.ttft_s > 0.1 for trace in closed.traces) == 1


def test_a_queue_in_the_server_belongs_to_the_latency_and_shows_as_saturation():
    """One request at a time at 50 a second: 20 a second are served, 100 a second queue up."""
    for rate, full in ((20.0, False), (100.0, True)):
        how = OpenLoop(rate, seed=5)
        server = FakeServer(prefill_s=0.02, token_s=0.0, max_batch=1)
        run, _ = load(server, requests(80, tokens=1), how, timeout_s=100)
        assert server.peak == 1
        window = open_window(run.traces)
        assert saturated(run.traces, window) == full
        steady = measure(run.traces, window)
        assert steady.requests_per_s == pytest.approx(50 if full else 20, rel=0.3)
        free_s = 0.0
        for trace in run.traces:
            free_s = max(free_s, trace.scheduled_s) + 0.02
            assert trace.e2e_s == pytest.approx(free_s - trace.scheduled_s, abs=1e-6)


FAULTS = {
    "500": "ConnectionError: the server answered 500: out of memory",
    "die": "ConnectionResetError|the stream ended without a finish reason, 1 token came",
    "cut": "the stream ended without a finish reason, 6 tokens came",
    "garbage": "ValueError: the server streamed what is no JSON",
    "hang": "no end within timeout_s=3, 1 token came",
    "silent": "no end within timeout_s=3, no tokens came",
    "empty": "the answer holds no token",
}


@pytest.mark.parametrize("how", [ClosedLoop(3), OpenLoop(rate=5.0)])
def test_faults_are_sentences_and_the_others_go_on(how):
    server = FakeServer(faults={f"p{i * 2}": fault for i, fault in enumerate(FAULTS)})
    run, answers = load(server, requests(16), how, timeout_s=3.0)
    assert len(answers) == 16 and server.running == server.connected == 0
    for index, trace in enumerate(run.traces):
        if index % 2 or index // 2 >= len(FAULTS):
            assert trace.error is None and trace.n_output == 6
        else:
            assert any(trace.error.startswith(said) for said in list(FAULTS.values())[index // 2].split("|")), trace
    assert measure(run.traces, open_window(run.traces, 0.0)).n_failed >= 6


def test_a_server_that_is_gone_is_a_sentence():
    async def main():
        async with FakeServer() as server:
            port = server.port
        return await drive(FakeClient(port), requests(3), ClosedLoop(2), lambda answer: None, 5)

    assert all(trace.error.startswith("ConnectionRefusedError") for trace in virtual_clock.run(main()).traces)


def test_cancelling_hangs_up():
    async def main():
        async with FakeServer(prefill_s=5.0) as server:
            answers = []
            task = asyncio.create_task(drive(FakeClient(server.port), requests(6), ClosedLoop(3), answers.append, 60))
            await asyncio.sleep(1)
            assert server.connected == server.running == 3
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.1)
            assert server.connected == server.running == 0 and not answers

    virtual_clock.run(main())


def test_on_a_real_clock_with_records_on_disk(tmp_path):
    """Nothing virtual: bounds that a busy machine keeps too, and traces that survive the disk."""
    path, asked = tmp_path / "traces.jsonl", requests(20)
    with path.open("w") as file:

        def record(answer):
            file.write(json.dumps(vars(answer.trace)) + "\n")
            file.flush()

        async def main():
            async with FakeServer(prefill_s=0.02, token_s=0.005) as server:
                return server, await drive(FakeClient(server.port), asked, ClosedLoop(4), record, 30)

        server, run = asyncio.run(main())
    traces = [Trace.from_line(json.loads(line)) for line in path.read_text().splitlines()]
    assert sorted(traces, key=lambda trace: trace.scheduled_s) == sorted(
        run.traces, key=lambda trace: trace.scheduled_s
    )
    assert server.peak == 4 and all(trace.error is None for trace in traces)
    assert all(trace.ttft_s >= 0.019 and trace.tpot_s >= 0.004 for trace in traces)
    steady = measure(traces, closed_window(traces, 4))
    assert 2.5 < steady.concurrency <= 4 + 1e-9 and 0 < steady.tokens_per_s < 4 / 0.004
    assert 0 <= run.loop_lag_p99_s <= run.loop_lag_max_s < 5
