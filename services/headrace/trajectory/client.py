"""Trajectories to and from the store.

What is read is checked again here, on the reader's side of the wire: the checksum of each value,
and the key that lies inside it. Knows nothing of TransferQueue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError

from headrace.errors import ChecksumMismatchError
from headrace.rpc.calls import persist
from headrace.rpc.failures import failure_of
from headrace.rpc.waits import Waits
from headrace.trajectory.chunks import MAX_CALL_BYTES, Joiner, Value, split, verify
from headrace.v1 import store_pb2 as pb
from headrace.v1 import store_pb2_grpc
from headrace.v1.trajectory_pb2 import Trajectory

if TYPE_CHECKING:
    Stub = store_pb2_grpc.TrajectoryStoreServiceAsyncStub

SCHEMA_VERSION = 1
"""Of the `Trajectory` messages that this code writes and understands."""

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


async def put_trajectories(
    stub: Stub,
    trajectories: Sequence[Trajectory],
    *,
    timeout_s: float = 60.0,
    waits: Waits | None = None,
    stopping: asyncio.Event | None = None,
) -> str:
    """Put trajectories under their keys; safe to repeat.

    Args:
        stub: The store.
        trajectories: At least one, each with its key set.
        timeout_s: Deadline of each call.
        waits: If given, an outage of the store is waited out and registered here.
        stopping: Ends that wait.

    Returns:
        The incarnation of the store that holds all of them.

    Raises:
        UsageError: the store does not speak with this process.
        WireError: KEY_EXISTS, CHECKSUM_MISMATCH, INVALID_FIELD, STORE_FULL; and, without `waits`,
            NOT_READY.
        grpc.RpcError: without `waits`, the store was not reached.
        Stopped: `stopping` was set.

    """
    assert trajectories, "nothing to put"
    calls = list(_calls(trajectories))

    async def put(call: Sequence[Value], timeout: float) -> pb.PutTrajectoriesResponse:
        messages = (pb.PutTrajectoriesRequest(chunks=chunks) for chunks in split(call))
        return await stub.PutTrajectories(_stream(messages), timeout=timeout)

    while True:
        answers = [
            await _asked(put, call, "a put", timeout_s=timeout_s, waits=waits, stopping=stopping)
            for call in calls
        ]
        incarnations = {answer.store_incarnation for answer in answers}
        if len(incarnations) == 1:
            return incarnations.pop()
        # The store was restarted between two calls and has lost the rows of the first.


async def get_trajectories(
    stub: Stub,
    keys: Sequence[str],
    *,
    timeout_s: float = 60.0,
    waits: Waits | None = None,
    stopping: asyncio.Event | None = None,
) -> tuple[dict[str, Trajectory], list[str]]:
    """Read trajectories.

    Args:
        stub: The store.
        keys: Their keys.
        timeout_s: Deadline of each call.
        waits: If given, an outage of the store is waited out and registered here.
        stopping: Ends that wait.

    Returns:
        The trajectories by key, in the order of the keys; and the keys that are not there, or
        whose value is damaged.

    Raises:
        UsageError: the store does not speak with this process.
        WireError: without `waits`, NOT_READY.
        grpc.RpcError: without `waits`, the store was not reached.
        Stopped: `stopping` was set.

    """
    if not keys:
        return {}, []

    async def get(call: Sequence[str], timeout: float) -> dict[str, Trajectory]:
        request = pb.GetTrajectoriesRequest(keys=call)
        return await _receive(stub.GetTrajectories(request, timeout=timeout))

    found = await _asked(get, keys, "a get", timeout_s=timeout_s, waits=waits, stopping=stopping)
    wanted = {key: found[key] for key in keys if key in found}
    return wanted, [key for key in dict.fromkeys(keys) if key not in wanted]


async def _asked(
    method: Callable[[_Request, float], Awaitable[_Response]],
    request: _Request,
    what: str,
    *,
    timeout_s: float,
    waits: Waits | None,
    stopping: asyncio.Event | None,
) -> _Response:
    """Call once, or until answered if there is somewhere to register the wait."""
    if waits is None:
        try:
            return await method(request, timeout_s)
        except grpc.RpcError as failed:
            raise failure_of(failed, "store") from failed

    async def once(request: _Request, *, timeout: float) -> _Response:
        return await method(request, timeout)

    return await persist(
        # `persist` repeats whatever is called like a unary method.
        cast("grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]", once),
        request,
        waits=waits,
        name=f"trajectory store: {what}",
        owner="store",
        timeout_s=timeout_s,
        stopping=stopping,
    )


async def _receive(
    responses: AsyncIterable[pb.GetTrajectoriesResponse],
) -> dict[str, Trajectory]:
    """Join what comes. A damaged value is left out; a malformed stream is an error."""
    joiner = Joiner()
    found = {}
    async for response in responses:
        for chunk in response.chunks:
            value = joiner.add(chunk)
            if value is not None and (trajectory := opened(value)) is not None:
                found[value.key] = trajectory
    joiner.finish()
    return found


def opened(value: Value) -> Trajectory | None:
    """Return the trajectory if checksum, message and the key inside are what they should be."""
    try:
        verify(value)
        trajectory = Trajectory.FromString(value.data)
    except (ChecksumMismatchError, DecodeError):
        return None
    return trajectory if trajectory.key == value.key else None


def _calls(trajectories: Sequence[Trajectory]) -> Iterator[list[Value]]:
    """Serialize trajectories, as many per call as it may hold."""
    call: list[Value] = []
    size_bytes = 0
    for trajectory in trajectories:
        value = Value.sealed(trajectory.key, trajectory.SerializeToString())
        if call and size_bytes + len(value.data) > MAX_CALL_BYTES:
            yield call
            call, size_bytes = [], 0
        call.append(value)
        size_bytes += len(value.data)
    yield call


async def _stream(
    messages: Iterator[pb.PutTrajectoriesRequest],
) -> AsyncIterator[pb.PutTrajectoriesRequest]:
    for message in messages:
        yield message
