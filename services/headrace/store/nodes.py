"""TransferQueue's controller and storage units, in this process, without a Ray cluster.

Written for TransferQueue 0.1.11. The client side is upstream's own pattern; the server side takes
the classes from under their `@ray.remote` and starts them as threads of this process. It does so
because Ray is only a launcher there: all traffic is ZeroMQ. Nothing here calls `ray.init`.

The sockets are unauthenticated and speak pickle, so they are bound to loopback only.

Importing this module sets TransferQueue's environment; importing TransferQueue itself takes
seconds and happens in `Nodes.start`. Knows nothing of trajectories.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from headrace.errors import UsageError

LOOPBACK = "127.0.0.1"

ENVIRONMENT: Mapping[str, str] = {
    # With more threads the controller spends its time in OpenMP barriers: at 100k keys a put
    # takes ten times as long.
    "OMP_NUM_THREADS": "1",
    # More than there are cores gives a warning per call.
    "TQ_NUM_THREADS": "1",
    "TQ_CLIENT_ZMQ_IO_THREADS": "1",
    # Asking for a key that is not there is a WARNING to TransferQueue, and normal to us.
    "TQ_LOGGING_LEVEL": "ERROR",
    # Imported, not run; it is not to report anything either.
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""What TransferQueue reads while it is imported. A value that the user has set stays."""

for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)


@dataclass(frozen=True)
class Nodes:
    """One controller and its storage units, running.

    They are threads: they die with the process, and their data with them.
    """

    controller: Any
    """TransferQueueController."""
    units: tuple[Any, ...]
    """SimpleStorageUnit, one or more. Order and count decide where a row lies."""

    @classmethod
    def start(cls, *, unit_count: int) -> Nodes:
        """Start all of them. Blocks for seconds: imports, then half a second per unit.

        Raises:
            UsageError: TransferQueue is not installed.

        """
        try:
            import transfer_queue
            import transfer_queue.controller as controller_module
            import transfer_queue.storage.simple_storage as unit_module
        except ModuleNotFoundError as error:
            raise UsageError(
                f"the store needs TransferQueue ({error}); pip install 'headrace[store]'"
            ) from error

        for module in (controller_module, unit_module):
            # Upstream asks Ray for the address of this host's network card.
            module.get_node_ip_address = lambda: LOOPBACK
        controller_class = _under_ray(controller_module.TransferQueueController)
        unit_class = _under_ray(unit_module.SimpleStorageUnit)
        controller = controller_class(
            sampler=transfer_queue.SequentialSampler,
            # Otherwise one request without enough data sleeps in the only controller thread.
            polling_mode=True,
        )
        settings = {"total_storage_size": None, "num_data_storage_units": unit_count}
        units = tuple(unit_class(settings) for _ in range(unit_count))
        return cls(controller=controller, units=units)

    def attach(self, client_id: str) -> Any:
        """Make a client for these nodes; to be awaited from one event loop.

        Returns:
            An AsyncTransferQueueClient. `close` it when no call is in flight.

        """
        from transfer_queue.client import AsyncTransferQueueClient

        client = AsyncTransferQueueClient(client_id, self.controller.get_zmq_server_info())
        infos = [unit.get_zmq_server_info() for unit in self.units]
        client.initialize_storage_manager("SimpleStorage", {"zmq_info": {i.id: i for i in infos}})
        return client

    def addresses(self) -> list[str]:
        """`ip:port` of every socket that listens."""
        infos = [node.get_zmq_server_info() for node in (self.controller, *self.units)]
        return [f"{info.ip}:{port}" for info in infos for port in info.ports.values()]

    def close(self) -> None:
        """Stop the storage units; blocks for up to a second. Their rows are gone.

        The controller has no way to be stopped: its daemon threads end with the process. But what
        it knew of the rows, a kilobyte each, goes.
        """
        with ThreadPoolExecutor(len(self.units)) as threads:
            list(threads.map(lambda unit: unit.shutdown(), self.units))
        self.controller.partitions.clear()


def _under_ray(actor_class: Any) -> Any:
    """Take the plain class from under `@ray.remote`."""
    return actor_class.__ray_metadata__.modified_class
