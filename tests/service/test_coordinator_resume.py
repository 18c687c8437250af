"""Resumes by the real processes: what is kept, what is loaded, and kills at every point of it."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from checkpoint_files import flip_a_byte
from coordinated import BATCH, FACTS, Coordinated, coordinated

from headrace.errors import (
    CannotResumeError,
    NoValidCheckpointError,
    TrainerFencedError,
    WireError,
)
from headrace.failpoints import FAILPOINTS
from headrace.rpc.status import error_from
from headrace.v1 import checkpoint_pb2 as pb
from headrace.v1 import resume_pb2

pytestmark = pytest.mark.timeout(400)

WEIGHTS = resume_pb2.RESUME_PHASE_WEIGHTS
OPEN = resume_pb2.RESUME_PHASE_OPEN


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Coordinated]:
    async with coordinated(tmp_path) as started:
        yield started


def refusal(failed: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> WireError | None:
    return error_from(failed.value)


async def trained(run: Coordinated, steps: int, *, save_at: tuple[int, ...] = ()) -> list[str]:
    """Train to a step; give the uids of all its steps, in order."""
    uids: list[str] = []
    while run.step < steps:
        uids += await run.train()
        if run.step in save_at:
            await run.save()
    return uids


async def test_a_trainer_that_died_goes_back_to_the_checkpoint_and_nothing_is_lost(
    run: Coordinated,
) -> None:
    await run.come()
    first = await trained(run, 2, save_at=(2,))
    later = await trained(run, 4)
    await run.generate(4)
    before = await run.status()

    answer = await run.come()

    assert answer.plan.action == pb.RESUME_ACTION_ROLL_BACK
    assert (answer.plan.step, answer.plan.committed_step) == (2, 4)
    assert answer.plan.store == pb.STORE_ACTION_KEEP
    assert answer.state.phase == OPEN
    assert answer.state.untrained_count == len(later)
    assert run.step == 2
    status = await run.status()
    assert status.committed_step == 2
    assert [line.parent for line in status.lineages] == ["", before.lineage]
    assert status.counts.trained == len(first)
    assert status.counts.fed >= before.counts.fed
    assert status.store_incarnation == before.store_incarnation
    assert status.counts.fed - status.counts.trained >= BATCH
    again = await trained(run, 4)
    assert set(later) <= set(again) | set(await trained(run, 6)), "they are trained again"
    assert not set(first) & set(again)
    await run.balanced()


async def test_checkpoints_of_the_line_that_was_left_are_moved_aside(run: Coordinated) -> None:
    await run.come()
    left = run.lineage
    await trained(run, 3, save_at=(2, 3))
    flip_a_byte(run.directory / "storage" / "global_step_3" / "trainer" / "state")

    answer = await run.come()

    assert [one.step for one in answer.plan.skipped] == [3]
    assert "trainer/state: SHA-256" in answer.plan.skipped[0].problem
    assert run.step == 2
    assert run.checkpoints.storage.list_steps() == [2]
    assert run.checkpoints.latest() == 2
    assert run.checkpoints.storage.names(f"abandoned/{left}") == ["global_step_3"]

    await trained(run, 3, save_at=(3,))  # step 3 of the new line takes its place
    assert run.checkpoints.look(3, read=True).problems == ()
    listed = await run.coordinator.ListCheckpoints(pb.ListCheckpointsRequest(verify=True))
    assert [(one.step, one.abandoned, bool(one.problem)) for one in listed.checkpoints] == [
        (3, False, False),
        (2, False, False),
        (3, True, True),
    ]


async def test_a_store_that_died_with_the_trainer_is_filled_from_the_checkpoint(
    run: Coordinated,
) -> None:
    await run.come()
    await trained(run, 2)
    await run.generate(2)
    made = await run.finished()
    assert made
    await run.save()
    await run.restart_store()

    answer = await run.come()

    assert answer.plan.store == pb.STORE_ACTION_RESTORE
    store = await run.store_status()
    assert store.row_count == len(made)
    assert store.hold_id == ""
    status = await run.status()
    assert status.store_incarnation == store.store_incarnation
    assert status.counts.finished == len(made), "they need not be generated again"
    assert set(await run.train()) == set(made)
    await run.balanced()


async def test_a_lost_journal_is_restored_from_the_checkpoint(run: Coordinated) -> None:
    await run.come()
    first = await trained(run, 2)
    await run.generate(2)
    made = await run.finished()
    await run.save()
    await trained(run, 3)
    await run.kill("replay")
    shutil.rmtree(run.directory / "run" / "journal")
    await run.start("replay")
    await run.open_feed()

    answer = await run.come()

    assert answer.plan.action == pb.RESUME_ACTION_RESTORE
    assert answer.state.restored
    status = await run.status()
    assert (status.committed_step, status.saved_step) == (2, 2) or status.saved_step == 0
    assert status.counts.trained == len(first)
    later = await run.train()
    assert not set(first) & set(later)
    assert set(later) == set(made)
    await run.balanced()


async def test_a_run_without_checkpoints_goes_back_to_its_beginning(run: Coordinated) -> None:
    await run.come()
    await trained(run, 2)

    answer = await run.come()

    assert (answer.plan.action, answer.state.step) == (pb.RESUME_ACTION_ROLL_BACK, 0)
    assert not answer.HasField("trainer_part")
    assert (await run.status()).counts.trained == 0
    await trained(run, 1)


async def test_the_checkpoint_that_a_run_goes_on_from_is_not_made_anew(run: Coordinated) -> None:
    await run.come()
    await trained(run, 1, save_at=(1,))
    before = run.checkpoints.look(1).manifest
    await run.come()

    assert (await run.begin_snapshot()).complete
    assert run.checkpoints.look(1).manifest == before


async def test_what_does_not_fit_is_refused_with_both_sides(run: Coordinated) -> None:
    await run.come()
    await trained(run, 1, save_at=(1,))
    await run.register()

    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await run.ask_to_resume(WEIGHTS, facts={**FACTS, "rollout.n": "2"})

    error = refusal(failed)
    assert isinstance(error, CannotResumeError)
    assert "rollout.n is 2, and 1 in the checkpoint" in str(error)
    assert not (await run.status()).HasField("resume")

    assert (await run.ask_to_resume(WEIGHTS)).state.phase == WEIGHTS  # mended

    flip_a_byte(run.directory / "storage" / "global_step_1" / "ledger.pb")
    await run.register()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await run.ask_to_resume(WEIGHTS)
    error = refusal(failed)
    assert isinstance(error, NoValidCheckpointError)
    assert "ledger.pb: SHA-256" in str(error)


async def test_a_newer_trainer_takes_the_resume_over(run: Coordinated) -> None:
    await run.come()
    await trained(run, 1, save_at=(1,))
    await run.register()
    old = await run.ask_to_resume(WEIGHTS)
    waiting = asyncio.create_task(run.ask_to_resume(OPEN, wait_s=50))

    await run.register()
    run.incarnation, newest = old.state.trainer_incarnation, run.incarnation
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await run.ask_to_resume(WEIGHTS)
    assert isinstance(refusal(failed), TrainerFencedError)
    run.incarnation = newest
    answer = await run.resume()

    assert answer.state.phase == OPEN
    assert answer.state.resume_id != old.state.resume_id
    with pytest.raises(grpc.aio.AioRpcError):
        await waiting


POINTS = (
    "resume.planned",
    "resume.begun",
    "resume.store_done",
    "resume.rolling_back",
    "resume.ledger_done",
    "resume.moved_aside",
    "resume.weights_done",
    "resume.reissued",
    "resume.warmed_up",
    "resume.open",
)


async def test_a_coordinator_that_is_killed_anywhere_in_a_resume_goes_on_with_it(
    run: Coordinated,
) -> None:
    """The trainer and the coordinator die together, and the coordinator again at each point."""
    await run.come()
    for point in POINTS:
        await run.train()
        await run.save()
        saved = run.step
        await run.generate(saved)
        await run.train()
        await run.restart("checkpoint", fail=point)
        await run.register()
        resuming = asyncio.create_task(run.resume())
        await run.killed_itself("checkpoint")
        await run.restart("checkpoint")

        answer = await resuming

        assert answer.state.phase == OPEN, point
        assert (answer.state.step, run.step) == (saved, saved), point
        status = await run.status()
        assert status.committed_step == saved, point
        assert len(status.lineages) == 2 + POINTS.index(point), "one new line, not two"
        assert run.checkpoints.latest() == saved, point
        assert (await run.store_status()).hold_id == "", point
        await run.balanced()


@pytest.mark.parametrize("point", ["resume.weights_done", "resume.open"])
async def test_a_checkpoint_that_is_damaged_once_all_have_read_it_stops_nobody(
    run: Coordinated, point: str
) -> None:
    await run.come()
    await trained(run, 3, save_at=(1, 2))
    await run.restart("checkpoint", fail=point)
    await run.register()
    resuming = asyncio.create_task(run.resume())
    await run.killed_itself("checkpoint")
    flip_a_byte(Path(run.config.checkpoint.storage or "") / "global_step_2" / "ledger.pb")
    await run.restart("checkpoint")

    answer = await resuming

    assert (answer.state.phase, answer.state.step, answer.plan.step) == (OPEN, 2, 2)
    assert len((await run.status()).lineages) == 2
    await run.train()
    await run.balanced()


@pytest.mark.parametrize("stopped", ["resume.rolling_back", "ledger.rolled_back"])
async def test_a_store_that_dies_before_the_ledger_is_back_is_filled_again(
    run: Coordinated, stopped: str
) -> None:
    """It tells the ledger of itself just before the new time line is opened, or just after."""
    await run.come()
    await trained(run, 2)
    await run.generate(2)
    made = await run.finished()
    assert made
    await run.save()
    await run.train()
    await run.restart_store()
    name = FAILPOINTS[stopped]
    await run.restart(name, fail=f"{stopped}:1:stop")
    await run.open_feed()
    await run.register()
    resuming = asyncio.create_task(run.resume())
    await run.stopped_itself(name)
    if name == "replay":
        await run.restart("store")
        run.parts[name].process.send_signal(signal.SIGCONT)
    else:
        await run.restart_store()
        run.parts[name].process.send_signal(signal.SIGCONT)

    answer = await resuming

    assert (answer.state.phase, run.step) == (OPEN, 2)
    store, status = await run.store_status(), await run.status()
    assert status.store_incarnation == store.store_incarnation
    assert store.row_count == len(made), "the checkpoint's rows are in the new store"
    assert status.counts.finished == len(made), "they need not be generated again"
    assert set(await run.train()) == set(made)
    await trained(run, 4)
    await run.balanced()


async def test_kills_four_deep_end_in_one_resume(run: Coordinated) -> None:
    await run.come()
    await trained(run, 3)
    await run.generate(3)
    await run.save()
    await run.train()
    await run.restart_store()
    await run.restart("checkpoint", fail="resume.store_done")
    await run.register()
    resuming = asyncio.create_task(run.resume())
    for point in ("resume.ledger_done", "resume.moved_aside", "resume.weights_done", ""):
        await run.killed_itself("checkpoint")
        await run.restart("checkpoint", fail=point)

    answer = await resuming

    assert (answer.state.phase, answer.state.step) == (OPEN, 3)
    status = await run.status()
    assert len(status.lineages) == 2
    assert status.counts.finished >= BATCH, "the checkpoint's rows are there"
    await run.train()
    await run.balanced()


async def test_a_plan_changes_nothing(run: Coordinated) -> None:
    await run.come()
    await trained(run, 2, save_at=(1,))
    before = (await run.status()).position

    plan = (await run.coordinator.PlanResume(pb.PlanResumeRequest(facts=FACTS))).plan

    assert (plan.action, plan.step, plan.committed_step) == (pb.RESUME_ACTION_ROLL_BACK, 1, 2)
    assert (await run.status()).position == before


async def test_the_state_is_streamed_as_it_changes(run: Coordinated) -> None:
    await run.come()
    await trained(run, 1)
    watching = run.coordinator.WatchProgress(pb.WatchProgressRequest(), timeout=60)
    seen: list[int] = []

    async def until_saved() -> None:
        async for message in watching:
            seen.append(message.status.snapshot.step)
            if message.status.saved_step == 1:
                return

    watcher = asyncio.create_task(until_saved())
    await run.save()
    await watcher
    assert 1 in seen, "the snapshot was seen under way"
