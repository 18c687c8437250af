"""Every error crosses the wire and comes back as what it was."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry

from headrace.errors import WIRE_ERRORS, InvalidFieldError, WireError
from headrace.rpc.server import bind, create_server
from headrace.rpc.status import error_from, to_status


async def raise_it(reason: bytes, _context: Any) -> bytes:
    """Raise the error of the reason asked for."""
    if reason == b"INVALID_FIELD":
        raise InvalidFieldError("max_count", "must be 1 to 7")
    raise WIRE_ERRORS[reason.decode()](f"naïve {reason.decode()}", uid="e0r1", step="3")


async def abort_strangely(request: bytes, context: Any) -> bytes:
    """End the call with statuses that are not ours."""
    match request:
        case b"foreign domain":
            info = error_details_pb2.ErrorInfo(reason="STORE_FULL", domain="example.org")
        case _:
            info = error_details_pb2.ErrorInfo(reason="NEVER_HEARD_OF", domain="headrace")
    status = status_pb2.Status(code=grpc.StatusCode.ABORTED.value[0], message="strange")
    status.details.add().Pack(info)
    if request == b"inconsistent":
        trailers = rpc_status.to_status(status).trailing_metadata
        await context.abort(grpc.StatusCode.ABORTED, "another message", trailers)
    await context.abort_with_status(rpc_status.to_status(status))
    return b""


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = create_server(CollectorRegistry())
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Raise": grpc.unary_unary_rpc_method_handler(raise_it),
        "Strange": grpc.unary_unary_rpc_method_handler(abort_strangely),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Errors", handlers)])
    bound = bind(server, "127.0.0.1", 0)
    await server.start()
    yield bound
    await server.stop(0)


async def failure(address: str, method: str, request: bytes) -> grpc.aio.AioRpcError:
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(f"/test.Errors/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(request, timeout=20)
    return failed.value


@pytest.mark.parametrize("reason", sorted(set(WIRE_ERRORS) - {"INVALID_FIELD"}))
async def test_an_error_comes_back_as_its_class_with_message_and_metadata(
    address: str, reason: str
) -> None:
    failed = await failure(address, "Raise", reason.encode())
    error = error_from(failed)

    assert type(error) is WIRE_ERRORS[reason]
    assert str(error) == f"naïve {reason}"
    assert error.metadata == {"uid": "e0r1", "step": "3"}
    assert failed.code() is error.code


async def test_an_invalid_field_comes_back_with_its_name(address: str) -> None:
    error = error_from(await failure(address, "Raise", b"INVALID_FIELD"))
    assert isinstance(error, InvalidFieldError)
    assert (str(error), error.field) == ("max_count: must be 1 to 7", "max_count")


async def test_a_status_has_exactly_one_error_info(address: str) -> None:
    failed = await failure(address, "Raise", b"STORE_FULL")
    status: Any = rpc_status.from_call(failed)  # type: ignore[arg-type]
    [detail] = status.details
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info)
    assert (info.reason, info.domain) == ("STORE_FULL", "headrace")


@pytest.mark.parametrize("request_bytes", [b"foreign domain", b"unknown reason", b"inconsistent"])
async def test_a_status_that_is_not_ours_is_none_of_our_errors(
    address: str, request_bytes: bytes
) -> None:
    failed = await failure(address, "Strange", request_bytes)
    assert failed.code() is grpc.StatusCode.ABORTED
    assert error_from(failed) is None


async def test_a_peer_that_is_away_is_none_of_our_errors() -> None:
    failed = await failure("127.0.0.1:1", "Raise", b"STORE_FULL")
    assert failed.code() is grpc.StatusCode.UNAVAILABLE
    assert error_from(failed) is None


def subclasses(error: type[WireError]) -> Iterator[type[WireError]]:
    """Yield all classes below."""
    for below in error.__subclasses__():
        yield below
        yield from subclasses(below)


def test_no_error_is_missing_from_the_table_and_no_reason_is_used_twice() -> None:
    # A process may tell kinds of one reason apart, for itself.
    own = [error for error in subclasses(WireError) if "reason" in vars(error)]
    assert sorted(WIRE_ERRORS) == sorted(error.reason for error in own)


def test_metadata_may_be_called_anything() -> None:
    error = WIRE_ERRORS["STORE_FULL"]("why", message="m", self="s")
    assert to_status(error).details == "why"
    assert error.metadata == {"message": "m", "self": "s"}
