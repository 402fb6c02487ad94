"""An event loop on a clock of its own: it jumps to the next timer whenever nothing else is left to do, so that tests of
seconds take milliseconds and times are exact. Sockets within this process work on it: they are looked at before a jump.
"""

from __future__ import annotations

import asyncio
import selectors

SETTLE_S = 0.001  # real seconds that bytes have to arrive within


class _Selector(selectors.DefaultSelector):
    loop: VirtualClock

    def select(self, timeout=None):
        events = super().select(0 if timeout == 0 or len(self.get_map()) < 2 else SETTLE_S)
        if not events and timeout is None:
            raise AssertionError("nothing is left that could ever happen")
        if not events:
            self.loop.now += timeout
        return events


class VirtualClock(asyncio.SelectorEventLoop):
    """Starts at 1000 s, lest a test take the clock's zero for the load's. What goes to an executor runs at once."""

    def __init__(self):
        self.now = 1000.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self):
        return self.now

    def run_in_executor(self, executor, func, *args):
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run(coroutine):
    """Like `asyncio.run`, and no task may be left behind."""

    async def alone():
        try:
            return await coroutine
        finally:
            await asyncio.sleep(0)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks were left behind: {left}"

    with asyncio.Runner(loop_factory=VirtualClock) as runner:
        return runner.run(alone())
