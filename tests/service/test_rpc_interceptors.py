"""What is done around every call, on a real server, for all four kinds of methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from headrace.errors import StoreFullError
from headrace.rpc.server import bind, create_server
from headrace.rpc.status import error_from

SECRET = "the secret detail"
STREAMS = ("UnaryStream", "UnaryWriter", "StreamStream")
KINDS = ("UnaryUnary", "StreamUnary", *STREAMS)


class Behaviors:
    """Handlers of every kind. The request says what they do, between two answers if they can."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    async def act(self, request: bytes, context: Any) -> None:
        self.begun.set()
        try:
            match request:
                case b"fail":
                    raise KeyError(SECRET)
                case b"refuse":
                    raise StoreFullError("no room for 7 bytes", free_bytes="3")
                case b"abort":
                    await context.abort(grpc.StatusCode.OUT_OF_RANGE, "as the handler says")
                case b"hang":
                    await asyncio.Event().wait()
        finally:
            self.ended.set()

    async def unary_unary(self, request: bytes, context: Any) -> bytes:
        await self.act(request, context)
        return b"1"

    async def unary_stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"1"
        await self.act(request, context)
        yield b"2"

    async def unary_writer(self, request: bytes, context: Any) -> None:
        await context.write(b"1")
        await self.act(request, context)
        await context.write(b"2")

    async def stream_unary(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        async for request in requests:
            await self.act(request, context)
        return b"1"

    async def stream_stream(
        self, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        async for request in requests:
            yield b"1"
            await self.act(request, context)
            yield b"2"

    async def flood(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(2**16)
        finally:
            self.ended.set()


class Server:
    """A server with those handlers, and a client for each."""

    def __init__(self, behaviors: Behaviors) -> None:
        self.behaviors = behaviors
        self.registry = CollectorRegistry()
        self.server = create_server(self.registry)
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "UnaryUnary": grpc.unary_unary_rpc_method_handler(behaviors.unary_unary),
            "UnaryStream": grpc.unary_stream_rpc_method_handler(behaviors.unary_stream),
            "UnaryWriter": grpc.unary_stream_rpc_method_handler(behaviors.unary_writer),
            "Flood": grpc.unary_stream_rpc_method_handler(behaviors.flood),
            "StreamUnary": grpc.stream_unary_rpc_method_handler(behaviors.stream_unary),
            "StreamStream": grpc.stream_stream_rpc_method_handler(behaviors.stream_stream),
        }
        self.server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("test.Kinds", handlers)]
        )
        self.channel = grpc.aio.insecure_channel(bind(self.server, "127.0.0.1", 0))

    def open(self, kind: str, request: bytes) -> Any:
        """Begin a call."""
        path = f"/test.Kinds/{kind}"
        channel: Any = self.channel  # bytes in, bytes out: no types to check

        async def requests() -> AsyncIterator[bytes]:
            yield request

        match kind:
            case "UnaryUnary" | "Invented":
                return channel.unary_unary(path)(request, timeout=20)
            case "StreamUnary":
                return channel.stream_unary(path)(requests(), timeout=20)
            case "StreamStream":
                return channel.stream_stream(path)(requests(), timeout=20)
            case _:
                return channel.unary_stream(path)(request, timeout=20)

    async def call(self, kind: str, request: bytes) -> list[bytes]:
        """Return all answers to a call."""
        call = self.open(kind, request)
        if kind in STREAMS:
            return [response async for response in call]
        return [await call]

    def metric(self, name: str, **labels: str) -> float:
        """Return a metric's value."""
        return self.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    running = Server(Behaviors())
    await running.server.start()
    yield running
    await running.channel.close()
    await running.server.stop(0)


Fails = Callable[[str, bytes], Awaitable[grpc.aio.AioRpcError]]


