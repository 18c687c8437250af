"""Reading off the event loop, in a thread that cannot hold up the end of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.rpc.calls import Stopped
from headrace.rpc.daemon import in_daemon
from headrace.rpc.waits import Waits

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Reader:
    """Runs blocking reads, each in a daemon thread of its own."""

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
        outcome = in_daemon(work, name="reading")
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
