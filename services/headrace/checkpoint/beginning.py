"""A snapshot that is being begun: callers come and go, the work goes on.

    BeginSnapshot ──► begun anew ──────────────────────┐
    the same again, before that is done ──► joined ──► the same answer

A caller whose deadline is shorter than the work asks again; were the work begun anew each time, it
would never be done. Knows nothing of what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from headrace.errors import NotReadyError
from headrace.rpc.lasting import lasting

_T = TypeVar("_T")


class Beginning(Generic[_T]):
    """The last thing that somebody wanted to be begun."""

    def __init__(self) -> None:
        self._wish: Hashable = None
        self._task: asyncio.Task[_T] | None = None

    async def join(self, wish: Hashable, begin: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Wait for the work that this wish has begun; begin it if none is under way.

        Raises what the work does. Whoever waits may be cancelled without ending it.

        Raises:
            NotReadyError: it was ended.

        """
        task = self._task
        if task is None or task.done() or wish != self._wish:
            task = asyncio.create_task(begin())
            self._wish, self._task = wish, task
        try:
            return await lasting(task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if task.cancelled() and not (waiting and waiting.cancelling()):
                raise NotReadyError("something else has begun meanwhile: ask again") from None
            raise

    async def end(self) -> None:
        """End the work, if any is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
