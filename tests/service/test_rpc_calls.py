"""A call that persists outlives its peer's outages, and ends when it should."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from headrace.errors import (
    KeyExistsError,
    NotReadyError,
    ProtocolMismatchError,
    TokenRefusedError,
    UsageError,
    WireError,
    WriterFencedError,
    WrongRunError,
)
from headrace.rpc.calls import Stopped, persist
from headrace.rpc.channel import open_channel
from headrace.rpc.process import Process
from headrace.rpc.waits import Waits
from headrace.v1 import store_pb2 as pb
from headrace.v1 import store_pb2_grpc

SERVICE = "headrace.v1.TrajectoryStoreService"
REQUEST = pb.GetStoreStatusRequest()


class Store:
    """One method of a store. Does what the script says, one entry per call; then answers."""

    def __init__(self, *script: Exception | str) -> None:
        self.script = list(script)
        self.call_count = 0
        self.called = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def get_status(self, _request: object, context: Any) -> pb.GetStoreStatusResponse:
        self.call_count += 1
        self.called.set()
        step = self.script.pop(0) if self.script else None
        if isinstance(step, Exception):
            raise step
        if step == "cancel":
            await context.abort(grpc.StatusCode.CANCELLED)
        if step == "hang":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return pb.GetStoreStatusResponse(capacity_bytes=7)


class Peers:
    """Starts stores, and a client of them. Collects what the event loop complains of."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.channels: list[grpc.aio.Channel] = []
        self.complaints: list[dict[str, Any]] = []
        self.waits = Waits(stall_after_s=60)
        self.stopping = asyncio.Event()
        self.failed = asyncio.Event()

    async def start(self, store: Store, address: str = "127.0.0.1:0") -> tuple[Process, str]:
        """Serve a store."""
        host, port = address.rsplit(":", 1)
        process = Process(name="store", run_id="r", host=host, port=int(port), stall_after_s=60)
        self.processes.append(process)

        def add_services(server: grpc.aio.Server) -> list[str]:
            handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
                "GetStoreStatus": grpc.unary_unary_rpc_method_handler(
                    store.get_status,
                    response_serializer=pb.GetStoreStatusResponse.SerializeToString,
                )
            }
            server.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler(SERVICE, handlers)]
            )
            return [SERVICE]

        return process, await process.start(add_services)

    async def ask(self, address: str, *, timeout_s: float = 20.0) -> pb.GetStoreStatusResponse:
        """Ask for a store's status, however long it takes."""

        def jitter() -> float:
            self.failed.set()
            return 0.0

        channel = open_channel(address)  # stays open: closing it would end a forgotten call
        self.channels.append(channel)
        stub: store_pb2_grpc.TrajectoryStoreServiceAsyncStub
        stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
        return await persist(
            stub.GetStoreStatus,
            REQUEST,
            waits=self.waits,
            name="the store's status",
            owner="store",
            timeout_s=timeout_s,
            stopping=self.stopping,
            jitter=jitter,
        )


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    running = Peers()
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, complaint: running.complaints.append(complaint)
    )
    yield running
    for channel in running.channels:
        await channel.close()
    for process in running.processes:
        await process.close(0)
    gc.collect()
    assert running.complaints == []


async def test_an_answer_ends_the_call(peers: Peers) -> None:
    _, address = await peers.start(Store())
    assert (await peers.ask(address)).capacity_bytes == 7
    assert peers.waits.snapshot() == []
    assert peers.waits.waited_s["the store's status"] > 0


async def test_a_call_survives_a_server_that_goes_away_and_comes_back_on_its_port(
    peers: Peers,
) -> None:
    first, address = await peers.start(Store())
    assert await peers.ask(address)
    await first.close(0)

    asking = asyncio.ensure_future(peers.ask(address))
    await peers.failed.wait()
    [wait] = peers.waits.snapshot()
    assert (wait.name, wait.owner) == ("the store's status", "store")
    assert wait.ends_when.startswith(f"store answers (the last try failed: ipv4:{address}: ")
    assert wait.ends_when.endswith("Connection refused)")
    await peers.start(Store(), address)

    assert (await asking).capacity_bytes == 7


