"""The store as a process of its own: killed, stopped, and with a dead TransferQueue."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from headrace.config.config import Config
from headrace.errors import StoreFencedError
from headrace.rpc import announce
from headrace.rpc.channel import open_channel
from headrace.rpc.server import bind, create_server
from headrace.rpc.waits import Waits
from headrace.trajectory.client import get_trajectories, put_trajectories
from headrace.v1 import replay_pb2, replay_pb2_grpc, store_pb2_grpc
from headrace.v1 import store_pb2 as pb
from headrace.v1.trajectory_pb2 import Trajectory

MAIN = """
    import asyncio, os, pathlib, signal, sys, threading
    from headrace.config.config import Config
    from headrace.log import configure
    from headrace.rpc.process import ProcessOptions
    from headrace.store.nodes import Nodes
    from headrace.store.process import run

    start = Nodes.start

    def start_mortal(*, unit_count):
        "SIGUSR1 ends the storage units, as a bug in one of their threads would."
        nodes = start(unit_count=unit_count)
        def wait_for_the_end():
            signal.sigwait({signal.SIGUSR1})
            nodes.close()
        threading.Thread(target=wait_for_the_end, daemon=True).start()
        return nodes

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    Nodes.start = start_mortal
    configure("store", "test")
    config = Config.model_validate_json(sys.argv[1])
    options = ProcessOptions(name="store", announce=pathlib.Path(sys.argv[2]))
    sys.exit(asyncio.run(run(config, options)))
