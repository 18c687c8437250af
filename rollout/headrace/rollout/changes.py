"""Something has changed: look again."""

from __future__ import annotations

import asyncio


class Changes:
    """Wakes everybody who waits for the next change.

    No change is missed by one who looks and then waits without giving way in between.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake those who wait now."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._next.wait()
