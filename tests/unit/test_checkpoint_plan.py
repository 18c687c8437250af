"""What a run goes on from: the newest whole checkpoint of its line, and never from scratch in
silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_files import (
    L0,
    L1,
    flip_a_byte,
    position_of,
    write_checkpoint,
)
from plan_world import World, fresh, status

from headrace.checkpoint.plan import (
    BEGIN,
    FINISHED,
    KEEP,
    REGENERATE,
    RELOAD,
    RESTORE,
    ROLL_BACK,
)
from headrace.errors import CannotResumeError, NoValidCheckpointError
from headrace.v1 import resume_pb2, store_pb2


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_without_journal_and_checkpoints_the_run_begins(world: World) -> None:
    plan = await world.plan(fresh())

    assert (plan.action, plan.step) == (BEGIN, 0)


@pytest.mark.parametrize("mode", ["auto", "disable"])
async def test_a_run_that_begins_ends_the_resume_that_a_trainer_has_left(
    world: World, mode: str
) -> None:
    """Nothing is leased as long as the ledger is being resumed."""
    left = resume_pb2.ResumeState(resume_id="x", phase=resume_pb2.RESUME_PHASE_STORE, step=2)

    plan = await world.plan(fresh(resume=left), mode=mode)

    assert (plan.action, plan.step) == (ROLL_BACK, 0)


async def test_with_a_journal_and_no_checkpoint_the_run_goes_back_to_its_beginning(
    world: World,
) -> None:
    plan = await world.plan(status(3))

    assert (plan.action, plan.step, plan.committed_step) == (ROLL_BACK, 0, 3)


async def test_the_newest_checkpoint_is_taken(world: World) -> None:
    world.write(2, 4, 6)

    plan = await world.plan(status(7, saved_step=6))

    assert (plan.action, plan.step) == (ROLL_BACK, 6)
    assert plan.skipped == ()


async def test_the_newest_checkpoint_restores_a_lost_journal(world: World) -> None:
    world.write(2, 4)

    plan = await world.plan(fresh())

    assert (plan.action, plan.step) == (RESTORE, 4)


@pytest.mark.parametrize(
    "file", ["manifest.json", "ledger.pb", "transfer_queue/data", "trainer/data"]
)
@pytest.mark.parametrize("what", ["flipped", "empty", "missing"])
@pytest.mark.parametrize("journal", ["there", "lost"])
async def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    world: World, file: str, what: str, journal: str
) -> None:
    world.write(2, 4)
    damage(world.file(4, file), what)

    plan = await world.plan(status(5, saved_step=4) if journal == "there" else fresh())

    assert plan.step == 2
    [skipped] = plan.skipped
    assert skipped.step == 4
    assert file in skipped.problems[0]


@pytest.mark.parametrize("file", ["manifest.json", "ledger.pb"])
@pytest.mark.parametrize("what", ["flipped", "empty", "missing"])
@pytest.mark.parametrize("journal", ["there", "lost"])
async def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_again(
    world: World, file: str, what: str, journal: str
) -> None:
    world.write(2, 4)
    for step in (2, 4):
        damage(world.file(step, file), what)

    with pytest.raises(NoValidCheckpointError) as refused:
        await world.plan(status(5, saved_step=4) if journal == "there" else fresh())

    assert f"global_step_2/{file}" in str(refused.value)
    assert f"global_step_4/{file}" in str(refused.value)


@pytest.mark.parametrize("journal", ["there", "lost"])
async def test_a_run_whose_checkpoints_lie_elsewhere_does_not_begin_again(
    world: World, journal: str
) -> None:
    world.directory.point_to(4)

    with pytest.raises(NoValidCheckpointError) as refused:
        await world.plan(status(5, saved_step=4) if journal == "there" else fresh())

    assert f"step 4 was saved, and there is no checkpoint in {world.directory.storage.url};" in str(
        refused.value
    )


def damage(path: Path, what: str) -> None:
    if what == "flipped":
        flip_a_byte(path)
    elif what == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()


async def test_a_first_snapshot_that_never_came_to_its_end_is_no_checkpoint(world: World) -> None:
    write_checkpoint(world.directory, 2, world.tmp_path / "scratch", has_manifest=False)

    with_journal, without = await world.plan(status(2)), await world.plan(fresh())

    assert (with_journal.action, with_journal.step) == (ROLL_BACK, 0)
    assert without.action == BEGIN
    assert [found.step for found in with_journal.skipped] == [2]


async def test_a_lost_pointer_changes_nothing(world: World) -> None:
    world.write(2, 4)
    world.directory.point_to(0)

    assert (await world.plan(fresh())).step == 4
    assert (await world.plan(status(4, saved_step=4))).step == 4


async def test_checkpoints_that_are_not_of_the_run_s_line_are_left_alone(world: World) -> None:
    world.write(4, 6)  # of the first line, which was left after step 5
    plan = await world.plan(status(8, saved_step=4, lineages=[L0, L1], lineage="l1"))

    assert plan.step == 4
    assert "is not of this time line" in plan.skipped[0].problems[-1]


async def test_without_a_journal_the_line_that_was_forked_last_is_gone_on_with(
    world: World,
) -> None:
    world.write(4, 8)
    world.write(6, lineages=[L0, L1])

    plan = await world.plan(fresh())

    assert plan.step == 6
    assert [found.step for found in plan.skipped] == [8]


@pytest.mark.parametrize("position", [position_of(4) - 1, position_of(2)])
async def test_a_journal_that_is_older_than_a_checkpoint_of_its_own_line_is_refused(
    world: World, position: int
) -> None:
    world.write(2, 4)

    with pytest.raises(CannotResumeError, match=r"global_step_4 was saved at .* an older copy"):
        await world.plan(status(4, position=position))


async def test_a_journal_that_does_not_know_the_line_of_a_checkpoint_is_refused(
    world: World,
) -> None:
    world.write(6, lineages=[L0, L1])

    with pytest.raises(CannotResumeError, match="step 6 of the time line l1"):
        await world.plan(status(8))


async def test_a_journal_that_began_with_a_checkpoint_is_not_older_than_it(world: World) -> None:
    world.write(4)
    line = resume_pb2.Lineage(id="l2", parent="l0", fork_step=4)

    plan = await world.plan(status(4, lineages=[L0, line], lineage="l2", position=9))

    assert (plan.action, plan.step) == (ROLL_BACK, 4)


async def test_a_journal_whose_restore_was_cut_short_is_not_older_than_its_checkpoint(
    world: World,
) -> None:
    world.write(4)
    torn = resume_pb2.ResumeState(resume_id="auto-1", restored=True)

    plan = await world.plan(status(4, position=2, resume=torn))

    assert (plan.action, plan.step) == (ROLL_BACK, 4)


async def test_a_run_that_is_over_and_saved_does_nothing(world: World) -> None:
    world.write(6)

    assert (await world.plan(status(6, ended=True, saved_step=6))).action == FINISHED
    assert (await world.plan(status(6, ended=True, saved_step=4))).action == FINISHED
    assert (await world.plan(status(8, ended=True, saved_step=6))).action == ROLL_BACK
    assert (await world.plan(status(6, ended=True), save_freq=-1)).action == FINISHED


async def test_the_storage_of_another_run_is_refused(world: World) -> None:
    world.write(2, run_id="other")

    with pytest.raises(CannotResumeError, match=r"checkpoint of run other, and this is run r"):
        await world.plan(fresh())
    assert (await world.plan(status(3))).step == 0


async def test_data_and_configuration_must_be_the_checkpoint_s(world: World) -> None:
    world.write(2, facts={"rollout.n": "4", "data.train_batch_size": "4"})

    with pytest.raises(CannotResumeError) as refused:
        await world.plan(
            status(2, saved_step=2, data_fingerprint="g"),
            facts={"rollout.n": "8", "data.train_batch_size": "8"},
        )

    lines = str(refused.value).splitlines()
    assert "the data set has the fingerprint g, and f in the checkpoint" in lines[1]
    assert lines[2].startswith("data.train_batch_size is 8, and 4 in the checkpoint")
    assert lines[3].startswith("rollout.n is 8, and 4 in the checkpoint")


async def test_an_allowed_difference_is_a_note(world: World) -> None:
    world.write(2, facts={"trainer.optim.lr": "0.1"})

    plan = await world.plan(
        status(2, saved_step=2), facts={"trainer.optim.lr": "0.2"}, allow=["configuration"]
    )

    assert plan.step == 2
    assert plan.notes == (
        "trainer.optim.lr is 0.2, and 0.1 in the checkpoint: accepted by resume.allow",
    )


async def test_a_resume_that_has_begun_goes_on_with_its_checkpoint(world: World) -> None:
    world.write(2, 4)
    begun = resume_pb2.ResumeState(resume_id="auto-1", phase=resume_pb2.RESUME_PHASE_LEDGER, step=2)

    plan = await world.plan(status(5, saved_step=4), begun=begun)

    assert (plan.action, plan.step) == (ROLL_BACK, 2)


async def test_a_resume_whose_checkpoint_was_damaged_meanwhile_is_planned_anew(
    world: World,
) -> None:
    world.write(2, 4)
    flip_a_byte(world.file(4, "trainer/data"))
    begun = resume_pb2.ResumeState(
        resume_id="auto-1", phase=resume_pb2.RESUME_PHASE_WEIGHTS, step=4
    )

    plan = await world.plan(status(4, saved_step=4), begun=begun)

    assert plan.step == 2


def as_it_was(_: store_pb2.GetStoreStatusResponse) -> None:
    pass


def started_anew(store: store_pb2.GetStoreStatusResponse) -> None:
    store.store_incarnation, store.row_count = "s2", 0


def refilled(store: store_pb2.GetStoreStatusResponse) -> None:
    store.store_incarnation, store.row_count = "s2", 5


@pytest.mark.parametrize(
    ("became", "known", "expected"),
    [
        (as_it_was, "s1", KEEP),
        (started_anew, "s1", RELOAD),  # the ledger does not know of it yet
        (started_anew, "s2", RELOAD),  # it does, and has forgotten what was in the other
        (refilled, "s2", KEEP),  # rows that are newer than the checkpoint's
        (refilled, "s1", RELOAD),
    ],
)
async def test_rows_are_loaded_from_the_checkpoint_only_if_they_are_lost(
    world: World,
    became: Callable[[store_pb2.GetStoreStatusResponse], None],
    known: str,
    expected: int,
) -> None:
    world.write(2)
    became(world.store)

    assert (await world.plan(status(3, saved_step=2, store_incarnation=known))).store == expected


async def test_a_lost_journal_takes_the_rows_of_its_checkpoint(world: World) -> None:
    world.write(2)

    assert (await world.plan(fresh(store_incarnation="s1"))).store == KEEP
    refilled(world.store)
    assert (await world.plan(fresh(store_incarnation="s2"))).store == RELOAD


async def test_without_a_checkpoint_lost_rows_are_generated_again(world: World) -> None:
    assert (await world.plan(status(3))).store == KEEP
    started_anew(world.store)
    assert (await world.plan(status(3))).store == REGENERATE
