"""The store's process with a log: killed, stopped, without room, doubled, and with a damaged log.

The replay buffer is the real one. `HEADRACE_STORE_KILLS` makes the random run longer.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from ledger_world import settings
from part_process import Part, started
from replay_server import Replay, replay_server

from headrace.config.config import Config
from headrace.errors import HeadraceError
from headrace.rpc.channel import open_channel
from headrace.rpc.waits import Waits
from headrace.trajectory.client import get_trajectories, put_trajectories
from headrace.trajectory.key import TrajectoryKey
from headrace.v1 import prompt_pb2, replay_pb2, store_pb2_grpc
from headrace.v1 import store_pb2 as pb
from headrace.v1.trajectory_pb2 import Trajectory

KILLS = int(os.environ.get("HEADRACE_STORE_KILLS", "3"))
SEED = int(os.environ.get("HEADRACE_STORE_SEED", "1"))
GROUPS = 4
SESSIONS = 2

pytestmark = pytest.mark.timeout(300)


@dataclass
class Life:
    """A store under way, of which `stub` answers."""

    part: Part
    stub: store_pb2_grpc.TrajectoryStoreServiceAsyncStub
    waits: Waits

    async def put(self, trajectories: list[Trajectory]) -> str:
        return await put_trajectories(self.stub, trajectories, waits=self.waits)

    async def get(self, keys: list[str]) -> tuple[dict[str, Trajectory], list[str]]:
        return await get_trajectories(self.stub, keys, waits=self.waits)

    async def incarnation(self) -> str:
        await self.get(["none"])
        status = await self.stub.GetStoreStatus(pb.GetStoreStatusRequest(), timeout=20)
        return status.store_incarnation

    async def kill(self) -> None:
        self.part.process.kill()
        await self.part.process.wait()


@dataclass
class Place:
    """One run directory and the replay buffer of its run."""

    directory: Path
    replay: Replay
    waits: Waits = field(default_factory=lambda: Waits(stall_after_s=300))

    def config(self, **changes: Any) -> Config:
        return Config.model_validate(
            {
                "run": {"run_dir": self.directory, "run_id": changes.pop("run_id", "r")},
                "data": {
                    "source": {"kind": "jsonl", "path": "rows.jsonl"},
                    "train_batch_size": GROUPS,
                },
                "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "ab", "eos": "."}},
                "store": {"capacity_bytes": 2**26, "sweep_grace_s": 600.0} | changes,
                "endpoints": {"replay": self.replay.target},
            }
        )

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Life]:
        async with (
            started("store", self.config(), self.directory, "store") as part,
            open_channel(await part.address()) as channel,
        ):
            stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
            yield Life(part, stub, self.waits)

    async def refused(self, **changes: Any) -> str:
        """Start a store that ends at once with code 2; give its last words."""
        async with started("store", self.config(**changes), self.directory, "other") as part:
            assert await part.exit_code() == 2
            [line] = part.log.read_text().splitlines()
            return line

    @property
    def segments(self) -> list[Path]:
        return sorted((self.directory / "store").glob("rows-*.log"))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    rules = settings(n=SESSIONS, batch_size=GROUPS, window_size=GROUPS)
    async with replay_server(tmp_path / "journal", rules) as replay:
        yield Place(tmp_path, replay)


def trajectory(key: str, tokens: int = 200) -> Trajectory:
    return Trajectory(
        schema_version=1,
        key=key,
        response_token_ids=range(tokens),
        logprobs=[-0.5] * tokens,
        reward=float(sum(key.encode())),
    )


async def finish_groups(place: Place, life: Life) -> list[str]:
    """Be feeder and worker: put and complete all that is demanded; give the keys."""
    await place.replay.feed()
    leases = await place.replay.lease()
    assert len(leases) == GROUPS
    lineage = place.replay.buffer.ledger.lineage
    keys = [
        str(TrajectoryKey(lease.uid, session, 0, lineage, lease.attempt))
        for lease in leases
        for session in lease.missing_sessions
    ]
    done = place.replay.completion(leases)
    done.store_incarnation = await life.put([trajectory(key) for key in keys])
    answer = await place.replay.stub.CompleteSessions(done)
    assert set(answer.statuses) == {replay_pb2.LEASE_STATUS_DONE}
    return keys


async def sample(place: Place, incarnation: int) -> list[prompt_pb2.SampledGroup]:
    answer = await place.replay.stub.SampleBatch(
        replay_pb2.SampleBatchRequest(incarnation=incarnation, step=1, part_count=1)
    )
    assert answer.status == replay_pb2.SAMPLE_STATUS_READY
    return list(answer.groups)


async def lost_groups(place: Place) -> int:
    status = await place.replay.stub.GetReplayStatus(replay_pb2.GetReplayStatusRequest())
    return dict(status.regenerated).get("store_lost", 0)


async def test_after_a_kill_no_finished_group_is_generated_again_but_those_of_damaged_rows(
    place: Place,
) -> None:
    trainer = await place.replay.begin()
    async with place.store() as life:
        keys = await finish_groups(place, life)
        first = await life.incarnation()
        await life.kill()

    async with place.store() as life:
        assert await life.incarnation() == first
        assert await lost_groups(place) == 0
        groups = await sample(place, trainer)
        sampled = [ref.key for group in groups for ref in group.trajectories]
        assert sorted(sampled) == sorted(keys)
        assert await life.get(sampled) == ({key: trajectory(key) for key in sampled}, [])
        await life.kill()

    [path] = place.segments
    data = bytearray(path.read_bytes())
    data[data.index(keys[3].encode()) + 100] ^= 1
    path.write_bytes(data)
    async with place.store() as life:
        assert await life.incarnation() == first
        found, missing = await life.get(keys)
        assert (len(found), missing) == (len(keys) - 1, [keys[3]])
        log = life.part.log.read_text()
        assert "store_log_damaged" in log
        assert keys[3] in log
        await place.replay.stub.ReturnGroups(
            replay_pb2.ReturnGroupsRequest(
                incarnation=trainer,
                step=1,
                uids=[TrajectoryKey.parse(keys[3]).uid],
                error="a row is missing",
            )
        )
        status = await place.replay.stub.GetReplayStatus(replay_pb2.GetReplayStatusRequest())
        assert (status.counts.pending, status.counts.sampled) == (1, GROUPS - 1)


async def test_confirmed_rows_outlive_kills_at_random_moments(place: Place) -> None:
    dice = random.Random(SEED)
    await place.replay.begin()
    there: dict[str, Trajectory] = {}
    gone: set[str] = set()
    unknown: set[str] = set()
    incarnations: set[str] = set()

    async def work(life: Life, worker: int, life_number: int, enough: asyncio.Event) -> None:
        for number in range(10_000):
            made = [
                trajectory(f"e{life_number}r{number}_{worker}_{i}_l0a1", dice.randrange(900))
                for i in range(dice.randrange(1, 5))
            ]
            incarnations.add(await life.put(made))
            there.update((one.key, one) for one in made)
            if number % 3 == 2:
                dying = dice.sample(sorted(there), len(there) // 3)
                unknown.update(dying)
                for key in dying:
                    del there[key]
                await life.stub.DeleteTrajectories(
                    pb.DeleteTrajectoriesRequest(keys=dying), timeout=60
                )
                unknown.difference_update(dying)
                gone.update(dying)
            if number >= dice.randrange(4, 12):
                enough.set()

    for life_number in range(KILLS):
        async with place.store() as life:
            enough = asyncio.Event()
            workers = [
                asyncio.create_task(work(life, worker, life_number, enough)) for worker in range(4)
            ]
            await asyncio.wait(
                [*workers, asyncio.create_task(enough.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
            await life.kill()
            for worker in workers:
                worker.cancel()
            for ended in await asyncio.gather(*workers, return_exceptions=True):
                expected = asyncio.CancelledError, grpc.RpcError, HeadraceError
                assert isinstance(ended, expected), ended

    async with place.store() as life:
        found, missing = await life.get(list(there))
        assert missing == []
        assert found == there
        assert await life.get(sorted(gone)) == ({}, sorted(gone))
        incarnations.add(await life.incarnation())
    assert len(incarnations) == 1


async def test_a_full_disk_is_a_wait_by_that_name_and_ends_with_it(place: Place) -> None:
    await place.replay.begin()
    before, after = (trajectory(f"e0r1_{session}_0_l0a1", 30_000) for session in range(2))
    async with place.store() as life:
        pid = life.part.process.pid
        first = await life.put([before])
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (before.ByteSize() + 1000, hard))

        putting = asyncio.create_task(life.put([after]))
        while not any("disk full" in wait.ends_when for wait in place.waits.snapshot()):
            assert not putting.done()
            await asyncio.sleep(0.01)
        assert await life.get([before.key, after.key]) == ({before.key: before}, [after.key])
        assert "in use by another store" in await place.refused()
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

        assert await asyncio.wait_for(putting, 60) == first
        life.part.process.terminate()
        assert await life.part.exit_code() == 0

    async with place.store() as life:
        found, _ = await life.get([before.key, after.key])
        assert list(found.values()) == [before, after]
        # A worker that has not seen the answer puts again; nothing is written twice.
        assert await life.put([before, after]) == first
        status = await life.stub.GetStoreStatus(pb.GetStoreStatusRequest(), timeout=20)
        assert status.row_count == 2


async def test_a_store_without_its_log_is_another_one_and_says_so(place: Place) -> None:
    await place.replay.begin()
    async with place.store() as life:
        await finish_groups(place, life)
        first = await life.incarnation()
        await life.kill()
    assert "belongs to run 'r', not to 'q'" in await place.refused(run_id="q")
    shutil.rmtree(place.directory / "store")

    async with place.store() as life:
        assert await life.incarnation() != first
        assert '"store_log_missing"' in life.part.log.read_text()
        assert await lost_groups(place) == GROUPS
