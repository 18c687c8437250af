"""A process serves, says how it is, and stops in order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from ports import free_port
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from headrace.client.finding import listens
from headrace.errors import UsageError
from headrace.rpc import announce
from headrace.rpc.process import Process
from headrace.rpc.server import create_server

SERVICE = "headrace.v1.TrajectoryStoreService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


class Slow:
    """A method that answers when it is told to."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def work(self, _request: bytes, _context: Any) -> bytes:
        self.begun.set()
        await self.may_end.wait()
        return b"done"

    def add_to(self, server: grpc.aio.Server) -> list[str]:
        """Add it to a server, under a service's name."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Work": grpc.unary_unary_rpc_method_handler(self.work)
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        return [SERVICE]


Make = Callable[..., Process]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[Process] = []

    def make_one(**options: Any) -> Process:
        settings: dict[str, Any] = {"name": "store", "run_id": "run-1", "stall_after_s": 60}
        process = Process(**settings | options)
        made.append(process)
        return process

    yield make_one
    for process in made:
        await process.close(0)


@pytest.fixture
def slow() -> Slow:
    return Slow()


async def health_of(address: str, service: str) -> int:
    """Return the health of a service."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20)
        return int(answer.status)


async def work(address: str) -> bytes:
    """Call the slow method."""
    async with grpc.aio.insecure_channel(address) as channel:
        method: Any = channel.unary_unary(f"/{SERVICE}/Work")
        return bytes(await method(b"", timeout=20))


async def until_refused(address: str) -> None:
    """Connect until the address takes no more connections."""
    host, port = address.rsplit(":", 1)
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            return
        except ConnectionResetError:  # it waited to be accepted when the address was closed
            continue
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_a_process_serves_nothing_before_it_is_ready(
    make: Make, slow: Slow, service: str
) -> None:
    process = make()
    address = await process.start(slow.add_to)
    assert await health_of(address, service) == NOT_SERVING
    process.ready()
    assert await health_of(address, service) == SERVING


async def test_a_watcher_of_its_health_sees_each_change(make: Make, slow: Slow) -> None:
    process = make()
    address = await process.start(slow.add_to)
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=20)
        assert (await watch.read()).status == NOT_SERVING
        process.ready()
        assert (await watch.read()).status == SERVING
        closing = asyncio.ensure_future(process.close(20))
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()
        await closing


async def test_a_process_lists_its_services(make: Make, slow: Slow) -> None:
    address = await make().start(slow.add_to)

    async def requests() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    channel: Any  # the stubs know synchronous channels only
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        [answer] = [a async for a in stub.ServerReflectionInfo(requests(), timeout=20)]
    names = {service.name for service in answer.list_services_response.service}
    assert names >= {SERVICE, "grpc.health.v1.Health"}


async def test_a_process_announces_where_it_listens(make: Make, slow: Slow, tmp_path: Path) -> None:
    path = tmp_path / "endpoints" / "store.json"
    address = await make(announce=path).start(slow.add_to)
    announced = announce.read(path)
    assert announced is not None
    assert (announced.address, announced.pid) == (address, os.getpid())


async def test_an_occupied_port_is_named_and_nothing_is_announced(
    make: Make, slow: Slow, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    address = await make().start(slow.add_to)
    port = int(address.rsplit(":", 1)[1])
    path = tmp_path / "store.json"

    with pytest.raises(UsageError, match=f"{address}: the port is in use; .*port 0"):
        await make(port=port, announce=path).start(Slow().add_to)

    assert announce.read(path) is None
    assert capfd.readouterr().err == ""


async def test_a_process_that_cannot_be_found_serves_nothing(
    make: Make, slow: Slow, tmp_path: Path
) -> None:
    """A server that is left behind ends with words of its own, after the event loop."""
    taken = await make().start(slow.add_to)
    health_port = int(taken.rsplit(":", 1)[1])
    (tmp_path / "file").touch()
    ports = free_port(), free_port()

    with pytest.raises(UsageError, match=f"{taken}: the port is in use"):
        await make(port=ports[0], health_port=health_port).start(Slow().add_to)
    with pytest.raises(UsageError, match="cannot announce"):
        await make(port=ports[1], announce=tmp_path / "file" / "x.json").start(Slow().add_to)

    assert not any(listens(f"127.0.0.1:{port}") for port in ports)


async def test_two_servers_that_start_at_once_do_not_share_a_port(make: Make, slow: Slow) -> None:
    # Both have found the port free; gRPC by default lets both of them bind it.
    address = await make().start(slow.add_to)
    with pytest.raises(RuntimeError):
        create_server(CollectorRegistry()).add_insecure_port(address)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
async def test_only_loopback_addresses_are_listened_on(make: Make, slow: Slow, host: str) -> None:
    with pytest.raises(UsageError, match=r"only a loopback address.*127\.0\.0\.1"):
        await make(host=host).start(slow.add_to)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "::1"])