@pytest.fixture
def fails(server: Server) -> Fails:
    async def call(kind: str, request: bytes) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await server.call(kind, request)
        return failed.value

    return call


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_passes_unchanged(server: Server, kind: str) -> None:
    assert await server.call(kind, b"answer") == ([b"1", b"2"] if kind in STREAMS else [b"1"])


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unforeseen_exception_is_logged_and_leaks_nothing(fails: Fails, kind: str) -> None:
    with capture_logs() as logs:
        error = await fails(kind, b"fail")

    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "internal error"
    assert SECRET not in repr(error)
    assert SECRET not in str(error.trailing_metadata())
    [line] = [line for line in logs if line["event"] == "handler_failed"]
    assert line["method"] == f"/test.Kinds/{kind}"
    assert line["exc_info"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refusal_arrives_with_its_reason(fails: Fails, kind: str) -> None:
    error = error_from(await fails(kind, b"refuse"))
    assert isinstance(error, StoreFullError)
    assert str(error) == "no room for 7 bytes"
    assert error.metadata == {"free_bytes": "3"}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_status_that_the_handler_chose_passes(fails: Fails, kind: str) -> None:
    error = await fails(kind, b"abort")
    assert (error.code(), error.details()) == (grpc.StatusCode.OUT_OF_RANGE, "as the handler says")


async def test_an_unknown_method_is_unimplemented_and_makes_no_metric(server: Server) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await server.open("Invented", b"")

    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert server.metric("headrace_rpc_started_total", method="/test.Kinds/Invented") == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [(b"answer", "OK"), (b"fail", "INTERNAL"), (b"refuse", "RESOURCE_EXHAUSTED")],
)
async def test_each_call_is_counted_timed_and_logged_with_the_code_that_the_caller_sees(
    server: Server, kind: str, request_bytes: bytes, code: str
) -> None:
    method = f"/test.Kinds/{kind}"
    with capture_logs() as logs:
        await asyncio.gather(server.call(kind, request_bytes), return_exceptions=True)
        await server.server.stop(5)  # so that the handler has ended, too

    assert server.metric("headrace_rpc_started_total", method=method) == 1
    assert server.metric("headrace_rpc_handled_total", method=method, code=code) == 1
    assert server.metric("headrace_rpc_seconds_count", method=method) == 1
    assert server.metric("headrace_rpc_in_flight", method=method) == 0
    [line] = [line for line in logs if line["event"] == "rpc_ended"]
    assert (line["method"], line["code"]) == (method, code)
    assert line["log_level"] == ("debug" if code == "OK" else "warning")
    assert line["seconds"] >= 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_caller_that_goes_away_ends_the_handler(server: Server, kind: str) -> None:
    method = f"/test.Kinds/{kind}"
    with capture_logs() as logs:
        call = server.open(kind, b"hang")
        await server.behaviors.begun.wait()
        assert server.metric("headrace_rpc_in_flight", method=method) == 1
        call.cancel()
        await asyncio.wait_for(server.behaviors.ended.wait(), 20)
        await server.server.stop(5)

    assert server.metric("headrace_rpc_in_flight", method=method) == 0
    assert server.metric("headrace_rpc_handled_total", method=method, code="CANCELLED") == 1
    assert [line["event"] for line in logs if line["log_level"] != "debug"] == []


async def test_a_reader_that_goes_away_ends_a_generator_that_waits_to_be_read(
    server: Server,
) -> None:
    call = server.open("Flood", b"")
    await call.read()
    call.cancel()
    await asyncio.wait_for(server.behaviors.ended.wait(), 20)
    await server.server.stop(5)

    assert server.metric("headrace_rpc_in_flight", method="/test.Kinds/Flood") == 0


async def test_a_burst_of_calls_is_answered_in_full(server: Server) -> None:
    answers = await asyncio.gather(*(server.call("UnaryUnary", b"answer") for _ in range(4000)))
    assert answers == [[b"1"]] * 4000


async def test_a_message_over_the_limit_is_refused(fails: Fails) -> None:
    error = await fails("UnaryUnary", bytes(4 * 2**20 + 1))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
