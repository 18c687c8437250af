"""Rows that are taken from a checkpoint: all of them or none, into any number of storage units."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from store_bench import Bench, open_bench, trajectory, value_of

from headrace import failpoints
from headrace.errors import CannotResumeError, StoreFullError, WireError
from headrace.rpc.status import error_from
from headrace.store import identity
from headrace.store.log import StoreLog
from headrace.store.nodes import Nodes
from headrace.store.queue import PARTITION
from headrace.store.row import inspect
from headrace.trajectory.client import get_trajectories, put_trajectories
from headrace.v1 import store_pb2 as pb
from headrace.v1.resume_pb2 import CheckpointPart
from headrace.v1.trajectory_pb2 import Trajectory

UNITS = 2


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    started = Nodes.start(unit_count=UNITS)
    yield started
    started.close()


async def hold(bench: Bench, hold_id: str = "h1") -> None:
    request = pb.HoldDeletionsRequest(hold_id=hold_id, hold_s=600)
    await bench.stub.HoldDeletions(request, timeout=20)


async def release(bench: Bench, hold_id: str = "h1") -> int:
    request = pb.ReleaseDeletionsRequest(hold_id=hold_id)
    return (await bench.stub.ReleaseDeletions(request, timeout=20)).deleted_count


async def save(bench: Bench, uri: str) -> CheckpointPart:
    await hold(bench)
    saved = await bench.stub.SaveRows(pb.SaveRowsRequest(uri=uri, hold_id="h1"), timeout=60)
    await release(bench)
    return saved.part


async def restore(bench: Bench, part: CheckpointPart, restore_id: str = "r1") -> str:
    answer = await restored(bench, part, restore_id)
    assert answer.row_count == len(bench.store.catalogue)
    return answer.store_incarnation


async def restored(
    bench: Bench, part: CheckpointPart, restore_id: str = "r1"
) -> pb.RestoreRowsResponse:
    """Restore, while others may put."""
    return await bench.stub.RestoreRows(
        pb.RestoreRowsRequest(restore_id=restore_id, part=part), timeout=60
    )


async def refusal(bench: Bench, part: CheckpointPart) -> WireError:
    with pytest.raises(grpc.RpcError) as failed:
        await restore(bench, part)
    error = error_from(failed.value)
    assert error is not None
    return error


def made(count: int, uid: str = "e0r1", tokens: int = 50) -> list[Trajectory]:
    return [trajectory(session, uid=uid, tokens=tokens) for session in range(count)]


def keys_of(trajectories: list[Trajectory]) -> list[str]:
    return [one.key for one in trajectories]


def incarnation_of(bench: Bench) -> str:
    return bench.store.incarnation


async def test_rows_of_two_units_are_restored_into_one_two_or_three(
    nodes: Nodes, tmp_path: Path
) -> None:
    put = [*made(30), *made(4, "e0r2", tokens=300_000)]
    assert sum(one.ByteSize() for one in put) > 8 * 2**20, "more than is read at a time"
    async with open_bench(tmp_path / "first", nodes) as bench:
        await put_trajectories(bench.stub, put)
        # What is half there, or in doubt, is in TransferQueue's files, and not in our list.
        client = nodes.attach("ghost")
        await client.async_kv_retrieve_meta(keys=["ghost"], partition_id=PARTITION, create=True)
        client.close()
        await bench.queue.put(["stranger"], [b"x"], [{}])
        part = await save(bench, str(tmp_path / "global_step_1"))
        await bench.queue.clear(["ghost", "stranger"])

    for unit_count in (1, 2, 3):
        directory = tmp_path / f"{unit_count}"
        async with open_bench(directory, unit_count=unit_count) as bench:
            other = trajectory(0, uid="e0r9")
            await put_trajectories(bench.stub, [other])
            await hold(bench)
            incarnation = await restore(bench, part)
            assert incarnation not in ("", "life1")

            found, missing = await get_trajectories(bench.stub, [*keys_of(put), other.key])
            assert list(found.values()) == put
            assert missing == [other.key], "what was there is gone"
            assert list(bench.store.catalogue.keys_put_until(float("inf"))) == keys_of(put)
            assert sorted(await bench.store.life.queue.keys()) == sorted(keys_of(put))
            assert await put_trajectories(bench.stub, [put[0], other]) == incarnation
            await release(bench)
            assert await bench.store.delete(keys_of(put)) == len(put)
            await bench.store.life.queue.probe()
            assert list(directory.glob("*")) == []


async def test_a_damaged_or_missing_file_is_named_and_the_store_stays_as_it_was(
    nodes: Nodes, tmp_path: Path
) -> None:
    put = made(5)
    async with open_bench(tmp_path / "first", nodes) as bench:
        await put_trajectories(bench.stub, put)
        part = await save(bench, str(tmp_path / "global_step_1"))
        await hold(bench)
        assert len(part.files) == 6

        for file in part.files:
            path = tmp_path / "global_step_1" / file.path
            whole = path.read_bytes()
            flipped = bytearray(whole)
            flipped[len(whole) // 2] ^= 1
            for damaged in (bytes(flipped), whole[:-1], None):
                path.unlink()
                if damaged is not None:
                    path.write_bytes(damaged)
                error = await refusal(bench, part)
                assert isinstance(error, CannotResumeError)
                assert file.path in str(error)
            path.write_bytes(whole)

            lacking = CheckpointPart(uri=part.uri, files=[one for one in part.files if one != file])
            if not file.path.endswith("metadata.json"):
                assert isinstance(await refusal(bench, lacking), CannotResumeError)

        elsewhere = CheckpointPart(uri="nodriver://x", files=part.files)
        assert isinstance(await refusal(bench, elsewhere), CannotResumeError)
        assert incarnation_of(bench) == "life1"
        found, _ = await get_trajectories(bench.stub, keys_of(put))
        assert list(found.values()) == put
        assert list((tmp_path / "first").glob("*")) == []


async def test_rows_that_do_not_fit_are_refused(nodes: Nodes, tmp_path: Path) -> None:
    async with open_bench(tmp_path / "first", nodes) as bench:
        await put_trajectories(bench.stub, made(5))
        part = await save(bench, str(tmp_path / "global_step_1"))
    async with open_bench(tmp_path / "second", nodes, capacity_bytes=1000) as bench:
        await hold(bench)
        error = await refusal(bench, part)
        assert isinstance(error, StoreFullError)
        assert "store.capacity_bytes" in str(error)
        assert incarnation_of(bench) == "life1"


async def test_a_row_that_was_lost_before_the_save_is_left_out_and_the_rest_is_there(
    nodes: Nodes, tmp_path: Path
) -> None:
    put = made(6)
    async with open_bench(tmp_path / "first", nodes) as bench:
        await put_trajectories(bench.stub, put)
        rotten = trajectory(1, uid="e0r7").SerializeToString()
        await bench.queue.put([put[1].key], [rotten], [{}])
        await bench.queue.clear([put[4].key])
        part = await save(bench, str(tmp_path / "global_step_1"))
    lost = [put[1].key, put[4].key]

    async with open_bench(tmp_path / "second") as bench:
        await restore(bench, part)
        assert bench.store.hold.hold_id == "r1", "where there is no hold, it has one of its own"

        checked = await bench.stub.CheckTrajectories(
            pb.CheckTrajectoriesRequest(keys=keys_of(put)), timeout=20
        )
        assert list(checked.missing_keys) == lost
        # They may be generated again, and put under the same keys.
        await put_trajectories(bench.stub, [put[1], put[4]])
        found, _ = await get_trajectories(bench.stub, keys_of(put))
        assert len(found) == len(put)


async def test_of_a_life_that_was_followed_nothing_is_written_down_any_more(
    tmp_path: Path,
) -> None:
    """Its registration, which takes its time, would have put its rows back in the log's place."""
    log = StoreLog.open(tmp_path / "log", run_id="r", new_incarnation="life1", fsync=False)
    assert list(log.recover()) == []
    async with open_bench(tmp_path / "scratch", log=log) as bench:
        await put_trajectories(bench.stub, made(3))
        part = await save(bench, str(tmp_path / "global_step_1"))
        await hold(bench)
        await restore(bench, part)
        followed = bench.store.life
        latest = await restore(bench, part, "r2")

        await bench.store.write_down_hold(followed, "", 0.0)

        there = identity.read(tmp_path / "log", run_id="r")
        assert there is not None
        assert (there.store_incarnation, there.hold_id) == (latest, "h1")