"""


class Replay(replay_pb2_grpc.ReplayBufferServiceServicer):
    """Remembers which lives of the store have registered; no row is dead."""

    def __init__(self) -> None:
        self.registered: list[replay_pb2.RegisterStoreRequest] = []
        self.known = ""
        self.late = ""
        """A life whose word comes after this one has asked which is known."""

    async def GetReplayStatus(
        self, request: replay_pb2.GetReplayStatusRequest, context: object
    ) -> replay_pb2.GetReplayStatusResponse:
        known, self.known, self.late = self.known, self.late or self.known, ""
        return replay_pb2.GetReplayStatusResponse(store_incarnation=known)

    async def RegisterStore(
        self, request: replay_pb2.RegisterStoreRequest, context: object
    ) -> replay_pb2.RegisterStoreResponse:
        self.registered.append(request)
        if self.known not in (request.store_incarnation, request.follows):
            raise StoreFencedError(f"the store is in life {self.known}")
        self.known = request.store_incarnation
        return replay_pb2.RegisterStoreResponse()

    async def FindDeadTrajectories(
        self, request: replay_pb2.FindDeadTrajectoriesRequest, context: object
    ) -> replay_pb2.FindDeadTrajectoriesResponse:
        return replay_pb2.FindDeadTrajectoriesResponse()


@dataclass
class Place:
    """Where stores are started, one after the other."""

    directory: Path
    replay: Replay
    replay_address: str
    waits: Waits = field(default_factory=lambda: Waits(stall_after_s=60))

    @property
    def config(self) -> Config:
        return Config.model_validate(
            {
                "run": {"run_dir": self.directory, "run_id": "test"},
                "data": {
                    "source": {"kind": "jsonl", "path": "rows.jsonl"},
                    "train_batch_size": 1,
                },
                "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "ab", "eos": "."}},
                "store": {"capacity_bytes": 2**24, "durability": "memory"},
                "endpoints": {"replay": self.replay_address},
            }
        )

    @property
    def announcement(self) -> Path:
        return self.directory / "store.json"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @asynccontextmanager
    async def started(self) -> AsyncIterator[asyncio.subprocess.Process]:
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                textwrap.dedent(MAIN),
                self.config.model_dump_json(),
                str(self.announcement),
                stderr=log,
            )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    @asynccontextmanager
    async def connected(
        self, process: asyncio.subprocess.Process
    ) -> AsyncIterator[store_pb2_grpc.TrajectoryStoreServiceAsyncStub]:
        while True:
            announced = announce.read(self.announcement)
            if announced is not None and announced.pid == process.pid:
                break
            assert process.returncode is None, self.log.read_text()
            await asyncio.sleep(0.05)
        async with open_channel(announced.address) as channel:
            yield store_pb2_grpc.TrajectoryStoreServiceStub(channel)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        server = create_server(CollectorRegistry())
        replay = Replay()  # type: ignore[abstract]  # the rest is not called
        replay_pb2_grpc.add_ReplayBufferServiceServicer_to_server(replay, server)
        address = bind(server, "127.0.0.1", 0)
        await server.start()
        stack.push_async_callback(server.stop, None)
        yield Place(tmp_path, replay, address)


def trajectory(session: int) -> Trajectory:
    return Trajectory(
        schema_version=1, key=f"e0r1_{session}_0_ab12a1", response_token_ids=range(100)
    )


async def test_a_killed_store_without_a_log_comes_back_empty_as_another_incarnation(
    place: Place,
) -> None:
    put = [trajectory(session) for session in range(4)]
    keys = [message.key for message in put]
    async with place.started() as process, place.connected(process) as stub:
        first = await put_trajectories(stub, put, waits=place.waits)
        found, _ = await get_trajectories(stub, keys, waits=place.waits)
        os.kill(process.pid, signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL

    async with place.started() as process, place.connected(process) as stub:
        lost, missing = await get_trajectories(stub, keys, waits=place.waits)
        second = await put_trajectories(stub, put, waits=place.waits)
        status = await stub.GetStoreStatus(pb.GetStoreStatusRequest(), timeout=5)

    assert list(found.values()) == put
    assert (lost, missing) == ({}, keys)
    assert first != second
    assert [request.store_incarnation for request in place.replay.registered] == [first, second]
    assert [request.follows for request in place.replay.registered] == ["", first]
    assert {request.capacity_bytes for request in place.replay.registered} == {2**24}
    assert status.store_incarnation == second
    assert status.row_count == 4


async def test_a_store_that_is_refused_follows_whoever_was_heard_meanwhile(place: Place) -> None:
    place.replay.known, place.replay.late = "older", "dead"
    async with place.started() as process, place.connected(process) as stub:
        incarnation = await put_trajectories(stub, [trajectory(0)], waits=place.waits)

    told = [(word.store_incarnation, word.follows) for word in place.replay.registered]
    assert told == [(incarnation, "older"), (incarnation, "dead")]
    assert "store_registration_refused" in place.log.read_text()
    assert "the store is in life dead" in place.log.read_text()


async def test_a_store_that_is_asked_to_stop_ends_with_code_0(place: Place) -> None:
    async with place.started() as process, place.connected(process) as stub:
        await put_trajectories(stub, [trajectory(0)], waits=place.waits)

        process.terminate()

        assert await asyncio.wait_for(process.wait(), 20) == 0


async def test_a_store_without_a_replay_buffer_can_be_stopped_while_it_waits(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, Replay(), "127.0.0.1:1")  # type: ignore[abstract]
    async with place.started() as process, place.connected(process) as stub:
        owners: set[str] = set()
        while "replay" not in owners:
            status = await stub.GetStoreStatus(pb.GetStoreStatusRequest(), timeout=20)
            owners = {wait.owner for wait in status.process.waits}
            await asyncio.sleep(0.05)

        process.terminate()

        assert await asyncio.wait_for(process.wait(), 20) == 0


async def test_a_store_whose_transfer_queue_died_ends_with_code_1_and_says_so(
    place: Place,
) -> None:
    async with place.started() as process, place.connected(process) as stub:
        await put_trajectories(stub, [trajectory(0)], waits=place.waits)

        process.send_signal(signal.SIGUSR1)

        assert await asyncio.wait_for(process.wait(), 40) == 1
    assert "transfer_queue_dead" in place.log.read_text()
