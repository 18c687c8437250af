"""Hands on together what came in while the hand-over before was under way.

Knows nothing of what is handed on. With a quick receiver batches are small and soon there;
with a slow one they grow by themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Batcher(Generic[_Item]):
    """A queue with one consumer that takes as much as it may.

    Args:
        handle: Takes a batch; what it raises ends `run`.
        most: The largest batch, by `size`. A single item may be larger.
        size: How much an item counts.
        before: Awaited before a batch is taken, which grows meanwhile; None = nothing.

    """

    def __init__(
        self,
        handle: Callable[[list[_Item]], Awaitable[None]],
        *,
        most: int,
        size: Callable[[_Item], int] = lambda _: 1,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._handle = handle
        self._most = most
        self._size = size
        self._before = before
        self._waiting: deque[_Item] = deque()
        self._there = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, item: _Item) -> None:
        """Queue an item for the next batch."""
        self._waiting.append(item)
        self._idle.clear()
        self._there.set()

    async def run(self) -> None:
        """Hand on batches for ever."""
        while True:
            await self._there.wait()
            if self._before is not None:
                await self._before()
            await self._handle(self._take())
            if not self._waiting:
                self._there.clear()
                self._idle.set()

    async def idle(self) -> None:
        """Wait until everything has been handed on."""
        await self._idle.wait()

    def _take(self) -> list[_Item]:
        batch = [self._waiting.popleft()]
        total = self._size(batch[0])
        while self._waiting and total + self._size(self._waiting[0]) <= self._most:
            batch.append(self._waiting.popleft())
            total += self._size(batch[-1])
        return batch
