"""A run that is told to go back, or to begin again, by the real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from coordinated import Coordinated, config_of, coordinated

from headrace.v1 import checkpoint_pb2 as pb
from headrace.v1 import replay_pb2, resume_pb2

pytestmark = pytest.mark.timeout(400)

OPEN = resume_pb2.RESUME_PHASE_OPEN
STEPS = 5
SECTIONS: dict[str, Any] = {
    "trainer": {"total_training_steps": STEPS},
    "store": {"durability": "memory", "sweep_every_s": 0.2, "sweep_grace_s": 1},
}
ANEW = {"mode": "disable", "allow": ["new_lineage"]}


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Coordinated]:
    async with coordinated(tmp_path, **SECTIONS) as started:
        yield started


async def trained(run: Coordinated, steps: int) -> list[str]:
    """Train to a step, and save each; give the uids in order."""
    uids: list[str] = []
    while run.step < steps:
        uids += await run.train()
        await run.save()
    return uids


async def to_its_end(run: Coordinated) -> list[str]:
    uids = await trained(run, STEPS)
    await run.replay.EndRun(replay_pb2.EndRunRequest(incarnation=run.incarnation))
    return uids


async def started_again(run: Coordinated, **resume: Any) -> None:
    """Have all processes again, and another wish in the configuration."""
    endpoints = run.config.endpoints.model_dump()
    run.config = config_of(run.directory, endpoints=endpoints, resume=resume, **SECTIONS)
    for name in run.ports:
        await run.kill(name)
    await asyncio.gather(*(run.start(name) for name in run.ports))
    await run.open_feed()
    await run.store_known(after="")


async def test_a_run_that_has_ended_goes_back_to_a_checkpoint_and_on_to_its_end_once(
    run: Coordinated,
) -> None:
    await run.come()
    first = await to_its_end(run)
    left = run.lineage
    wish = {"mode": "path", "path": run.checkpoints.uri(4)}
    await started_again(run, **wish)  # the store's rows are gone

    answer = await run.come()

    assert (answer.plan.action, answer.plan.step) == (pb.RESUME_ACTION_ROLL_BACK, 4)
    assert (answer.state.phase, answer.state.untrained_count) == (OPEN, 2)
    assert run.checkpoints.storage.names(f"abandoned/{left}") == ["global_step_5"]
    assert not (await run.status()).ended
    again = await to_its_end(run)
    assert set(again) == set(first[-2:]), "they are trained again, and no others"
    status = await run.status()
    assert (status.ended, status.committed_step, status.saved_step) == (True, 5, 5)
    assert status.counts.trained == len(first)
    assert [line.fork_step for line in status.lineages] == [0, 4]
    await run.balanced()

    await started_again(run, **wish)
    assert (await run.come()).plan.action == pb.RESUME_ACTION_FINISHED
    await started_again(run)
    assert (await run.come()).plan.action == pb.RESUME_ACTION_FINISHED


async def test_a_run_begins_again_though_the_ledger_has_forgotten_its_first_steps(
    run: Coordinated,
) -> None:
    await run.come()
    left = run.lineage
    first = await trained(run, 4)
    assert (await run.begin_snapshot()).complete  # older ones are removed by then
    await run.generate(4)
    await started_again(run, **ANEW)

    answer = await run.come()

    assert (answer.plan.action, answer.plan.step) == (pb.RESUME_ACTION_START_OVER, 0)
    [note] = answer.plan.notes
    assert f"of the time line {left} are left behind 4 trained steps" in note
    assert run.checkpoints.storage.list_steps() == []
    assert run.checkpoints.latest() is None
    assert run.checkpoints.storage.names(f"abandoned/{left}") == ["global_step_3", "global_step_4"]
    assert await trained(run, 2) == first[:4], "from the first row"
    status = await run.status()
    assert [line.parent for line in status.lineages] == ["", left]
    assert status.counts.fed == status.cursor
    await run.balanced()

    answer = await run.come()  # the trainer dies: it was done already
    assert (answer.plan.action, answer.plan.step) == (pb.RESUME_ACTION_ROLL_BACK, 2)
    await started_again(run, **ANEW)
    answer = await run.come()
    assert (answer.plan.action, answer.plan.step) == (pb.RESUME_ACTION_ROLL_BACK, 2)


async def test_a_resume_that_was_left_where_nothing_is_to_be_gone_on_from_comes_to_its_end(
    run: Coordinated,
) -> None:
    """The checkpoint that it was to restore was somewhere else, and is not named any more."""
    await run.register()
    await run.replay.BeginResume(
        replay_pb2.BeginResumeRequest(resume_id="left", incarnation=run.incarnation, step=4)
    )

    answer = await run.come()

    assert (answer.plan.action, answer.state.phase) == (pb.RESUME_ACTION_ROLL_BACK, OPEN)
    await trained(run, 1)
    await run.balanced()


async def test_the_rows_of_the_line_that_was_left_are_swept(run: Coordinated) -> None:
    await run.come()
    await trained(run, 2)
    await run.generate(2)
    assert (await run.store_status()).row_count > 0
    run.config = config_of(
        run.directory, endpoints=run.config.endpoints.model_dump(), resume=ANEW, **SECTIONS
    )
    await run.restart("checkpoint")

    await run.come()

    assert (await run.status()).counts.finished == 0
    async with asyncio.timeout(30):
        while (await run.store_status()).row_count:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.1)
    await to_its_end(run)
    await run.restart("replay")
    assert (await run.come()).plan.action == pb.RESUME_ACTION_FINISHED


@pytest.mark.parametrize("point", ["resume.begun", "resume.ledger_done", "resume.moved_aside"])
async def test_kills_in_the_midst_of_beginning_again_end_in_one_beginning(
    run: Coordinated, point: str
) -> None:
    await run.come()
    await trained(run, 4)
    run.config = config_of(
        run.directory, endpoints=run.config.endpoints.model_dump(), resume=ANEW, **SECTIONS
    )
    await run.restart("checkpoint", fail=point)
    await run.register()
    resuming = asyncio.create_task(run.resume())
    await run.killed_itself("checkpoint")
    await run.restart("checkpoint")

    answer = await resuming

    assert (answer.state.phase, run.step) == (OPEN, 0)
    assert len((await run.status()).lineages) == 2
    await run.train()
    await run.balanced()
