"""The end of a run that has checkpoints: the last one is made first, and it can be gone back from."""

from __future__ import annotations

import pytest
from ledger_world import World, settings

from headrace.errors import StepNotCompleteError
from headrace.replay import feeding, sampling
from headrace.replay.ending import ends_soon
from headrace.replay.group import DROPPED, FINISHED, PENDING, TRAINED
from headrace.v1 import prompt_pb2, replay_pb2

READY = replay_pb2.SAMPLE_STATUS_READY
DATA_ENDED = replay_pb2.SAMPLE_STATUS_DATA_ENDED


def test_twenty_two_rows_are_five_steps_and_two_left_over() -> None:
    world = World(settings(window_size=12, saves=True), row_count=22)
    for _ in range(5):
        assert world.step().status == READY
    assert world.ledger.ended_by == ""
    assert world.sample().status == DATA_ENDED
    assert world.ledger.ended_by == "", "the last checkpoint is still to be made"
    world.save()
    assert sampling.finish(world.ledger) == 0
    assert world.ledger.ended_by == "steps_done"
    assert feeding.surplus_count(world.ledger) == 2
    names = [
        replay_pb2.NewPrompt(uid=world.uid(i), drop_reason=prompt_pb2.DROP_REASON_SURPLUS)
        for i in (20, 21)
    ]
    accepted = feeding.register_prompts(
        world.ledger, world.settings, first_ordinal=20, prompts=names
    )
    assert accepted == 2
    assert world.dropped() == {"surplus": 2}
    assert len(world.uids(TRAINED)) == 20
    assert (world.ledger.saved_step, world.ledger.committed_step) == (5, 5)
    world.fine()


def test_a_commit_says_when_the_feed_has_no_more_than_a_batch_left() -> None:
    world = World(settings(window_size=4, saves=True), row_count=20)
    left = []
    for _ in range(5):
        world.step()
        left.append((20 - world.ledger.cursor, ends_soon(world.ledger)))
    assert left == [(n, n <= 4) for n, _ in left]
    assert [soon for _, soon in left].index(True) < 4


def test_ending_a_run_twice_changes_nothing_and_before_its_end_it_is_refused() -> None:
    world = World(settings(window_size=4, saves=True, total_steps=2))
    world.step()
    with pytest.raises(StepNotCompleteError, match="step 2 of 2"):
        sampling.finish(world.ledger)
    world.step()
    sampling.finish(world.ledger)
    position = world.ledger.position
    assert sampling.finish(world.ledger) == 0
    assert world.ledger.position == position


def test_a_run_without_checkpoints_ends_by_itself() -> None:
    world = World(settings(window_size=4, total_steps=2))
    world.step()
    world.step()
    assert world.ledger.ended_by == "steps_done"
    assert sampling.finish(world.ledger) == 0


def test_a_run_that_trained_all_but_is_not_over_is_gone_back_from() -> None:
    world = World(settings(window_size=8, saves=True), row_count=24)
    world.train(3)
    world.save()
    for _ in range(3):
        world.step()
    assert world.sample().status == DATA_ENDED
    world.open_line(3)
    assert world.state.untrained_count == 12
    with pytest.raises(StepNotCompleteError):
        sampling.finish(world.ledger)
    assert world.warm_up() == 0
    for _ in range(3):
        assert world.step().status == READY
    sampling.finish(world.ledger)
    assert len(world.uids(TRAINED)) == 24
    world.fine()


def test_a_run_that_is_over_is_gone_back_from_and_what_was_left_over_stays_so() -> None:
    world = World(settings(window_size=8, saves=True), row_count=26)
    world.train(3)
    world.save()
    while world.step().status == READY:
        pass
    feeding.add_credit(world.ledger, count=2, request_id="a", kind="feed")
    sampling.finish(world.ledger)
    left = world.uids(DROPPED)
    world.open_line(3)
    assert world.ledger.ended_by == ""
    assert world.uids(DROPPED) == left
    assert len(world.uids(PENDING, FINISHED)) == 12
    world.warm_up()
    for _ in range(3):
        assert world.step().status == READY
    assert world.sample().status == DATA_ENDED
    sampling.finish(world.ledger)
    assert world.ledger.committed_step == 6
    world.fine()


def test_the_end_of_a_stream_that_comes_in_the_middle_of_a_resume_does_not_end_the_run() -> None:
    world = World(settings(window_size=4), row_count=40)
    world.train(2)
    world.new_trainer()
    world.begin_resume(0)
    feeding.end_feed(world.ledger, world.settings, ordinal_count=world.ledger.cursor)
    assert world.ledger.ended_by == ""
    world.to_weights()
    world.warm_up()
    while world.step().status == READY:
        pass
    assert world.ledger.ended_by
    assert len(world.uids(TRAINED)) == world.ledger.cursor
    world.fine()


def test_nothing_is_wanted_for_a_run_restored_at_its_last_step() -> None:
    world = World(settings(window_size=8, saves=True, total_steps=3))
    for _ in range(3):
        world.step()
    world.save()
    assert world.resume(3) == 0
    assert world.sample().status == DATA_ENDED
    assert sampling.finish(world.ledger) == 0
    assert world.ledger.ended_by == "steps_done"
