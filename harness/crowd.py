"""A block's requests as a load: many in flight, each with its record and, beside it, the times of its chunks.

A server that has just started is first asked the warm-up prompts by as many users at once as will be timed. Of a timed
request `traces.jsonl` has the trace, on disk before its slot takes the next, and `loads.jsonl`, once the block is
through, how late this process ran and what the server counted meanwhile. The first request that fails ends the block.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from harness.cells import CellSettings
from harness.load import Answer, ClosedLoop, Load, LoadRun, OpenLoop, drive
from harness.questions import Question, Questions
from harness.records import append_line
from harness.results import Step, Turn
from harness.sitting import Event
from methods.base import Method, Refusal
from methods.streaming import Crowded, StreamingClient

if TYPE_CHECKING:
    from harness.cell import Worker

TRACES, LOADS = "traces.jsonl", "loads.jsonl"
REQUEST_S = 3600.0  # the longest that a request may take
FILL = 2  # times over that slots are taken before a closed loop is steady, as `analysis.load_window` has it


def load_of(settings: CellSettings, n_requests: int | None = None) -> Load | None:
    """The load that a cell's requests are; None where they come one by one. Of so few requests that they do not fill
    the slots (what a killed sitting left) it is as many as there are."""
    if settings.request_rate is not None:
        return OpenLoop(settings.request_rate, settings.burstiness, settings.seed)
    slots = settings.concurrency if n_requests is None else min(settings.concurrency, n_requests)
    return ClosedLoop(slots) if settings.concurrency > 1 else None


def check_load(settings: CellSettings, n_requests: int) -> None:
    """Refuse a closed loop whose blocks are over before it is steady. AR has two, of half of its requests each.

    Args:
        settings: of a cell.
        n_requests: timed requests of an arm.
    """
    if not isinstance(load_of(settings), ClosedLoop):
        return
    slots, prompts = settings.concurrency, n_requests // settings.repeats
    if n_requests // 2 <= FILL * slots:
        repeats = -(-2 * (FILL * slots + 1) // prompts)
        raise Refusal(
            f"concurrency={slots} is not accepted with {prompts} prompts and repeats={settings.repeats}: blocks of "
            f"{n_requests // 2} requests end before {slots} slots are steady; repeats={repeats} or more is accepted."
        )


class Crowd:
    """Asks a block of steps all at once, as the cell's load has it. `folder` is the sitting's."""

    def __init__(self, worker: Worker, questions: Questions, folder: Path) -> None:
        self._worker, self._questions, self._folder = worker, questions, folder
        self._engine = cast(Crowded, worker.engine)

    def warm(self, method: Method, asked: Sequence[Question]) -> None:
        """Every slot twice, with prompts of all the lengths that will be timed; nothing of it is recorded."""
        slots = self._worker.sitting.settings.concurrency
        self._worker.events.send(Event("stage", text=f"warming up {method.arm}, {slots} at a time"))
        requests = [question.request for question in itertools.islice(itertools.cycle(asked), FILL * slots)]
        self._engine.crowd(method, lambda client: drive(client, requests, ClosedLoop(slots), _whole, REQUEST_S))

    def ask(self, method: Method, block: Sequence[Step], place: int) -> None:
        """The block's timed requests. `place` is its number in the sitting."""
        settings = self._worker.sitting.settings
        load = load_of(settings, len(block))
        assert load is not None
        before = self._engine.counters(method)
        with no_collection(), (self._folder / TRACES).open("ab") as file:

            def work(client: StreamingClient) -> Coroutine[Any, Any, LoadRun]:
                return self._drive(client, method, block, load, lambda line: append_line(file, {**line, "load": place}))

            run = self._engine.crowd(method, work)
        after = self._engine.counters(method)
        counted = {name: after[name] - value for name, value in before.items()}
        line = {"cell_id": settings.cell_id, "sitting": self._worker.sitting.number, "arm": method.arm, "load": place}
        lags = {"loop_lag_p99_s": run.loop_lag_p99_s, "loop_lag_max_s": run.loop_lag_max_s}
        with (self._folder / LOADS).open("ab") as file:
            append_line(file, {**line, "requests": len(block), **lags, **counted})

    async def _drive(
        self,
        client: StreamingClient,
        method: Method,
        block: Sequence[Step],
        load: Load,
        trace: Callable[[dict[str, Any]], None],
    ) -> LoadRun:
        worker, questions = self._worker, [self._questions.asked[Turn(step.prompt_id, step.turn)] for step in block]
        began, left = datetime.now(UTC), itertools.count(len(block) - 1, -1)

        def record(answer: Answer) -> None:
            step, question = block[answer.index], questions[answer.index]
            asked = worker.asked(method, question, "timed", step.repeat)
            keys = {name: getattr(asked, name) for name in ("cell_id", "sitting", "phase", "arm", "prompt_id")}
            trace({**keys, "turn": step.turn, "repeat": step.repeat, **vars(answer.trace)})
            _whole(answer)
            generation = self._engine.finished(answer.chunks, answer.trace.e2e_s)
            started = began + timedelta(seconds=answer.trace.started_s)
            worker.record(asked, question, generation, started.isoformat(timespec="milliseconds"))
            if next(left):
                worker.events.send(Event("started", method.arm))  # the others still are in flight

        worker.events.send(Event("started", method.arm))
        return await drive(client, [question.request for question in questions], load, record, REQUEST_S)


def _whole(answer: Answer) -> None:
    """Raise what went wrong with an answer, as the engine's own error where it was one."""
    from methods.engines.http import ServerError

    if answer.trace.error is not None:
        raise ServerError(answer.trace.error.removeprefix("ServerError: "))


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection inside the timed region."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
