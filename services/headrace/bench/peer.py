"""TransferQueue in a process of its own, used directly by its own client as the peer does.

verl's agent loops keep a prompt's state in a tag of its key: `pending`, `running`, `finished`,
one put each, and its trainer lists the whole partition to see what is finished.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from headrace.bench.child import running, tell
from headrace.bench.stopwatch import cpu_of

PARTITION: Final = "train"
POLL_S: Final = 2.0
"""verl's pause between two polls, unless it is told otherwise."""


@dataclass(frozen=True)
class Peer:
    """TransferQueue, and its process."""

    tq: Any
    """Its package, ready for `async_kv_*`."""
    cpu_s: Callable[[], float]
    """CPU seconds that its process has used."""


def _serve(pipe: Connection) -> None:
    """Host TransferQueue for its direct users."""
    from headrace.store.nodes import Nodes

    nodes = Nodes.start(unit_count=1)
    infos = [node.get_zmq_server_info() for node in (nodes.controller, *nodes.units)]
    tell(pipe, [(info.role.value, info.id, info.ip, info.ports) for info in infos])
    threading.Event().wait()


@asynccontextmanager
async def running_peer() -> AsyncIterator[Peer]:
    """Start TransferQueue, and be its client.

    Raises:
        UsageError: it does not come up.

    """
    import headrace.store.nodes  # noqa: F401 (sets TransferQueue's environment before it is loaded)

    async with running("TransferQueue", _serve) as child:
        import transfer_queue
        import transfer_queue.interface
        from transfer_queue.client import TransferQueueClient
        from transfer_queue.utils.enum_utils import Role
        from transfer_queue.utils.zmq_utils import ZMQServerInfo

        controller, unit = (
            ZMQServerInfo(Role(role), name, ip, ports)
            for role, name, ip, ports in await child.receive()
        )
        client = TransferQueueClient("bench", controller)
        client.initialize_storage_manager("SimpleStorage", {"zmq_info": {unit.id: unit}})
        transfer_queue.interface._TQ_CLIENT = client
        try:
            yield Peer(transfer_queue, cpu_of(child.pid))
        finally:
            client.close()


def prompt_tag(status: str) -> dict[str, Any]:
    """Give the tag of a prompt in a state."""
    return {"is_prompt": True, "status": status, "global_steps": 1}


async def put_prompts(tq: Any, keys: Sequence[str]) -> None:
    """Feed prompts one by one: token ids as a tensor, and a tag."""
    import torch

    for key in keys:
        await tq.async_kv_put(
            key, PARTITION, fields={"prompts": torch.arange(32)}, tag=prompt_tag("pending")
        )


async def put_status(tq: Any, keys: Sequence[str], status: str) -> None:
    """Move prompts to a state, a tag each, all at once on the event loop."""
    await asyncio.gather(*(tq.async_kv_put(key, PARTITION, tag=prompt_tag(status)) for key in keys))


async def finished(tq: Any, partition: str = PARTITION) -> list[str]:
    """Poll: list the partition and pick what is finished."""
    tags = (await tq.async_kv_list(partition)).get(partition, {})
    return [key for key, tag in tags.items() if tag.get("status") == "finished"]
