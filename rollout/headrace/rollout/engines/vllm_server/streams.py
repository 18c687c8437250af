"""The streams from one server: since when nothing comes of them, and how they are given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Streams:
    """Those that are under way.

    Args:
        now: Seconds of a monotonic clock.

    """

    def __init__(self, *, now: Callable[[], float]) -> None:
        self._now = now
        self._limits: set[asyncio.Timeout] = set()
        self._heard_at = 0.0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Be one of them for as long as the block runs.

        Raises:
            TimeoutError: They were ended.

        """
        if not self._limits:
            self.heard()
        async with asyncio.timeout(None) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    def heard(self) -> None:
        """Note that something has come."""
        self._heard_at = self._now()

    def excuse(self, since: float) -> None:
        """Count what has passed since a time as no silence: the server could send nothing."""
        now = self._now()
        self._heard_at = min(now, self._heard_at + now - since)

    def are_silent(self, silence_s: float) -> bool:
        """Whether there are some, and nothing has come for so long."""
        return bool(self._limits) and self._now() - self._heard_at > silence_s

    def end(self) -> None:
        """Give them up."""
        for limit in self._limits:
            if not limit.expired():  # else it ends already
                limit.reschedule(asyncio.get_running_loop().time())
