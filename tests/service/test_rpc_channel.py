"""Every call has a deadline, and a short outage is bridged."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FileDescriptor
from prometheus_client import CollectorRegistry

from headrace.errors import KeyExistsError, NotReadyError, WireError
from headrace.rpc import channel as channels
from headrace.rpc.channel import open_channel, open_sync_channel
from headrace.rpc.deadlines import DEFAULT_TIMEOUT_S
from headrace.rpc.server import bind, create_server
from headrace.v1 import store_pb2 as pb
from headrace.v1 import store_pb2_grpc

GENERATED = Path(__file__).parents[2] / "proto" / "gen" / "headrace" / "v1"
STORE = "headrace.v1.TrajectoryStoreService"


async def remaining(_request: object, context: Any) -> bytes:
    """Answer with the seconds until the deadline."""
    return str(context.time_remaining()).encode()


async def remaining_stream(request: object, context: Any) -> AsyncIterator[bytes]:
    """Answer with the seconds until the deadline, once."""
    yield await remaining(request, context)


class FailingStore:
    """Two methods of a store. Fails with `errors`, one per call, then answers."""

    def __init__(self) -> None:
        self.errors: list[WireError] = []
        self.call_count = 0

    async def get_status(self, _request: object, _context: Any) -> pb.GetStoreStatusResponse:
        self.call_count += 1
        if self.errors:
            raise self.errors.pop(0)
        return pb.GetStoreStatusResponse()

    async def get(
        self, _request: object, _context: Any
    ) -> AsyncIterator[pb.GetTrajectoriesResponse]:
        self.call_count += 1
        for error in self.errors:
            raise error
        yield pb.GetTrajectoriesResponse()


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()


@pytest.fixture
async def address(store: FailingStore) -> AsyncIterator[str]:
    server = create_server(CollectorRegistry())
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "UnaryUnary": grpc.unary_unary_rpc_method_handler(remaining),
        "StreamUnary": grpc.stream_unary_rpc_method_handler(remaining),
        "UnaryStream": grpc.unary_stream_rpc_method_handler(remaining_stream),
        "StreamStream": grpc.stream_stream_rpc_method_handler(remaining_stream),
    }
    store_handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "GetStoreStatus": grpc.unary_unary_rpc_method_handler(
            store.get_status, response_serializer=pb.GetStoreStatusResponse.SerializeToString
        ),
        "GetTrajectories": grpc.unary_stream_rpc_method_handler(
            store.get, response_serializer=pb.GetTrajectoriesResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler("test.Deadlines", handlers),
            grpc.method_handlers_generic_handler(STORE, store_handlers),
        ]
    )
    bound = bind(server, "127.0.0.1", 0)
    await server.start()
    yield bound
    await server.stop(0)


async def deadlines(channel: Any, timeout_s: float | None) -> list[float]:
    """Call a method of each kind; return the seconds that each had."""
    path = "/test.Deadlines/"

    async def requests() -> AsyncIterator[bytes]:
        yield b""

    seen = [
        await channel.unary_unary(path + "UnaryUnary")(b"", timeout=timeout_s),
        await channel.stream_unary(path + "StreamUnary")(requests(), timeout=timeout_s),
    ]
    for stream in (
        channel.unary_stream(path + "UnaryStream")(b"", timeout=timeout_s),
        channel.stream_stream(path + "StreamStream")(requests(), timeout=timeout_s),
    ):
        seen += [answer async for answer in stream]
    return [float(answer) for answer in seen]


def sync_deadlines(channel: Any, timeout_s: float | None) -> list[float]:
    """Call a method of each kind; return the seconds that each had."""
    path = "/test.Deadlines/"
    seen = [
        channel.unary_unary(path + "UnaryUnary")(b"", timeout=timeout_s),
        channel.stream_unary(path + "StreamUnary")(iter([b""]), timeout=timeout_s),
        *channel.unary_stream(path + "UnaryStream")(b"", timeout=timeout_s),
        *channel.stream_stream(path + "StreamStream")(iter([b""]), timeout=timeout_s),
    ]
    return [float(answer) for answer in seen]


def assert_had(expected_s: float, seen_s: list[float], *, begun: float) -> None:
    """Check what calls had that have begun since then: some of it has passed when it is seen."""
    taken_s = time.monotonic() - begun
    assert len(seen_s) == 4
    for each in seen_s:
        assert expected_s - taken_s - 1 < each < expected_s + 1


@pytest.mark.parametrize(
    ("given_s", "expected_s"), [(None, DEFAULT_TIMEOUT_S), (7.0, 7.0), (60.0, 60.0)]
)
async def test_a_call_of_any_kind_has_the_deadline_it_names_or_the_default(
    address: str, given_s: float | None, expected_s: float
) -> None:
    begun = time.monotonic()
    async with open_channel(address) as channel:
        seen = await deadlines(channel, given_s)
    assert_had(expected_s, seen, begun=begun)


@pytest.mark.parametrize(
    ("given_s", "expected_s"), [(None, DEFAULT_TIMEOUT_S), (7.0, 7.0), (60.0, 60.0)]
)
async def test_a_synchronous_call_of_any_kind_has_it_too(
    address: str, given_s: float | None, expected_s: float
) -> None:
    begun = time.monotonic()
    with open_sync_channel(address) as channel:
        seen = await asyncio.to_thread(sync_deadlines, channel, given_s)
    assert_had(expected_s, seen, begun=begun)


async def test_a_call_that_is_never_answered_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.rpc.deadlines.DEFAULT_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        async with open_channel(f"{host}:{port}") as channel:
            stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.GetStoreStatus(pb.GetStoreStatusRequest())
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_an_unavailable_service_is_asked_again(address: str, store: FailingStore) -> None:
    store.errors = [NotReadyError("still loading")] * 2
    async with open_channel(address) as channel:
        stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
        await stub.GetStoreStatus(pb.GetStoreStatusRequest())
    assert store.call_count == 3


async def test_a_synchronous_channel_asks_again_too(address: str, store: FailingStore) -> None:
    store.errors = [NotReadyError("still loading")] * 2
    with open_sync_channel(address) as channel:
        stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
        await asyncio.to_thread(stub.GetStoreStatus, pb.GetStoreStatusRequest())
    assert store.call_count == 3


async def test_it_is_asked_five_times_at_the_most(address: str, store: FailingStore) -> None:
    store.errors = [NotReadyError("still loading")] * 10
    async with open_channel(address) as channel:
        stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.GetStoreStatus(pb.GetStoreStatusRequest())
    assert store.call_count == 5


async def test_a_refusal_is_final(address: str, store: FailingStore) -> None:
    store.errors = [KeyExistsError("other bytes")] * 2
    async with open_channel(address) as channel:
        stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.GetStoreStatus(pb.GetStoreStatusRequest())
    assert store.call_count == 1


async def test_a_stream_is_not_repeated(address: str, store: FailingStore) -> None:
    store.errors = [NotReadyError("still loading")]
    async with open_channel(address) as channel:
        stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            [answer async for answer in stub.GetTrajectories(pb.GetTrajectoriesRequest())]
    assert store.call_count == 1


def unary_methods() -> Iterator[tuple[str, str]]:
    """Yield (service, method) of every unary method in the protos."""
    for file in GENERATED.glob("*_pb2.py"):
        descriptor: FileDescriptor = importlib.import_module(f"headrace.v1.{file.stem}").DESCRIPTOR
        for service in descriptor.services_by_name.values():
            for method in service.methods:
                if not (method.client_streaming or method.server_streaming):
                    yield service.full_name, method.name


def test_every_unary_method_of_the_protos_is_asked_again() -> None:
    [config] = json.loads(channels._service_config())["methodConfig"]
    repeated = {(name["service"], name["method"]) for name in config["name"]}
    assert repeated == set(unary_methods())
    assert config["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
