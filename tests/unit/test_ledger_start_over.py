"""A run that begins again: nothing of what there was is left but what keeps old callers out."""

from __future__ import annotations

import pytest
from ledger_resumes import replayed
from ledger_world import World, settings

from headrace.errors import (
    CannotResumeError,
    InvalidFieldError,
    TrainerFencedError,
    WeightsUnknownError,
)
from headrace.replay import leasing, resuming, rows, sampling
from headrace.replay.base import from_base, to_base
from headrace.v1 import journal_pb2, resume_pb2


def forgetful() -> World:
    """At step 4, and it does not know any more what the first two trained on."""
    world = World(settings(window_size=8))
    world.keep_settled = 0
    world.train(4)
    world.save(oldest_step=2)
    world.restart()
    world.generate(3)
    world.new_trainer()
    world.begin_resume(0)
    for phase in (resume_pb2.RESUME_PHASE_STORE, resume_pb2.RESUME_PHASE_LEDGER):
        assert world.advance(phase) == ""
    return world


def begun_again() -> World:
    world = forgetful()
    resuming.start_over(world.ledger, world.resume_id)
    world.roll_back()
    return world


def test_what_a_roll_back_refuses_is_begun_again() -> None:
    world = forgetful()
    with pytest.raises(CannotResumeError, match="are forgotten"):
        world.roll_back()

    resuming.start_over(world.ledger, world.resume_id)
    world.roll_back()

    ledger = world.ledger
    assert world.states() == {}
    assert (ledger.cursor, ledger.committed_step, ledger.saved_step) == (0, 0, 0)
    assert (ledger.groups.fed_count, ledger.groups.covered_step) == (0, 0)
    assert [(line.id, line.fork_step) for line in ledger.lineages] == [("l0", 0), ("l1", 0)]
    assert not ledger.is_fresh
    assert ledger.latest_weights is None
    assert ledger.feed.total_steps == 250


def test_it_goes_on_as_a_fresh_run_does() -> None:
    world = begun_again()
    assert world.advance(resuming.WEIGHTS) == ""
    world.publish(0)
    assert world.warm_up() == 8
    world.train(2)
    assert world.ledger.groups.fed_count == world.ledger.cursor
    assert {group.lineage for group in world.ledger.groups.trained_after(0)} == {"l1"}
    world.save(oldest_step=1)
    world.resume(1)
    assert world.ledger.committed_step == 1
    world.fine()


def test_who_was_of_the_old_line_stays_out() -> None:
    world = forgetful()
    store, trainer = world.ledger.store_incarnation, world.ledger.trainer_incarnation
    old = world.weights_of(4)
    resuming.start_over(world.ledger, world.resume_id)
    world.roll_back()

    with pytest.raises(TrainerFencedError):
        sampling.register_trainer(world.ledger, "t1")
    assert world.ledger.trainer_incarnation == trainer
    assert world.ledger.store_incarnation == store
    assert world.advance(resuming.WEIGHTS) == ""
    world.publish(0)
    world.warm_up()
    with pytest.raises(WeightsUnknownError):
        leasing.check_weights(world.ledger, old, "c4")
    [first] = world.lease(1)
    group = world.ledger.groups[first.uid]
    late = f"{first.uid}_0_0_l0_{group.attempt}"
    assert rows.find_dead(world.ledger, [late]) == [late], "the old line's row is swept"


def test_beginning_again_twice_changes_nothing_and_only_a_resume_of_step_0_does() -> None:
    world = begun_again()
    position = world.ledger.position
    resuming.start_over(world.ledger, world.resume_id)
    assert world.ledger.position == position

    world = World(settings())
    world.train(2)
    world.save()
    world.new_trainer()
    world.begin_resume(2)
    with pytest.raises(InvalidFieldError, match="is for step 0"):
        resuming.start_over(world.ledger, world.resume_id)


def test_a_crash_between_the_two_events_leaves_the_resume_to_be_repeated() -> None:
    world = forgetful()
    resuming.start_over(world.ledger, world.resume_id)
    world.restart()

    resuming.start_over(world.ledger, world.resume_id)
    world.roll_back()

    assert world.ledger.lineage == "l1"
    assert world.ledger.groups.fed_count == 0


def test_an_emptied_ledger_is_the_same_from_a_base_and_from_its_events() -> None:
    world = begun_again()
    events = replayed(world.records())
    assert to_base(events, keep_settled=99) == to_base(world.ledger, keep_settled=99)
    again = from_base(to_base(world.ledger, keep_settled=99))
    assert to_base(again, keep_settled=99) == to_base(world.ledger, keep_settled=99)


def test_the_journal_says_what_was_left_behind() -> None:
    world = begun_again()
    [emptied] = [each for each in world.records() if each.HasField("ledger_emptied")]
    assert emptied.ledger_emptied.committed_step == 4
    assert emptied.ledger_emptied.counts.trained == 16


def test_a_pause_stays() -> None:
    world = forgetful()
    world.ledger.emit(journal_pb2.RunPaused())
    resuming.start_over(world.ledger, world.resume_id)
    assert world.ledger.paused
