"""Reading off the event loop, in a thread that cannot hold up the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.rpc.calls import Stopped
from headrace.rpc.waits import Waits

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Reader:
    """Runs blocking reads, each in a daemon thread of its own.

    The threads of `asyncio.to_thread` are joined at exit, so that a data source that hangs would
    keep the process from ever stopping.
    """

    waits: Waits
    """Where each read is registered."""
    stopping: asyncio.Event
    """Ends the wait for a read when set."""
    owner: str
    """The data set, as messages call it."""
    stall_after_s: float
    """Seconds after which a read counts as a stall."""

    async def read(self, work: Callable[[], _Result]) -> _Result:
        """Run `work` in a thread and return what it returns.

        Raises:
            Stopped: the process is to stop; the thread is left alone.

        """
        outcome = _start(work)
        stop = asyncio.ensure_future(self.stopping.wait())
        waited: tuple[asyncio.Future[Any], ...] = (outcome, stop)
        with self.waits.waiting(
            "rows",
            owner=self.owner,
            ends_when="the data source returns",
            stall_after_s=self.stall_after_s,
        ):
            try:
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if not outcome.done():
                    raise Stopped("told to stop while reading rows")
                return outcome.result()
            finally:
                stop.cancel()
                outcome.cancel()


def _start(work: Callable[[], _Result]) -> asyncio.Future[_Result]:
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_Result] = loop.create_future()

    def succeed(result: _Result) -> None:
        if not outcome.done():
            outcome.set_result(result)

    def fail(error: Exception) -> None:
        if not outcome.done():
            outcome.set_exception(error)

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            try:
                result = work()
            except Exception as error:  # whatever it is, it belongs to who waits
                loop.call_soon_threadsafe(fail, error)
            else:
                loop.call_soon_threadsafe(succeed, result)

    threading.Thread(target=run, name="reading", daemon=True).start()
    return outcome
