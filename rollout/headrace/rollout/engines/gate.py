"""A gate with places behind it, for work that must be out of the way at times.

Who comes waits in line for a place. While the gate is held shut nobody is let in; those that are
in go on, and can be waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager


class Gate:
    """Lets in those who come first.

    Args:
        now: Seconds of a monotonic clock.

    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self.places: int | None = None
        """The most that may be in at a time; None = any number."""
        self.inside = 0
        self._now = now
        self._line: deque[asyncio.Future[None]] = deque()
        self._shut_since: float | None = None
        self._shut_s = 0.0
        self._left = asyncio.Event()

    @property
    def is_shut(self) -> bool:
        """Whether nobody is let in now."""
        return self._shut_since is not None

    @property
    def shut_s(self) -> float:
        """For how many seconds it has been shut so far."""
        running = 0.0 if self._shut_since is None else self._now() - self._shut_since
        return self._shut_s + running

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Wait for a place, and have it for as long as the block runs."""
        if self._line or not self._has_place():
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.append(place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():  # let in at the last moment
                    self._leave()
                raise
        else:
            self.inside += 1
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Let nobody in for as long as the block runs."""
        assert self._shut_since is None, "it is shut by one at a time"
        self._shut_since = self._now()
        try:
            yield
        finally:
            self._shut_s += self._now() - self._shut_since
            self._shut_since = None
            self._admit()

    async def empty(self) -> None:
        """Wait until nobody is in."""
        while self.inside:
            self._left.clear()
            await self._left.wait()

    def _has_place(self) -> bool:
        return self._shut_since is None and (self.places is None or self.inside < self.places)

    def _leave(self) -> None:
        self.inside -= 1
        self._left.set()
        self._admit()

    def _admit(self) -> None:
        while self._line and self._has_place():
            place = self._line.popleft()
            if not place.done():
                self.inside += 1
                place.set_result(None)
