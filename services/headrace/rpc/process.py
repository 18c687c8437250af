"""What all headrace processes are: a server that says how it is, until it is told to stop.

    start ──► serving, health NOT_SERVING ──► ready: SERVING ◄─► NOT_SERVING ──► stopping ──► close

`start` binds and announces the address, so that the process can be watched while it still
loads. SIGTERM, SIGINT and `stop` set `stopping`; the process then ends its long polls and
loops by itself, and `close` lets the calls under way finish. A thread reports stalled waits,
even while the event loop is busy.

Knows nothing of what the process is for.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from headrace.errors import UsageError
from headrace.log import get_logger
from headrace.rpc import announce as announcement
from headrace.rpc.advertise import from_here
from headrace.rpc.exposition import MetricsServer
from headrace.rpc.health import Health
from headrace.rpc.mirror import Mirror
from headrace.rpc.security import Security
from headrace.rpc.server import bind, create_server
from headrace.rpc.wait_metrics import WaitMetrics
from headrace.rpc.waits import Waits
from headrace.v1 import status_pb2

if TYPE_CHECKING:
    from headrace.config.config import Config

WATCH_EVERY_S: Final = 1.0
"""How often the watchdog looks."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

log = get_logger()


@dataclass(frozen=True)
class ProcessOptions:
    """How a process is started, besides its configuration."""

    name: str
    """`feeder`, `replay`, `store`, `worker-0`, `trainer`."""
    port: int = 0
    """The port to listen on; 0 = a free one."""
    metrics_port: int = 0
    """The port of its metrics; 0 = a free one."""
    health_port: int | None = None
    """The port where health alone is served, in plaintext; None = nowhere."""
    announce: Path | None = None
    """Where to announce the address."""


