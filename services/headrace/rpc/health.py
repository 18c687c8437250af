"""Whether a process lives, and whether calls to it are welcome: gRPC's health service.

| asked for            | SERVING                                                          |
|----------------------|------------------------------------------------------------------|
| `live`               | from the start on, as long as the event loop answers at all      |
| nothing, or a service | once the process is ready, and whenever what that needs is there |

So nobody is killed because a peer is away: `live` depends on none. Kubelets can do neither TLS nor
certificates of ours; for them health can have a port besides, where nothing else is served.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from headrace.rpc.server import OPTIONS, listen

LIVE: Final = "live"
"""The name by which is asked whether a process lives."""
LOOK_EVERY_S: Final = 0.5
"""How often is looked whether a ready process still is."""

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """What a process answers to those that ask how it is."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()
        self._services: list[str] = ["", health.SERVICE_NAME]
        self._following: asyncio.Task[None] | None = None
        self._beside: grpc.aio.Server | None = None

    @property
    def services(self) -> list[str]:
        """Full names of all services that it knows of, but for the process as a whole."""
        return [name for name in self._services if name]

    async def add_to(self, server: grpc.aio.Server, services: Sequence[str]) -> None:
        """Serve there: the process lives, and is not ready.

        Args:
            server: The process's server, not started yet.
            services: Full names of what else it serves.

        """
        self._services += services
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        await self._servicer.set(LIVE, _SERVING)
        await self._say(_NOT_SERVING)

    async def serve_beside(self, host: str, port: int) -> None:
        """Serve on a port of its own, too: in plaintext, and without a token.

        Raises:
            UsageError: The port is taken.

        """
        server = grpc.aio.server(options=OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        listen(server, host, port, None)
        await server.start()
        self._beside = server

    def follow(self, holds: Callable[[], bool], changed: Callable[[bool], None]) -> None:
        """Say that the process is ready whenever `holds` does; tell `changed` each time."""
        self._following = asyncio.ensure_future(self._follow(holds, changed))

    async def close(self) -> None:
        """Say that calls are no longer welcome, for good."""
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following
        await self._servicer.enter_graceful_shutdown()

    async def stop_beside(self) -> None:
        """End its own port, if it has one."""
        if self._beside is not None:
            await self._beside.stop(None)

    async def _follow(self, holds: Callable[[], bool], changed: Callable[[bool], None]) -> None:
        said = False
        while True:
            if said != holds():
                said = not said
                await self._say(_SERVING if said else _NOT_SERVING)
                changed(said)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _say(self, status: int) -> None:
        for service in self._services:
            await self._servicer.set(service, status)
