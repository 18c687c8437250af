"""Wakes those who wait for the coordinator's state to change. Knows nothing of the state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


class Changes:
    """Belongs to one event loop."""

    def __init__(self, stopping: asyncio.Event) -> None:
        self._changed = asyncio.Event()
        self._stopping = stopping

    def wake(self) -> None:
        """Have everybody look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def next(self) -> None:
        """Wait until something changes."""
        await self._changed.wait()

    async def until(self, look: Callable[[], _T | None], wait_s: float) -> _T | None:
        """Look, and look again after each change, until there is an answer or time is up."""
        answer = look()
        if answer is not None or wait_s <= 0:
            return answer
        try:
            async with asyncio.timeout(wait_s):
                while answer is None and not self._stopping.is_set():
                    await self.next()
                    answer = look()
        except TimeoutError:
            return look()
        return answer
