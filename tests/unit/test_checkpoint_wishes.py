"""What a run goes on from where `resume` asks for it: from the beginning, or from a checkpoint by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import (
    L0,
    L1,
    flip_a_byte,
)
from plan_world import World, fresh, status

from headrace.checkpoint.plan import (
    BEGIN,
    FINISHED,
    RESTORE,
    ROLL_BACK,
    START_OVER,
)
from headrace.config.checkpoint import ResumeConfig
from headrace.config.wish import name_resume, wish_of
from headrace.errors import CannotResumeError, NoValidCheckpointError
from headrace.v1 import prompt_pb2, resume_pb2


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_disable_begins_only_where_there_is_nothing(world: World) -> None:
    assert (await world.plan(fresh(), mode="disable")).action == BEGIN

    with pytest.raises(CannotResumeError, match="there is a journal of this run"):
        await world.plan(status(2), mode="disable")
    world.write(2)
    with pytest.raises(CannotResumeError, match="there are checkpoints of this run"):
        await world.plan(fresh(), mode="disable")


async def test_a_new_line_leaves_everything_behind_once_and_not_at_each_restart(
    world: World,
) -> None:
    world.write(2, 4)
    wish: dict[str, Any] = {"mode": "disable", "allow": ["new_lineage"]}
    before = status(5, saved_step=4, counts=prompt_pb2.StateCounts(fed=70))

    plan = await world.plan(before, **wish)

    assert (plan.action, plan.step) == (START_OVER, 0)
    assert plan.notes == (
        "resume.mode: disable: the run begins again; of the time line l0 are left behind 5 trained "
        "steps, 70 prompts, and the checkpoints (of steps: 4, 2), which are moved aside",
    )

    for step in (2, 4):
        world.directory.remove(step)
    line = resume_pb2.Lineage(id="l1", parent="l0", fork_step=0)
    name = wish_of(ResumeConfig(**wish))
    done = resume_pb2.ResumeState(
        resume_id=name_resume(name, resume_pb2.ResumeState(), "x"), lineage="l1"
    )
    world.write(2, lineages=[L0, line])

    later = status(3, saved_step=2, lineages=[L0, line], lineage="l1", resume=done)

    assert (await world.plan(later, **wish)).step == 2
    after = resume_pb2.ResumeState(resume_id=name_resume(name, done, "y"))
    later.resume.CopyFrom(after)
    assert (await world.plan(later, **wish)).step == 2
    assert (await world.plan(later, begun=after, **wish)).action == ROLL_BACK


async def test_what_was_asked_for_is_not_done_by_a_resume_that_came_to_nothing(
    world: World,
) -> None:
    """The trainer died before the time line was opened: the next one does it."""
    world.write(2, 4)
    for wish in (
        {"mode": "disable", "allow": ["new_lineage"]},
        {"mode": "path", "path": world.directory.uri(2)},
    ):
        name = name_resume(wish_of(ResumeConfig(**wish)), resume_pb2.ResumeState(), "x")
        begun = resume_pb2.ResumeState(resume_id=name)

        plan = await world.plan(status(5, saved_step=4, resume=begun), **wish)

        assert plan.step == (2 if "path" in wish else 0)


async def test_a_run_that_is_to_begin_anew_does_so_once_even_where_there_is_nothing(
    world: World,
) -> None:
    """Or a trainer that dies later would find a journal, and begin again."""
    plan = await world.plan(fresh(), mode="disable", allow=["new_lineage"])

    assert (plan.action, plan.notes) == (START_OVER, ())


async def test_a_run_that_is_over_goes_back_to_a_named_checkpoint_once(world: World) -> None:
    world.write(2, 4)
    wish: dict[str, Any] = {"mode": "path", "path": world.directory.uri(2)}
    ended = status(4, ended=True, saved_step=4)

    plan = await world.plan(ended, **wish)
    assert (plan.action, plan.step) == (ROLL_BACK, 2)

    name = name_resume(wish_of(ResumeConfig(**wish)), resume_pb2.ResumeState(), "x")
    ended.resume.CopyFrom(resume_pb2.ResumeState(resume_id=name, lineage="l1"))
    assert (await world.plan(ended, **wish)).action == FINISHED


async def test_a_named_checkpoint_is_gone_on_from_and_newer_ones_are_not(world: World) -> None:
    world.write(2, 4)

    plan = await world.plan(status(5, saved_step=4), mode="path", path=world.directory.uri(2))

    assert (plan.action, plan.step) == (ROLL_BACK, 2)


async def test_a_named_checkpoint_may_lie_elsewhere_when_the_journal_is_lost(world: World) -> None:
    world.write(2)
    (world.tmp_path / "storage").rename(world.tmp_path / "copy")

    plan = await world.plan(
        fresh(), mode="path", path=str(world.tmp_path / "copy" / "global_step_2")
    )

    assert (plan.action, plan.step) == (RESTORE, 2)


@pytest.mark.parametrize(
    ("where", "error", "words"),
    [
        ("damaged", NoValidCheckpointError, "ledger.pb: SHA-256"),
        ("another run's", CannotResumeError, "checkpoint of run other"),
        ("of a line that was left", CannotResumeError, "which does not come from there"),
        ("nowhere", NoValidCheckpointError, "manifest.json is missing"),
    ],
)
async def test_a_named_checkpoint_that_cannot_be_used_is_refused(
    world: World, where: str, error: type[Exception], words: str
) -> None:
    world.write(2, run_id="other" if where == "another run's" else "r")
    if where == "damaged":
        flip_a_byte(world.file(2, "ledger.pb"))
    step = 3 if where == "nowhere" else 2
    left = where == "of a line that was left"
    now = status(4, saved_step=2, **({"lineages": [L1], "lineage": "l1"} if left else {}))

    with pytest.raises(error, match=words):
        await world.plan(now, mode="path", path=world.directory.uri(step))
