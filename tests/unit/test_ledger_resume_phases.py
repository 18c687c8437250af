"""A resume's phases, and what else happens while they last."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_world import LINEAGE, World, filled, settings

from headrace.errors import (
    InvalidFieldError,
    ResumeLostError,
)
from headrace.replay import feeding, resuming, rows
from headrace.replay.group import FAILED, FINISHED, PENDING, TRAINED
from headrace.trajectory.key import TrajectoryKey
from headrace.v1 import feeder_pb2, journal_pb2, prompt_pb2, replay_pb2, resume_pb2

READY = replay_pb2.SAMPLE_STATUS_READY
WAITING = replay_pb2.SAMPLE_STATUS_WAITING
STALE_AT_RESTORE = prompt_pb2.DROP_REASON_STALE_AT_RESTORE


# -- who may ask for what


def test_each_phase_waits_for_the_one_before() -> None:
    world = filled(8)
    world.settings = settings(window_size=12)
    world.new_trainer()
    world.begin_resume(1)
    with pytest.raises(InvalidFieldError, match="one after PLAN"):
        world.advance(resuming.WEIGHTS)
    assert world.advance(resume_pb2.RESUME_PHASE_STORE) == ""
    assert world.advance(resume_pb2.RESUME_PHASE_LEDGER) == ""
    assert world.advance(resuming.WEIGHTS) == "the ledger to be rolled back"
    world.roll_back()
    assert world.advance(resuming.WEIGHTS) == ""
    assert world.advance(resuming.REISSUE) == "the trainer to publish weights l1 v1"
    world.publish(1)
    old = {(LINEAGE, 1)}
    assert world.advance(resuming.REISSUE, old) == "a worker to load weights l1 v1"
    assert world.advance(resuming.REISSUE, {("l1", 1)}) == ""
    assert world.demand == 0
    assert world.advance(resuming.WARMUP) == ""
    assert world.demand == 4
    assert world.advance(resuming.OPEN) == "the feeder to register 4 prompts"
    assert "being resumed from step 1: WARMUP" in world.allowance().blocked_by
    assert "being resumed" in world.sample().blocked_by
    assert world.lease() == []
    world.feed()
    assert world.advance(resuming.OPEN) == ""
    assert world.allowance().count == 4
    with pytest.raises(InvalidFieldError):
        world.advance(resume_pb2.ResumePhase.ValueType(8))


def test_every_call_of_a_resume_made_twice_changes_nothing() -> None:
    world = filled(8)
    world.new_trainer()
    world.begin_resume(1)

    def twice(call: Any, *args: Any) -> None:
        call(*args)
        position = world.ledger.position
        call(*args)
        assert world.ledger.position == position

    def again() -> None:
        world.resumes -= 1
        world.begin_resume(1)

    twice(again)
    twice(world.advance, resume_pb2.RESUME_PHASE_STORE)
    twice(world.advance, resume_pb2.RESUME_PHASE_LEDGER)
    twice(world.roll_back)
    twice(world.advance, resuming.WEIGHTS)
    twice(world.publish, 1)
    twice(world.advance, resuming.REISSUE)
    finished = next(iter(world.ledger.groups.finished)).uid
    key = (finished, 0)
    assert world.report_lost([key]) == 1
    position = world.ledger.position
    old = resuming.report_lost(world.ledger, world.resume_id, [])
    assert (old, world.ledger.position) == (0, position)
    twice(world.advance, resuming.WARMUP)
    twice(world.advance, resuming.OPEN)


def test_a_newer_trainer_ends_the_resume_of_the_older() -> None:
    world = filled(8)
    world.open_line(1)
    world.new_trainer()
    with pytest.raises(ResumeLostError, match="succeeded"):
        world.advance(resuming.REISSUE)
    assert "being resumed" in world.allowance().blocked_by
    old = world.resume_id
    world.begin_resume(1)
    with pytest.raises(ResumeLostError, match="not the run's newest"):
        resuming.current(world.ledger, old)
    world.to_weights()
    assert world.warm_up() == 0
    assert [line.id for line in world.ledger.lineages] == [LINEAGE, "l1", "l2"]
    world.fine()


def test_a_resume_that_comes_late_does_not_stop_a_run_that_goes_on() -> None:
    world = filled(8)
    world.open_line(1)
    world.to_weights()
    world.warm_up()
    assert not world.ledger.is_resuming
    position, trainer = world.ledger.position, world.ledger.trainer_incarnation
    with pytest.raises(ResumeLostError, match="late"):
        resuming.begin_resume(world.ledger, resume_id="late", incarnation=trainer, step=1)
    assert world.ledger.position == position


def test_a_resume_without_a_name_or_a_step_is_refused() -> None:
    world = filled(4)
    for resume_id, step in (("", 1), ("r", -1)):
        with pytest.raises(InvalidFieldError):
            resuming.begin_resume(world.ledger, resume_id=resume_id, incarnation=1, step=step)
    with pytest.raises(ResumeLostError):
        resuming.current(world.ledger, "r")


# -- the store


def test_rows_that_the_store_lacks_are_made_again_and_the_others_are_not() -> None:
    world = filled(8, n=3)
    first, second, *_ = (group.uid for group in world.ledger.groups.finished)
    world.open_line(1)
    assert world.advance(resuming.REISSUE) == ""
    assert world.report_lost([(first, 0), (first, 2), (second, 1), (first, 0)]) == 2
    assert world.ledger.groups[first].missing(3) == [0, 2]
    assert world.ledger.groups[second].missing(3) == [1]
    assert world.state.reissued_count == 2
    assert world.state.sessions_kept_count == 3
    assert world.states() == {"finished": 6, "pending": 2}
    world.fine()


def test_a_late_report_does_not_forget_what_was_made_anew() -> None:
    world = filled(8)
    uid = next(iter(world.ledger.groups.finished)).uid
    world.open_line(1)
    assert world.advance(resuming.REISSUE) == ""
    record = world.ledger.groups[uid].sessions[0]
    key = TrajectoryKey(uid, 0, 0, record.lineage, record.attempt)
    assert resuming.report_lost(world.ledger, world.resume_id, [key]) == 1
    world.warm_up()
    world.generate()
    assert world.ledger.groups[uid].state == FINISHED
    assert resuming.report_lost(world.ledger, world.resume_id, [key]) == 0
    assert world.ledger.groups[uid].state == FINISHED


def test_a_store_of_another_life_has_only_what_the_checkpoint_lists() -> None:
    world = filled(8)
    base = world.save()
    saved = world.uids(FINISHED)
    world.train(2)
    state = world.open_line(1, store="s2", cut=base)
    assert world.ledger.store_incarnation == "s2"
    assert world.uids(FINISHED) == saved
    assert state.untrained_count == 8
    assert {group.store_incarnation for group in world.ledger.groups.finished} == {"s2"}
    assert not any(group.sessions for group in world.ledger.groups.pending)
    world.warm_up()
    world.train(3)
    world.fine()


def test_a_store_of_another_life_without_a_checkpoint_has_nothing() -> None:
    world = filled(8)
    state = world.open_line(1, store="s2")
    assert (state.reissued_count, state.sessions_kept_count) == (8, 0)
    world.warm_up()
    assert world.states() == {"pending": 8}
    world.fine()


def test_a_store_that_dies_in_the_middle_of_a_resume_costs_its_rows_only() -> None:
    world = filled(8)
    world.open_line(1)
    rows.register_store(world.ledger, incarnation="s2", follows="s1", capacity_bytes=10**9)
    assert world.states() == {"pending": 8}
    world.warm_up()
    world.train(2)
    world.fine()


# -- the rest of the run meanwhile


def test_a_circuit_that_is_open_stays_open_and_its_prompts_are_not_dropped() -> None:
    world = World(settings(window_size=8, max_failures=1, eject_after=2))
    world.train(1)
    world.save()
    world.train(1)
    world.sample()
    world.feed()
    refs = world.lease(2)
    world.complete(refs, sessions=[0], version=2)  # by weights that will be of a dead line
    world.fail(refs, live_workers=["w"])
    assert world.ledger.circuit.is_open
    failed = world.uids(FAILED)
    assert failed
    world.resume(1)
    assert world.ledger.circuit.is_open
    assert world.dropped() == {}
    assert failed <= world.uids(PENDING)
    assert not any(world.ledger.groups[uid].sessions for uid in failed)
    assert world.lease() == [], "the window is over-full"
    world.sample()
    world.commit()
    probes = world.lease()
    assert len(probes) == 1
    world.complete(probes)
    assert not world.ledger.circuit.is_open
    world.train(3)
    world.fine()


def test_a_paused_run_is_resumed_and_stays_paused() -> None:
    world = filled(6)
    world.settings = settings(window_size=12)
    world.ledger.emit(journal_pb2.RunPaused())
    assert world.resume(1) == 0
    assert not world.ledger.is_resuming
    assert "paused" in world.allowance().blocked_by
    world.ledger.emit(journal_pb2.RunResumed())
    assert world.demand == 6
    world.train(2)
    world.fine()


def test_rows_fed_by_hand_are_resumed_like_others() -> None:
    world = World(settings(window_size=8))
    world.train(1)
    rows_by_hand = [feeder_pb2.PromptPayload(text=str(i)) for i in range(4)]
    uids = feeding.register_rows(world.ledger, request_id="a", rows=rows_by_hand)
    world.save()
    world.train(6)
    assert set(uids) <= world.uids(TRAINED)
    world.resume(1)
    assert set(uids) <= world.uids(PENDING, FINISHED)
    given = [world.ledger.groups[uid].payload for uid in uids]
    assert [each.text for each in given if each] == ["0", "1", "2", "3"]
    assert feeding.register_rows(world.ledger, request_id="a", rows=rows_by_hand) == uids
    world.train(9)
    assert set(uids) <= world.uids(TRAINED)
    world.fine()