class Process:
    """The process around the services.

    Args:
        name: `feeder`, `replay`, `store`, `worker-0`, `trainer`.
        run_id: The run it belongs to.
        host: A loopback address; another one if `security` has a token and TLS.
        port: 0 = a free one.
        metrics_port: The same, for its metrics.
        health_port: Where health alone is served, in plaintext and without a token; None = nowhere.
        announce: Where to announce the address; None = nowhere.
        security: What calls need, and how they are protected; None = nothing, not at all.
        stall_after_s: The limit of waits that name none.
        now: Seconds of a monotonic clock.

    Attributes:
        waits: What it waits for.
        security: For its own calls, too.
        stopping: Set once it is to stop.
        registry: Its metrics.

    """

    def __init__(
        self,
        *,
        name: str,
        run_id: str,
        host: str = "127.0.0.1",
        port: int = 0,
        metrics_port: int = 0,
        health_port: int | None = None,
        announce: Path | None = None,
        security: Security | None = None,
        stall_after_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._run_id = run_id
        self._host = host
        self._port = port
        self._metrics_port = metrics_port
        self._health_port = health_port
        self._announce = announce
        self.security = security or Security()
        self._now = now
        self._begun = now()
        self.waits = Waits(now=now, stall_after_s=stall_after_s)
        self.stopping = asyncio.Event()
        self.registry = CollectorRegistry()
        self._health = Health()
        self._server: grpc.aio.Server | None = None
        self._metrics: MetricsServer | None = None
        self._mirror = Mirror(asyncio.get_running_loop())
        self._watchdog = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._closed = threading.Event()

    @classmethod
    def of_run(cls, config: Config, options: ProcessOptions) -> Process:
        """Make a process of the run that is configured.

        Raises:
            UsageError: A file that its security needs cannot be used.

        """
        return cls(
            name=options.name,
            run_id=config.run.run_id,
            host=config.endpoints.bind_host,
            port=options.port,
            metrics_port=options.metrics_port,
            health_port=options.health_port,
            announce=options.announce,
            security=Security.from_config(config),
            stall_after_s=config.watchdog.stall_after_s,
        )

    async def start(self, add_services: Callable[[grpc.aio.Server], Sequence[str]]) -> str:
        """Serve, not ready yet.

        Args:
            add_services: Adds the servicers to the server; returns the services' full names.

        Returns:
            The address, `host:port`.

        Raises:
            UsageError: The host is not a loopback address and there is no token or no TLS, a port
                is taken, or the address cannot be announced. Then nothing is served any more.

        """
        server = create_server(
            self.registry, process=self._name, run_id=self._run_id, security=self.security
        )
        await self._health.add_to(server, add_services(server))
        reflected = (*self._health.services, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(reflected, server)
        address = bind(server, self._host, self._port, self.security)
        self._register_metrics()
        self._metrics = MetricsServer(self.registry, self._host, self._metrics_port, self.security)
        await server.start()
        self._server = server
        self._handle_signals()
        self._watchdog.start()
        try:
            await self._appear(address, self._metrics.address)
        except UsageError:
            await self.close()
            raise
        log.info("listening", address=address, metrics=self._metrics.address)
        return address

    def expose(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Have `read` called at each scrape, on the event loop, for metrics that mirror state."""
        self._mirror.add(read)

    def ready(self, holds: Callable[[], bool] = lambda: True) -> None:
        """Say that calls are welcome whenever `holds` does: health is SERVING then.

        Args:
            holds: Whether what the process needs to be of use is there; asked again and again.

        """
        self._health.follow(holds, self._on_ready)

    def stop(self) -> None:
        """Ask the process to stop, as SIGTERM does."""
        self.stopping.set()

    async def until_stopped(self) -> None:
        """Wait until the process is asked to stop."""
        await self.stopping.wait()

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop serving: no new calls; those under way may take `grace_s` seconds to finish."""
        self.stopping.set()
        if self._server is None:
            return
        await self._health.close()
        assert self._metrics is not None
        await asyncio.gather(self._server.stop(grace_s), asyncio.to_thread(self._metrics.close))
        await self._health.stop_beside()
        self._closed.set()
        self._watchdog.join()
        log.info("stopped")

    def status(self) -> status_pb2.ProcessStatus:
        """Return what the process says about itself."""
        return status_pb2.ProcessStatus(
            process=self._name,
            run_id=self._run_id,
            uptime_s=self._now() - self._begun,
            waits=self.waits.snapshot(),
            waited_s=self.waits.waited_s,
        )

    def report_stalls(self) -> None:
        """Log each wait that has become a stall, and again each time its limit has passed."""
        for wait in self.waits.due_reports():
            log.warning(
                "stalled",
                waiting_for=wait.name,
                owner=wait.owner,
                since=(datetime.now(UTC) - timedelta(seconds=wait.elapsed_s)).isoformat(),
                elapsed_s=round(wait.elapsed_s, 3),
                ends_when=wait.ends_when,
            )

    async def _appear(self, address: str, metrics: str) -> None:
        """Let those find it who watch over it, or look for it."""
        if self._health_port is not None:
            await self._health.serve_beside(self._host, self._health_port)
        if self._announce is not None:
            announcement.write(self._announce, from_here(address), metrics=from_here(metrics))

    def _register_metrics(self) -> None:
        for collector in (self._mirror, WaitMetrics(self.waits)):
            self.registry.register(collector)
        for of_prometheus in (ProcessCollector, PlatformCollector, GCCollector):
            of_prometheus(registry=self.registry)
        names = {"process": self._name, "run_id": self._run_id}
        info = Gauge("headrace_process_info", "Always 1.", list(names), registry=self.registry)
        info.labels(**names).set(1)

    def _watch(self) -> None:
        while not self._closed.wait(WATCH_EVERY_S):
            self.report_stalls()

    def _on_ready(self, ready: bool) -> None:
        if ready:
            log.info("ready", after_s=round(self._now() - self._begun, 3))
        else:
            log.warning("not_ready", waits=[wait.name for wait in self.waits.snapshot()])

    def _handle_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():  # Python allows no other
            loop = asyncio.get_running_loop()
            for number in _SIGNALS:
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        log.info("asked_to_stop", signal=number.name)
        self.stopping.set()
