"""A hold on deletions: what is deleted meanwhile is noted, and goes when the hold is over.

A checkpoint's rows are those of one moment of the ledger, and are read a while after it; and rows
that were restored belong to a ledger that does not know them yet. Knows no rows, and deletes none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable


class Hold:
    """At most one hold at a time.

    Args:
        now: Seconds of a monotonic clock.

    """

    def __init__(self, *, now: Callable[[], float]) -> None:
        self._now = now
        self._hold_id = ""
        self._until_s = 0.0
        self._noted: dict[str, None] = {}
        self._changed = asyncio.Event()

    @property
    def hold_id(self) -> str:
        """The hold; empty if there is none, or if its time is over."""
        return self._hold_id if self._now() < self._until_s else ""

    @property
    def is_on(self) -> bool:
        """Whether deletions are held back."""
        return self.hold_id != ""

    @property
    def left_s(self) -> float:
        """Seconds until its time is over."""
        return max(self._until_s - self._now(), 0.0)

    @property
    def noted(self) -> list[str]:
        """What is to be deleted once it is over."""
        return list(self._noted)

    def begin(self, hold_id: str, hold_s: float) -> None:
        """Begin one, or give it so long from now. What an earlier one noted stays noted."""
        self._hold_id, self._until_s = hold_id, self._now() + hold_s
        self._change()

    def end(self, hold_id: str) -> None:
        """End it, if it is this one that is on."""
        if hold_id == self._hold_id:
            self._hold_id, self._until_s = "", 0.0
            self._change()

    def note(self, keys: Iterable[str]) -> None:
        """Let these be deleted later."""
        self._noted.update(dict.fromkeys(keys))
        self._change()

    def forget(self, keys: Iterable[str]) -> None:
        """They need not be deleted any more."""
        for key in keys:
            self._noted.pop(key, None)

    async def until_over(self) -> None:
        """Wait until no hold is on."""
        while self.is_on:
            await self._until_changed(self.left_s)

    async def until_due(self) -> None:
        """Wait until no hold is on and something is noted."""
        while (left_s := self.left_s) or not self._noted:
            await self._until_changed(left_s or None)

    async def _until_changed(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
