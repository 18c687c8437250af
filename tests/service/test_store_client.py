"""The client's own checks, against servers that lie as broken disks and networks do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from headrace.errors import InvalidFieldError
from headrace.rpc.channel import open_channel
from headrace.rpc.server import bind, create_server
from headrace.trajectory.chunks import Value, split
from headrace.trajectory.client import get_trajectories, put_trajectories
from headrace.v1 import store_pb2 as pb
from headrace.v1 import store_pb2_grpc
from headrace.v1.trajectory_pb2 import Trajectory


class Liar(store_pb2_grpc.TrajectoryStoreServiceServicer):
    """Answers each get with the same chunks, and each put with the next incarnation."""

    def __init__(
        self, *, chunks: Sequence[pb.TrajectoryChunk] = (), incarnations: Sequence[str] = ()
    ) -> None:
        self.chunks = chunks
        self.incarnations = list(incarnations)
        self.puts: list[list[str]] = []

    async def GetTrajectories(
        self, request: pb.GetTrajectoriesRequest, context: object
    ) -> AsyncIterator[pb.GetTrajectoriesResponse]:
        yield pb.GetTrajectoriesResponse(chunks=self.chunks)

    async def PutTrajectories(
        self, request_iterator: AsyncIterator[pb.PutTrajectoriesRequest], context: object
    ) -> pb.PutTrajectoriesResponse:
        requests = [request async for request in request_iterator]
        self.puts.append([chunk.key for request in requests for chunk in request.chunks])
        return pb.PutTrajectoriesResponse(store_incarnation=self.incarnations.pop(0))


@asynccontextmanager
async def connected(liar: Liar) -> AsyncIterator[store_pb2_grpc.TrajectoryStoreServiceAsyncStub]:
    server = create_server(CollectorRegistry())
    store_pb2_grpc.add_TrajectoryStoreServiceServicer_to_server(liar, server)
    address = bind(server, "127.0.0.1", 0)
    await server.start()
    async with open_channel(address) as channel:
        yield store_pb2_grpc.TrajectoryStoreServiceStub(channel)
    await server.stop(None)


def trajectory(session: int) -> Trajectory:
    return Trajectory(schema_version=1, key=f"e0r1_{session}_0_ab12a1", reward=1.0)


def chunk_of(key: str, data: bytes, *, crc32c: int | None = None) -> pb.TrajectoryChunk:
    value = Value.sealed(key, data)
    if crc32c is not None:
        value = Value(key, data, crc32c)
    return next(split([value]))[0]


GOOD = trajectory(0)
BAD_KEY = trajectory(1).key


@pytest.mark.parametrize(
    "bad",
    [
        chunk_of(BAD_KEY, trajectory(1).SerializeToString(), crc32c=1),
        chunk_of(BAD_KEY, trajectory(2).SerializeToString()),
        chunk_of(BAD_KEY, b"\xff\xff"),
    ],
    ids=["another checksum", "another trajectory", "no trajectory"],
)
async def test_a_value_that_is_not_what_its_key_says_counts_as_missing(
    bad: pb.TrajectoryChunk,
) -> None:
    liar = Liar(chunks=[bad, chunk_of(GOOD.key, GOOD.SerializeToString())])  # type: ignore[abstract]
    async with connected(liar) as stub:
        found, missing = await get_trajectories(stub, [BAD_KEY, GOOD.key])

    assert found == {GOOD.key: GOOD}
    assert missing == [BAD_KEY]


async def test_a_stream_that_ends_within_a_value_is_an_error() -> None:
    torn = chunk_of(GOOD.key, GOOD.SerializeToString())
    torn.data = torn.data[:-1]
    async with connected(Liar(chunks=[torn])) as stub:  # type: ignore[abstract]
        with pytest.raises(InvalidFieldError, match="ends at byte"):
            await get_trajectories(stub, [GOOD.key])


async def test_what_was_not_asked_for_is_not_returned() -> None:
    liar = Liar(chunks=[chunk_of(GOOD.key, GOOD.SerializeToString())])  # type: ignore[abstract]
    async with connected(liar) as stub:
        assert await get_trajectories(stub, ["other"]) == ({}, ["other"])


async def test_no_key_asks_for_nothing() -> None:
    async with connected(Liar()) as stub:  # type: ignore[abstract]
        assert await get_trajectories(stub, []) == ({}, [])


async def test_all_is_put_again_if_the_store_was_restarted_between_two_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put = [trajectory(session) for session in range(3)]
    keys = [one.key for one in put]
    monkeypatch.setattr("headrace.trajectory.client.MAX_CALL_BYTES", 2 * put[0].ByteSize())
    liar = Liar(incarnations=["life1", "life2", "life2", "life2"])  # type: ignore[abstract]
    async with connected(liar) as stub:
        incarnation = await put_trajectories(stub, put)

    assert incarnation == "life2"
    assert liar.puts == [keys[:2], keys[2:], keys[:2], keys[2:]]
