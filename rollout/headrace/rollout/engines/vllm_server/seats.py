"""Which server a request goes to, and when.

Who comes first is served first. Requests of one group go to one server while it has room, as it
keeps what it has computed of their prompt; otherwise to the one with the fewest. When no server is
in use nobody waits.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from headrace.rollout.engines.base import EngineLostError
from headrace.rollout.engines.vllm_server.server import Server


class Seats:
    """Room at servers.

    Args:
        servers: All there are.
        per_server: Requests at a time.

    """

    def __init__(self, servers: Sequence[Server], *, per_server: int) -> None:
        self._servers = servers
        self._per_server = per_server
        self._line: deque[tuple[str, Sequence[Server], asyncio.Future[Server]]] = deque()
        self._homes: dict[str, Server] = {}
        """Where the last request of a group went to."""
        self._seated: Counter[str] = Counter()
        """Requests of a group that are at servers."""

    @property
    def room(self) -> int:
        """How many requests there can be at a time."""
        return self._per_server * sum(server.is_in_use for server in self._servers)

    @asynccontextmanager
    async def taken(self, group: str, failed: Sequence[Server] = ()) -> AsyncIterator[Server]:
        """Wait for a server, and be one of its requests for as long as the block runs.

        Args:
            group: Whose request it is.
            failed: Where it was before, in vain; those come last.

        Raises:
            EngineLostError: None is in use.

        """
        place: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
        self._line.append((group, failed, place))
        self.hand_out()
        try:
            server = await place
        except asyncio.CancelledError:
            # Seated at the last moment, if not told then that no server can be used.
            if place.done() and not place.cancelled() and place.exception() is None:
                self._leave(group, place.result())
            raise
        try:
            yield server
        finally:
            self._leave(group, server)

    def hand_out(self) -> None:
        """Seat those for whom there is room. To be called when a server comes or goes."""
        if not any(server.is_in_use for server in self._servers):
            reasons = "; ".join(f"{server.name}: {server.why_out}" for server in self._servers)
            for *_, place in self._line:
                if not place.done():
                    place.set_exception(EngineLostError(f"no server can be used: {reasons}"))
            self._line.clear()
        while self._line:
            group, failed, place = self._line[0]
            server = self._best(group, failed)
            if server is None:
                return
            self._line.popleft()
            if not place.done():
                server.in_flight += 1
                self._homes[group] = server
                self._seated[group] += 1
                place.set_result(server)

    def _best(self, group: str, failed: Sequence[Server]) -> Server | None:
        free = [
            server
            for server in self._servers
            if server.is_in_use and server.in_flight < self._per_server
        ]
        home = self._homes.get(group)
        return min(
            free,
            key=lambda server: (server in failed, server is not home, server.in_flight),
            default=None,
        )

    def _leave(self, group: str, server: Server) -> None:
        server.in_flight -= 1
        self._seated[group] -= 1
        if not self._seated[group]:
            del self._seated[group], self._homes[group]
        self.hand_out()
