"""Where the processes of a run listen, as far as they have said so."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable


class Addresses:
    """Addresses by process name; whoever needs one can wait for it."""

    def __init__(self) -> None:
        self.all: dict[str, str] = {}
        """`host:port` by process name."""
        self._announced: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def announce(self, name: str, address: str) -> None:
        """Note an address and wake those that wait for it."""
        self.all[name] = address
        self._announced[name].set()

    async def known(self, names: Iterable[str]) -> None:
        """Wait until all these have announced themselves."""
        for name in names:
            await self._announced[name].wait()
