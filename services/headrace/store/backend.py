"""A TransferQueue that runs in this process: its nodes, a client of them, and what is asked of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Self

from headrace.rpc.waits import Waits
from headrace.store.nodes import Nodes
from headrace.store.queue import TransferQueue


@dataclass(frozen=True)
class Backend:
    """One of them; there are two while rows are restored."""

    nodes: Nodes
    client: Any
    queue: TransferQueue

    @classmethod
    async def start(
        cls, client_id: str, *, unit_count: int, timeout_s: float, waits: Waits
    ) -> Self:
        """Start it; takes seconds. Then `open_probe` of its queue.

        Raises:
            UsageError: TransferQueue is not installed.

        """
        nodes = await asyncio.to_thread(Nodes.start, unit_count=unit_count)
        client = nodes.attach(client_id)
        queue = TransferQueue(client, unit_count=unit_count, timeout_s=timeout_s, waits=waits)
        return cls(nodes, client, queue)

    async def close(self) -> None:
        """Let the calls in flight end, by their deadlines, and stop it. Its rows are gone."""
        await self.queue.retire()
        await asyncio.to_thread(self.client.close)
        await asyncio.to_thread(self.nodes.close)