async def test_any_loopback_address_will_do(make: Make, slow: Slow, host: str) -> None:
    if host == "::1":
        try:
            socket.create_server((host, 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 here")
    slow.may_end.set()
    assert await work(await make(host=host).start(slow.add_to)) == b"done"


async def test_a_call_under_way_is_finished_before_the_process_ends(make: Make, slow: Slow) -> None:
    process = make()
    address = await process.start(slow.add_to)
    call = asyncio.ensure_future(work(address))
    await slow.begun.wait()
    closing = asyncio.ensure_future(process.close(20))
    await until_refused(address)
    slow.may_end.set()

    assert await call == b"done"
    await closing


async def test_a_call_that_does_not_finish_is_ended_with_the_grace(make: Make, slow: Slow) -> None:
    process = make()
    address = await process.start(slow.add_to)
    call = asyncio.ensure_future(work(address))
    await slow.begun.wait()
    await process.close(0.05)

    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_process_that_was_never_started_or_is_closed_already_may_be_closed(
    make: Make, slow: Slow
) -> None:
    await make().close()
    process = make()
    await process.start(slow.add_to)
    await process.close()
    await process.close()
    assert process.stopping.is_set()


async def test_a_process_says_who_it_is_and_what_it_waits_for(make: Make) -> None:
    clock = Clock()
    process = make(now=clock)
    with process.waits.waiting("demand", owner="replay"):
        clock.time += 61
        status = process.status()

    assert (status.process, status.run_id, status.uptime_s) == ("store", "run-1", 61)
    assert [(wait.name, wait.stalled) for wait in status.waits] == [("demand", True)]
    assert dict(status.waited_s) == {"demand": 61}


async def test_a_stall_is_logged_with_what_who_since_when_and_what_would_end_it(
    make: Make,
) -> None:
    clock = Clock()
    process = make(now=clock)
    with (
        capture_logs() as logs,
        process.waits.waiting("demand", owner="replay", ends_when="the window has room"),
    ):
        for _ in range(130):
            clock.time += 1
            process.report_stalls()

    assert [line["event"] for line in logs] == ["stalled", "stalled"]
    assert [line["elapsed_s"] for line in logs] == [61, 122]
    assert logs[0]["log_level"] == "warning"
    assert logs[0]["waiting_for"] == "demand"
    assert logs[0]["owner"] == "replay"
    assert logs[0]["ends_when"] == "the window has room"
    assert "since" in logs[0]


async def test_stalls_are_logged_even_while_the_event_loop_is_busy(
    make: Make, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.rpc.process.WATCH_EVERY_S", 0.01)
    process = make()
    await process.start(slow.add_to)
    with capture_logs() as logs, process.waits.waiting("it", owner="me", stall_after_s=0):
        while not any(line["event"] == "stalled" for line in logs):
            os.sched_yield()  # the event loop has no turn


CHILD = f"""
import asyncio, sys
from pathlib import Path
import grpc
from headrace.log import configure, get_logger
from headrace.rpc.process import Process

async def main():
    configure("store", "run-1")
    process = Process(name="store", run_id="run-1", announce=Path(sys.argv[1]), stall_after_s=60)

    async def work(request, context):
        get_logger().info("working")
        await process.stopping.wait()
        return b"done"

    def add_services(server):
        handlers = {{"Work": grpc.unary_unary_rpc_method_handler(work)}}
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("{SERVICE}", handlers)]
        )
        return ["{SERVICE}"]

    await process.start(add_services)
    process.ready()
    await process.until_stopped()
    await process.close()
    return 0

sys.exit(asyncio.run(main()))
"""


async def until_logged(stderr: asyncio.StreamReader, event: str) -> None:
    """Read log lines until one of this event."""
    async for line in stderr:
        if json.loads(line)["event"] == event:
            return
    pytest.fail(f"the process ended before it logged {event}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_a_real_process_finish_its_calls_and_exit_with_0(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "store.json"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(path), stderr=asyncio.subprocess.PIPE
    )
    assert child.stderr is not None
    try:
        await until_logged(child.stderr, "ready")
        announced = announce.read(path)
        assert announced is not None
        assert announced.pid == child.pid
        call = asyncio.ensure_future(work(announced.address))
        await until_logged(child.stderr, "working")
        child.send_signal(number)

        assert await call == b"done"
        await until_logged(child.stderr, "stopped")
        assert await child.wait() == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
