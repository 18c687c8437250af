"""Snapshots that fail: the reason is told at once, and nothing of them stays, whoever died."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
from coordinated import Coordinated, coordinated

from headrace.errors import SnapshotFailedError, SnapshotLostError
from headrace.rpc.status import error_from
from headrace.v1 import checkpoint_pb2 as pb

pytestmark = pytest.mark.timeout(300)

DISK_FULL = "[Errno 28] No space left on device: 'trainer/state'"


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Coordinated]:
    async with coordinated(tmp_path) as started:
        await started.come()
        await started.train()
        await started.save()
        await started.train()
        yield started


async def reported(run: Coordinated, snapshot_id: str, error: str) -> None:
    await run.coordinator.ReportPart(
        pb.ReportPartRequest(snapshot_id=snapshot_id, error=error), timeout=10
    )


async def failure(run: Coordinated, snapshot_id: str) -> str:
    """Wait until a snapshot has failed; give the reason."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await run.commit(snapshot_id)
    error = error_from(failed.value)
    assert isinstance(error, SnapshotFailedError)
    return str(error)


async def nothing_is_left(run: Coordinated) -> None:
    """The checkpoint before is the only one, soon: what others were still writing goes, too."""
    names = ["global_step_1", "latest_checkpointed_iteration.txt"]
    async with asyncio.timeout(20):
        while not (  # noqa: ASYNC110
            run.checkpoints.storage.names() == names and await listed(run) == [(1, "")]
        ):
            await asyncio.sleep(0.05)
    assert (await run.status()).saved_step == 1


async def listed(run: Coordinated) -> list[tuple[int, str]]:
    """Have the coordinator say what checkpoints there are: step, and what is wrong with it."""
    found = await run.coordinator.ListCheckpoints(pb.ListCheckpointsRequest(verify=True))
    return [(one.step, one.problem) for one in found.checkpoints]


async def removed_late(run: Coordinated) -> None:
    """Wait until the coordinator has removed what came after the end of a snapshot."""
    log = run.parts["checkpoint"].log
    await until(lambda: "unfinished_removed" in log.read_text())


async def test_a_trainer_that_cannot_write_its_part_ends_the_snapshot_with_its_reason(
    run: Coordinated,
) -> None:
    begun = await run.begin_snapshot()
    for _ in range(2):
        await reported(run, begun.snapshot_id, DISK_FULL)

    async with asyncio.timeout(10):
        reason = await failure(run, begun.snapshot_id)

    assert reason == (
        f"the snapshot of step 2 failed: the trainer's part could not be written: {DISK_FULL}"
    )
    assert (await run.coordinator_status()).snapshot_error == reason
    await nothing_is_left(run)
    async with asyncio.timeout(20):
        while (await run.store_status()).hold_id:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await run.save()  # another one, of the same step
    assert run.checkpoints.look(2, read=True).problems == ()
    assert (await run.coordinator_status()).snapshot_error == ""


async def test_what_the_trainer_writes_for_a_snapshot_that_has_failed_is_removed(
    run: Coordinated,
) -> None:
    await run.restart_store(fail="store_part.saved:1:raise")
    begun = await run.begin_snapshot()
    assert "failpoint store_part.saved" in await failure(run, begun.snapshot_id)

    await nothing_is_left(run)
    await run.report_part(begun.snapshot_id)  # it was in the midst of it

    await removed_late(run)
    await nothing_is_left(run)


async def test_what_others_still_write_for_a_snapshot_that_has_failed_is_removed(
    run: Coordinated,
) -> None:
    await run.restart_store(fail="store_part.saved:1:stop")
    begun = await run.begin_snapshot()
    store = run.parts["store"].process.pid
    await stopped(store)
    ledger = run.directory / "storage" / "global_step_2" / "ledger.pb"
    await until(ledger.exists)
    await reported(run, begun.snapshot_id, DISK_FULL)

    async with asyncio.timeout(10):
        assert DISK_FULL in await failure(run, begun.snapshot_id), "nobody waits for the store"
    assert DISK_FULL in (await run.coordinator_status()).snapshot_error
    assert run.checkpoints.storage.list_steps() == [1]
    os.kill(store, signal.SIGCONT)

    await removed_late(run)
    await nothing_is_left(run)
    await run.save()
    assert run.checkpoints.look(2, read=True).problems == ()


async def stopped(pid: int) -> None:
    stat = Path(f"/proc/{pid}/stat")
    await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")


async def until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not there():  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.05)


async def test_nothing_stays_of_a_snapshot_whose_trainer_and_coordinator_died(
    run: Coordinated,
) -> None:
    """The newer trainer is there first: then no snapshot is under way any more."""
    begun = await run.begin_snapshot()
    (run.directory / "storage" / "global_step_2" / "trainer").mkdir(parents=True)
    await run.kill("checkpoint")
    await run.register()
    assert not (await run.status()).HasField("snapshot")

    await run.start("checkpoint")
    await run.coordinator_status()

    await nothing_is_left(run)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await run.report_part(begun.snapshot_id)  # of the old trainer: it lives still
    assert isinstance(error_from(failed.value), SnapshotLostError)
    await nothing_is_left(run)


async def test_a_damaged_checkpoint_is_not_taken_for_the_rest_of_a_snapshot(
    run: Coordinated,
) -> None:
    await run.save()
    assert (await run.begin_snapshot()).complete  # nothing is to be removed any more
    (run.directory / "storage" / "global_step_2" / "manifest.json").unlink()
    await run.restart("checkpoint")
    await run.coordinator_status()

    assert run.checkpoints.storage.list_steps() == [2, 1]


async def test_the_newest_abandoned_checkpoints_are_kept_and_older_ones_are_not(
    tmp_path: Path,
) -> None:
    async with coordinated(tmp_path, checkpoint={"max_abandoned_to_keep": 2}) as run:
        await run.come()
        await run.train()
        await run.save()
        left = []
        for _ in range(3):
            await run.train()
            await run.save()
            (run.directory / "storage" / "global_step_2" / "ledger.pb").write_bytes(b"")
            left.append(run.lineage)
            await run.come()  # goes back to step 1

        await run.train()
        await run.save()

        await until(lambda: run.checkpoints.storage.names("abandoned") == sorted(left[1:]))
        listed = await run.coordinator.ListCheckpoints(pb.ListCheckpointsRequest())
        assert {one.lineage for one in listed.checkpoints if one.abandoned} == set(left[1:])