async def test_puts_and_deletions_around_a_restore_belong_to_the_life_that_they_were_made_in(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = made(4)
    async with open_bench(tmp_path / "first", nodes) as bench:
        await put_trajectories(bench.stub, put)
        part = await save(bench, "memory://store/global_step_1")

    log = StoreLog.open(tmp_path / "log", run_id="r", new_incarnation="life1", fsync=True)
    assert list(log.recover()) == []
    async with open_bench(tmp_path / "second", unit_count=1, log=log) as bench:
        await put_trajectories(bench.stub, [put[0]])
        await hold(bench)
        await bench.stub.DeleteTrajectories(
            pb.DeleteTrajectoriesRequest(keys=[put[0].key]), timeout=20
        )
        monkeypatch.setattr(failpoints, "_reached", Counter())
        monkeypatch.setenv(failpoints.VARIABLE, "store.restored:1:raise")
        confirmed: dict[str, str] = {}
        ended = asyncio.Event()

        async def work() -> None:
            for number in range(10_000):
                one = trajectory(0, uid=f"e1r{number}")
                confirmed[one.key] = await bench.store.put([inspect(value_of(one))])
                if ended.is_set():
                    return

        working = asyncio.create_task(work())
        # The first answer is lost, and the channel asks again.
        first = (await restored(bench, part)).store_incarnation
        assert failpoints._reached["store.restored"] == 1
        twice = await asyncio.gather(*(restored(bench, part, "r2") for _ in range(2)))
        second, third = (answer.store_incarnation for answer in twice)
        ended.set()
        await working

        assert first != second
        assert second == third == incarnation_of(bench)
        here = [key for key, incarnation in confirmed.items() if incarnation == second]
        gone = [key for key, incarnation in confirmed.items() if incarnation != second]
        assert here
        assert set(confirmed.values()) <= {"life1", first, second}
        _, missing = await get_trajectories(bench.stub, [*here, *gone, *keys_of(put)])
        assert missing == gone
        # A sweep that has asked about the rows of a life that is over removes none of this one.
        assert bench.store.life.log is not None
        assert len(bench.store.life.log) == len(bench.store.catalogue)
        assert bench.store.life.log.identity.hold_id == "h1"
        await hold(bench, "h2")
        assert bench.store.life.log.identity.hold_id == "h2", "it outlives the process"
        assert await release(bench, "h2") == 0
        assert bench.store.life.log.identity.hold_id == ""
        assert await bench.store.delete(keys_of(put), incarnation=first) == 0
    # The log that is in place is the last life's; those of the others are gone.
    log = bench.store.life.log
    log.close()
    assert not list((tmp_path / "log").glob("rows-*"))
    assert len(list((tmp_path / "log").glob("restored-*"))) == 1
    again = StoreLog.open(tmp_path / "log", run_id="r", new_incarnation="life9", fsync=True)
    assert (again.incarnation, again.identity.restore_id) == (second, "r2")
    assert {value.key for value in again.recover()} == {*keys_of(put), *here}
    again.close()
