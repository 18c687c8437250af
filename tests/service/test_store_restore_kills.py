"""The store's process, killed while it saves rows and while it restores them.

The replay buffer here knows of no row: what is not held is swept at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from part_process import Part, started
from prometheus_client import CollectorRegistry
from store_bench import trajectory

from headrace import failpoints
from headrace.config.config import Config
from headrace.rpc.channel import open_channel
from headrace.rpc.server import bind, create_server
from headrace.rpc.waits import Waits
from headrace.trajectory.client import get_trajectories, put_trajectories
from headrace.v1 import replay_pb2, replay_pb2_grpc, store_pb2_grpc
from headrace.v1 import store_pb2 as pb
from headrace.v1.resume_pb2 import CheckpointPart

pytestmark = pytest.mark.timeout(300)


class Replay(replay_pb2_grpc.ReplayBufferServiceServicer):
    """Remembers which lives of the store have registered; all rows are dead if `is_cruel`."""

    def __init__(self) -> None:
        self.registered: list[str] = []
        self.is_cruel = False
        self.changed = asyncio.Event()

    async def GetReplayStatus(
        self, request: replay_pb2.GetReplayStatusRequest, context: object
    ) -> replay_pb2.GetReplayStatusResponse:
        return replay_pb2.GetReplayStatusResponse()

    async def RegisterStore(
        self, request: replay_pb2.RegisterStoreRequest, context: object
    ) -> replay_pb2.RegisterStoreResponse:
        self.registered.append(request.store_incarnation)
        self.changed.set()
        return replay_pb2.RegisterStoreResponse()

    async def FindDeadTrajectories(
        self, request: replay_pb2.FindDeadTrajectoriesRequest, context: object
    ) -> replay_pb2.FindDeadTrajectoriesResponse:
        return replay_pb2.FindDeadTrajectoriesResponse(
            dead_keys=request.keys if self.is_cruel else []
        )

    async def until_registered(self, incarnation: str) -> None:
        async with asyncio.timeout(60):
            while incarnation not in self.registered:
                self.changed.clear()
                await self.changed.wait()


@dataclass
class Life:
    """A store under way."""

    part: Part
    stub: store_pb2_grpc.TrajectoryStoreServiceAsyncStub
    waits: Waits = field(default_factory=lambda: Waits(stall_after_s=300))

    async def put(self, *sessions: int, uid: str = "e0r1") -> list[str]:
        made = [trajectory(session, uid=uid) for session in sessions]
        await put_trajectories(self.stub, made, waits=self.waits)
        return [one.key for one in made]

    async def missing(self, keys: list[str]) -> list[str]:
        _, missing = await get_trajectories(self.stub, keys, waits=self.waits)
        return missing

    async def until_missing(self, keys: list[str]) -> None:
        async with asyncio.timeout(60):
            while await self.missing(keys) != keys:  # noqa: ASYNC110 (asked over the wire)
                await asyncio.sleep(0.05)

    async def status(self) -> pb.GetStoreStatusResponse:
        await self.missing(["none"])  # waits until it is ready
        return await self.stub.GetStoreStatus(pb.GetStoreStatusRequest(), timeout=20)

    async def hold(self, hold_id: str = "h1", hold_s: float = 600) -> None:
        await self.missing(["none"])
        request = pb.HoldDeletionsRequest(hold_id=hold_id, hold_s=hold_s)
        await self.stub.HoldDeletions(request, timeout=20)

    async def save(self, directory: Path) -> CheckpointPart:
        await self.hold()
        request = pb.SaveRowsRequest(uri=str(directory / "global_step_1"), hold_id="h1")
        return (await self.stub.SaveRows(request, timeout=60)).part

    async def restore(self, part: CheckpointPart, restore_id: str = "r1") -> pb.RestoreRowsResponse:
        request = pb.RestoreRowsRequest(restore_id=restore_id, part=part)
        return await self.stub.RestoreRows(request, timeout=60)

    async def kill(self) -> None:
        self.part.process.kill()
        await self.part.process.wait()


@dataclass
class Place:
    """Where stores are started, one after the other."""

    directory: Path
    replay: Replay
    address: str

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Life]:
        config = Config.model_validate(
            {
                "run": {"run_dir": self.directory, "run_id": "r"},
                "data": {"source": {"kind": "jsonl", "path": "rows.jsonl"}, "train_batch_size": 1},
                "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "ab", "eos": "."}},
                "store": {"capacity_bytes": 2**24, "sweep_every_s": 0.05, "sweep_grace_s": 0.05},
                "endpoints": {"replay": self.address},
            }
        )
        async with (
            started("store", config, self.directory, "store") as part,
            open_channel(await part.address()) as channel,
        ):
            yield Life(part, store_pb2_grpc.TrajectoryStoreServiceStub(channel))

    @property
    def in_store(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "store").iterdir())


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    server = create_server(CollectorRegistry())
    replay = Replay()  # type: ignore[abstract]  # the rest is not called
    replay_pb2_grpc.add_ReplayBufferServiceServicer_to_server(replay, server)
    address = bind(server, "127.0.0.1", 0)
    await server.start()
    yield Place(tmp_path, replay, address)
    await server.stop(None)


async def test_restored_rows_outlive_a_kill_and_are_not_swept_before_the_ledger_knows_them(
    place: Place, tmp_path: Path
) -> None:
    async with place.store() as life:
        saved = await life.put(0, 1, 2)
        part = await life.save(tmp_path)
        others = await life.put(3, 4)
        first = (await life.status()).store_incarnation
        place.replay.is_cruel = True
        second = await life.restore(part)
        await life.kill()

    assert second.row_count == 3
    async with place.store() as life:
        status = await life.status()
        assert (status.store_incarnation, status.hold_id) == (second.store_incarnation, "h1")
        assert await life.restore(part) == second, "a repeat is answered as the first time"
        assert await life.missing([*saved, *others]) == others
        assert place.replay.registered == [first]

        # The ledger knows them now.
        place.replay.is_cruel = False
        await life.stub.ReleaseDeletions(pb.ReleaseDeletionsRequest(hold_id="h1"), timeout=20)
        await place.replay.until_registered(second.store_incarnation)
        assert await life.missing(saved) == []

        # Where nobody releases them, they are held until the deadline.
        await life.hold("h2")
        third = await life.restore(part, "r2")
        place.replay.is_cruel = True
        assert third.store_incarnation not in place.replay.registered
        await life.hold("h2", hold_s=0.2)
        await place.replay.until_registered(third.store_incarnation)
        await life.until_missing(saved)
        life.part.process.terminate()
        assert await life.part.exit_code() == 0
    [folder] = set(place.in_store) - {"lock", "log.json"}
    assert folder.startswith("restored-")


async def test_a_kill_at_each_point_leaves_a_store_that_can_try_again(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def dying(point: str) -> AsyncIterator[Life]:
        """Start a store that dies at the point, in the last call within."""
        monkeypatch.setenv(failpoints.VARIABLE, point)
        async with place.store() as life:
            with pytest.raises(grpc.RpcError):
                yield life
            async with asyncio.timeout(60):
                assert await life.part.process.wait() == -signal.SIGKILL
        monkeypatch.delenv(failpoints.VARIABLE)

    async with dying("store_part.saved") as life:
        keys = await life.put(0, 1, 2, 3)
        first = (await life.status()).store_incarnation
        await life.save(tmp_path)
    assert any(name.startswith("passing-") for name in place.in_store)

    async with dying("store_part.written") as life:
        assert await life.missing(keys) == []
        await life.save(tmp_path)

    async with dying("store.restoring") as life:
        keys += await life.put(0, uid="e0r2")
        part = await life.save(tmp_path)
        later = await life.put(1, uid="e0r2")
        await life.restore(part)

    async with dying("store.restored") as life:
        assert (await life.status()).store_incarnation == first
        assert await life.missing([*keys, *later]) == []
        assert not any(name.startswith(("passing-", "restored-")) for name in place.in_store)
        await life.restore(part)  # The hold has gone with the store that died.

    async with place.store() as life:
        status = await life.status()
        assert (status.store_incarnation != first, status.hold_id) == (True, "r1")
        assert (await life.restore(part)).store_incarnation == status.store_incarnation
        assert await life.missing([*keys, *later]) == later
        assert not any(name.startswith("passing-") for name in place.in_store)