async def test_a_call_under_way_in_a_server_that_stops_is_made_again(peers: Peers) -> None:
    stuck = Store("hang")
    first, address = await peers.start(stuck)
    asking = asyncio.ensure_future(peers.ask(address))
    await stuck.called.wait()
    await first.close(0)
    await peers.start(Store(), address)

    assert (await asking).capacity_bytes == 7


async def test_a_call_that_the_server_cancels_is_made_again(peers: Peers) -> None:
    """As it does with one that arrives just when it stops."""
    store = Store("cancel")
    _, address = await peers.start(store)
    assert await peers.ask(address)
    assert store.call_count == 2


async def test_a_server_that_is_not_ready_is_asked_for_longer_than_the_channel_does(
    peers: Peers,
) -> None:
    store = Store(*[NotReadyError("still loading")] * 7)
    _, address = await peers.start(store)
    assert await peers.ask(address)
    assert store.call_count == 8


async def test_a_lost_answer_is_asked_for_again(peers: Peers) -> None:
    store = Store("hang")
    _, address = await peers.start(store)
    assert await peers.ask(address, timeout_s=0.2)
    assert store.call_count >= 2, "and again, if the second takes as long"


async def test_a_fenced_replay_buffer_is_asked_until_the_newer_one_answers(peers: Peers) -> None:
    store = Store(*[WriterFencedError("a newer replay buffer owns the run")] * 2)
    _, address = await peers.start(store)
    assert await peers.ask(address)
    assert store.call_count == 3


@pytest.mark.parametrize("error", [TokenRefusedError, WrongRunError, ProtocolMismatchError])
async def test_a_caller_that_is_not_welcome_is_told_once_as_a_mistake_of_the_users(
    peers: Peers, error: type[WireError]
) -> None:
    store = Store(error("give both the same"))
    _, address = await peers.start(store)
    with pytest.raises(UsageError, match=r"^give both the same$"):
        await peers.ask(address)
    assert store.call_count == 1
    assert peers.waits.snapshot() == []


async def test_a_refusal_ends_the_call_as_the_error_that_it_was(peers: Peers) -> None:
    store = Store(KeyExistsError("other bytes", key="k"))
    _, address = await peers.start(store)
    with pytest.raises(KeyExistsError, match="other bytes") as refused:
        await peers.ask(address)
    assert refused.value.metadata == {"key": "k"}
    assert store.call_count == 1
    assert peers.waits.snapshot() == []


async def test_a_mistake_of_the_server_ends_the_call(peers: Peers) -> None:
    store = Store(KeyError("a mistake"))
    _, address = await peers.start(store)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await peers.ask(address)
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert store.call_count == 1


async def test_stopping_ends_a_call_under_way_here_and_at_the_server(peers: Peers) -> None:
    store = Store("hang")
    _, address = await peers.start(store)
    asking = asyncio.ensure_future(peers.ask(address))
    await store.called.wait()
    peers.stopping.set()

    with pytest.raises(Stopped, match="the store's status"):
        await asking
    await asyncio.wait_for(store.cancelled.wait(), 20)


async def test_stopping_ends_the_pause_between_two_tries(peers: Peers) -> None:
    first, address = await peers.start(Store())
    await first.close(0)
    asking = asyncio.ensure_future(peers.ask(address))
    await peers.failed.wait()
    peers.stopping.set()

    with pytest.raises(Stopped):
        await asking


async def test_a_process_that_stops_already_does_not_call(peers: Peers) -> None:
    store = Store()
    _, address = await peers.start(store)
    peers.stopping.set()
    with pytest.raises(Stopped):
        await peers.ask(address)
    assert store.call_count == 0


async def test_a_caller_that_is_cancelled_waits_no_longer(peers: Peers) -> None:
    store = Store("hang")
    _, address = await peers.start(store)
    asking = asyncio.ensure_future(peers.ask(address))
    await store.called.wait()
    asking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asking
    assert peers.waits.snapshot() == []
    await asyncio.wait_for(store.cancelled.wait(), 20)
