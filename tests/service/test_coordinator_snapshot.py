"""Snapshots by the real processes: complete or not there, wherever they are killed or fail."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from coordinated import Coordinated, coordinated

from headrace.errors import (
    SnapshotFailedError,
    SnapshotLostError,
    StepOutOfOrderError,
    TrainerFencedError,
    WireError,
)
from headrace.rpc.status import error_from
from headrace.v1 import checkpoint_pb2 as pb
from headrace.v1 import replay_pb2, resume_pb2, store_pb2

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Coordinated]:
    async with coordinated(tmp_path) as started:
        yield started


def refusal(failed: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> WireError | None:
    return error_from(failed.value)


async def test_a_snapshot_is_of_the_cut_while_the_run_goes_on(run: Coordinated) -> None:
    begun = await run.come()
    assert begun.plan.action == pb.RESUME_ACTION_BEGIN
    await run.train()

    snapshot = await run.begin_snapshot()
    counts = (await run.status()).counts
    await run.train()  # nothing of it is in the checkpoint
    run.step = 1
    await run.report_part(snapshot.snapshot_id)
    saved = await run.commit(snapshot.snapshot_id)

    assert saved.complete
    found = run.checkpoints.look(1, read=True)
    assert found.problems == ()
    manifest = found.manifest
    assert manifest is not None
    assert (manifest.step, manifest.lineage, manifest.run_id) == (1, run.lineage, "r")
    assert manifest.counts == counts
    assert manifest.data_fingerprint == "data"
    assert manifest.size_bytes == saved.size_bytes
    assert [part.name for part in manifest.parts] == ["ledger", "store", "trainer"]
    assert run.checkpoints.latest() == 1

    status, coordinator = await run.status(), await run.coordinator_status()
    assert (status.saved_step, status.committed_step) == (1, 2)
    assert not status.HasField("snapshot")
    assert (coordinator.saved_step, coordinator.snapshot_bytes) == (1, saved.size_bytes)
    assert (await run.store_status()).hold_id == ""
    await run.balanced()


async def test_every_call_may_be_repeated(run: Coordinated) -> None:
    await run.come()
    await run.train()
    first = await run.begin_snapshot()
    assert await run.begin_snapshot() == first, "the answer was lost: it is joined"
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await run.report_part("another")
    assert isinstance(refusal(failed), SnapshotLostError)

    await run.report_part(first.snapshot_id, times=2)
    assert (await run.begin_snapshot()).complete, "one that has the trainer's part is waited for"
    answers = [await run.commit(first.snapshot_id) for _ in range(2)]
    assert answers[0] == answers[1]
    assert await run.count_events("snapshot_begun") == 1


async def test_a_caller_whose_deadline_is_too_short_joins_what_it_has_begun(
    run: Coordinated,
) -> None:
    await run.come()
    await run.train()
    await run.restart("checkpoint", fail="snapshot.begun:1:stop")
    await run.coordinator_status()
    for _ in range(3):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await run.begin_snapshot(timeout_s=1)
        assert failed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await run.stopped_itself("checkpoint")
    run.parts["checkpoint"].process.send_signal(signal.SIGCONT)

    begun = await run.begin_snapshot()
    await run.report_part(begun.snapshot_id)

    assert (await run.commit(begun.snapshot_id)).complete
    assert await run.count_events("snapshot_begun") == 1
    assert "snapshot_failed" not in run.parts["checkpoint"].log.read_text()


async def test_a_call_that_comes_late_ends_no_snapshot(run: Coordinated) -> None:
    await run.come()
    await run.train()
    await run.save()
    await run.train()
    begun = await run.begin_snapshot()

    run.step = 1
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await run.begin_snapshot()
    assert isinstance(refusal(failed), StepOutOfOrderError)
    run.step = 2
    run.incarnation -= 1
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await run.begin_snapshot()
    assert isinstance(refusal(failed), TrainerFencedError)

    run.incarnation += 1
    await run.report_part(begun.snapshot_id)
    assert (await run.commit(begun.snapshot_id)).complete


async def test_a_snapshot_of_another_step_takes_the_place_of_one_without_the_trainers_part(
    run: Coordinated,
) -> None:
    await run.come()
    await run.train()
    left = await run.begin_snapshot()
    await run.train()

    await run.save()

    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await run.commit(left.snapshot_id)
    assert isinstance(refusal(failed), SnapshotLostError)
    assert run.checkpoints.latest() == 2


async def test_a_snapshot_of_a_step_that_is_not_the_last_or_by_an_old_trainer_is_refused(
    run: Coordinated,
) -> None:
    await run.come()
    await run.train()
    await run.train()
    run.step = 1
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await run.begin_snapshot()
    assert isinstance(refusal(failed), StepOutOfOrderError)

    run.step = 2
    await run.register()
    run.incarnation -= 1
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await run.begin_snapshot()
    assert isinstance(refusal(failed), TrainerFencedError)
    assert run.checkpoints.storage.names() == []
    assert (await run.store_status()).hold_id == ""


async def test_old_checkpoints_go_when_newer_ones_are_complete(run: Coordinated) -> None:
    await run.come()
    for _ in range(4):
        await run.train()
        await run.save()

    # They go after the trainer has been told.
    listed = await run.coordinator.ListCheckpoints(pb.ListCheckpointsRequest(verify=True))
    assert [(one.step, one.problem) for one in listed.checkpoints][:2] == [(4, ""), (3, "")]
    assert listed.checkpoints[0].is_latest
    await run.train()
    begun = await run.begin_snapshot()  # waits for what is still to be removed
    assert run.checkpoints.storage.list_steps()[:2] in ([4, 3], [5, 4])
    assert 2 not in run.checkpoints.storage.list_steps()
    await run.report_part(begun.snapshot_id)
    await run.commit(begun.snapshot_id)


DIES_BEFORE_IT_COUNTS = (
    "snapshot.begun",
    "snapshot.cut",
    "snapshot.parts_complete",
    "manifest.written",
)
DIES_WHEN_IT_COUNTS = (
    "manifest.renamed",
    "latest.written",
    "latest.renamed",
    "snapshot.committed",
    "retention.removed_one",
)


async def save_until_it_dies(run: Coordinated, point: str) -> None:
    """Have the coordinator kill itself at a point of the next snapshot."""
    await run.restart("checkpoint", fail=point)
    saving = asyncio.create_task(run.save())
    await run.killed_itself("checkpoint")
    saving.cancel()
    await asyncio.gather(saving, return_exceptions=True)


async def test_a_coordinator_that_is_killed_anywhere_leaves_whole_checkpoints(
    run: Coordinated,
) -> None:
    await run.come()
    for _ in range(3):  # so that there is one to be removed each time
        await run.train()
        await run.save()
    for point in (*DIES_BEFORE_IT_COUNTS, *DIES_WHEN_IT_COUNTS):
        await run.train()
        before = run.step - 1
        await save_until_it_dies(run, point)

        newest = next(one for one in run.checkpoints.find(read=True) if one.manifest)
        assert newest.problems == (), point
        counts = point in DIES_WHEN_IT_COUNTS
        assert newest.step == (run.step if counts else before), point
        assert (await run.status()).lineage == run.lineage

        await run.restart("checkpoint")
        status = await run.coordinator_status()
        if counts:
            assert (await run.begin_snapshot()).complete, point
            assert run.checkpoints.latest() == run.step, point
        else:
            assert status.snapshot_error == "" or "started again" in status.snapshot_error
            assert run.step not in run.checkpoints.storage.list_steps(), point
            assert run.checkpoints.latest() == before, point
            await run.save()
        assert (await run.status()).saved_step == run.step, point
        assert not (await run.status()).HasField("snapshot")
        assert not list(run.directory.glob("storage/**/*.tmp")), point
        assert (await run.store_status()).hold_id == "", point
    await run.balanced()


@pytest.mark.parametrize("point", ["manifest.written", "latest.written"])
async def test_a_full_disk_makes_the_snapshot_fail_and_nothing_else(
    run: Coordinated, point: str
) -> None:
    await run.come()
    await run.train()
    await run.save()
    await run.train()
    await run.restart("checkpoint", fail=f"{point}:1:raise")

    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await run.save()

    error = refusal(failed)
    assert isinstance(error, SnapshotFailedError)
    assert "No space left" in str(error) or point in str(error)
    assert [path.name for path in sorted((run.directory / "storage").iterdir())] == [
        "global_step_1",
        "latest_checkpointed_iteration.txt",
    ]
    assert run.checkpoints.latest() == 1
    status = await run.status()
    assert status.saved_step == 1
    assert not status.HasField("snapshot")
    assert (await run.store_status()).hold_id == ""

    await run.train()  # training goes on, and the next snapshot works
    await run.save()
    assert run.checkpoints.latest() == 3


async def test_a_replay_buffer_that_is_restarted_in_a_snapshot_writes_its_part(
    run: Coordinated,
) -> None:
    await run.come()
    await run.train()
    await run.restart("replay", fail="ledger_part.written")
    begun = await run.begin_snapshot()
    await run.killed_itself("replay")
    await run.start("replay")
    await run.open_feed()
    await run.report_part(begun.snapshot_id)

    assert (await run.commit(begun.snapshot_id)).complete
    assert run.checkpoints.look(1, read=True).problems == ()


async def test_a_store_that_dies_in_a_snapshot_makes_it_fail(run: Coordinated) -> None:
    await run.come()
    await run.train()
    await run.generate(1)
    await run.restart_store(fail="store_part.saved")
    await run.train()
    begun = await run.begin_snapshot()
    await run.killed_itself("store")
    await run.restart_store()
    await run.report_part(begun.snapshot_id)

    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await run.commit(begun.snapshot_id)

    assert isinstance(refusal(failed), SnapshotFailedError)
    await run.train()
    await run.save()


async def test_a_part_that_only_its_owner_can_see_is_noticed(run: Coordinated) -> None:
    await run.come()
    await run.train()
    begun = await run.begin_snapshot()
    part = resume_pb2.CheckpointPart(
        name="trainer",
        owner="trainer",
        uri="file:///nowhere",
        files=[resume_pb2.PartFile(path="trainer/state", size_bytes=1, sha256="0")],
    )
    await run.coordinator.ReportPart(pb.ReportPartRequest(snapshot_id=begun.snapshot_id, part=part))

    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await run.commit(begun.snapshot_id)

    assert "checkpoint.storage must be the same place for all processes" in str(refusal(failed))


async def test_deletions_wait_until_the_rows_are_saved(run: Coordinated) -> None:
    await run.come()
    await run.train()
    await run.generate(1)
    begun = await run.begin_snapshot()
    await run.report_part(begun.snapshot_id)
    await run.commit(begun.snapshot_id)
    uids = await run.train()

    manifest = run.checkpoints.look(1).manifest
    assert manifest is not None
    assert manifest.part("store").files
    keys = (await run.replay.ListTrajectories(replay_pb2.ListTrajectoriesRequest())).keys
    assert not any(key.startswith(f"{uid}_") for uid in uids for key in keys)
    checked = await run.store.CheckTrajectories(store_pb2.CheckTrajectoriesRequest(keys=keys))
    assert list(checked.missing_keys) == []
