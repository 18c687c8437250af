"""Blocking work off the event loop, in a thread that cannot hold up the end of the process.

The threads of `asyncio.to_thread` are joined at exit: one that hangs, in a driver of a storage or
a source of data, would keep the process from ever ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


def in_daemon(work: Callable[[], _Result], *, name: str) -> asyncio.Future[_Result]:
    """Begin work in a thread of its own, and return what will come of it.

    Whoever cancels the future leaves the thread alone.
    """
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

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome
