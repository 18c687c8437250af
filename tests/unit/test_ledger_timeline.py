"""Time lines of a ledger: who is of which, and how often it may fork."""

from __future__ import annotations

import pytest
from ledger_world import LINEAGE, World, filled, settings

from headrace.errors import (
    CannotResumeError,
    InvalidFieldError,
    StepOutOfOrderError,
    TrainerFencedError,
    WeightsUnknownError,
)
from headrace.replay import leasing, sampling
from headrace.replay.group import FINISHED, PENDING, RUNNING
from headrace.v1 import prompt_pb2, replay_pb2

READY = replay_pb2.SAMPLE_STATUS_READY
WAITING = replay_pb2.SAMPLE_STATUS_WAITING
STALE_AT_RESTORE = prompt_pb2.DROP_REASON_STALE_AT_RESTORE


# -- the time line


def test_a_run_that_goes_back_to_step_seven_goes_on_with_step_eight() -> None:
    world = World(settings(window_size=8))
    world.train(7)
    world.save()
    world.train(2)
    state = world.open_line(7)
    assert world.ledger.current_step == 8
    assert (state.lineage, state.parent, state.step) == ("l1", LINEAGE, 7)
    assert world.ledger.latest_weights is not None
    assert world.ledger.latest_weights.id == prompt_pb2.WeightsId(lineage="l1", version=7)
    assert world.ledger.groups.counts[RUNNING] == 0
    world.warm_up()
    leased = [r for r in world.records() if r.WhichOneof("event") == "prompts_leased"]
    opened = [r for r in world.records() if r.WhichOneof("event") == "lineage_opened"]
    world.lease()
    assert all(record.position < opened[0].position for record in leased)
    with pytest.raises(StepOutOfOrderError):
        world.sample(step=7)
    assert world.sample(step=8).status in (READY, WAITING)


def test_weights_of_ancestors_count_up_to_the_fork_and_no_further() -> None:
    world = World(settings(window_size=8))
    world.train(3)
    world.save()
    world.train(3)
    world.resume(3)  # l1 forks after step 3
    world.train(2)
    world.save()
    world.train(1)
    world.resume(5)  # l2 forks after step 5 of l1

    def accepted(lineage: str, version: int) -> bool:
        try:
            weights = prompt_pb2.WeightsId(lineage=lineage, version=version)
            leasing.check_weights(world.ledger, weights, f"c{version}")
        except WeightsUnknownError:
            return False
        return True

    assert [v for v in range(8) if accepted(LINEAGE, v)] == [0, 1, 2, 3]
    assert [v for v in range(8) if accepted("l1", v)] == [3, 4, 5]
    assert [v for v in range(8) if accepted("l2", v)] == [5]
    assert [(line.id, line.parent, line.fork_step) for line in world.ledger.lineages] == [
        (LINEAGE, "", 0),
        ("l1", LINEAGE, 3),
        ("l2", "l1", 5),
    ]


def test_the_living_dead_of_an_old_line_change_nothing() -> None:
    """Checkpoint 5, crash at 8; a worker with the old version 6 and the old trainer wake up."""
    world = World(settings(window_size=8))
    world.train(5)
    world.save()
    world.train(1)
    world.feed()
    zombie = world.weights_of(6)
    world.sample()
    world.feed()
    stale_leases = world.lease(2, worker="zombie")
    assert stale_leases
    world.complete(world.lease())
    world.complete(stale_leases, worker="zombie", sessions=[0])
    old_trainer = world.ledger.trainer_incarnation
    world.train(0)
    world.resume(5)
    world.train(1)  # the new version 6 exists
    assert world.weights_of(6).lineage == "l1"

    position = world.ledger.position
    answers = world.complete(stale_leases, worker="zombie", sessions=[1], version=6)
    assert set(answers) == {leasing.LOST}
    with pytest.raises(WeightsUnknownError):
        leasing.check_weights(world.ledger, zombie, "other bits")
    old = prompt_pb2.WeightsId(lineage=LINEAGE, version=6)
    with pytest.raises(WeightsUnknownError) as refused:
        leasing.check_weights(world.ledger, old, "c6")
    assert refused.value.metadata["latest_lineage"] == "l1"
    with pytest.raises(TrainerFencedError):
        sampling.check_trainer(world.ledger, old_trainer)
    with pytest.raises(InvalidFieldError):
        sampling.publish_weights(
            world.ledger, prompt_pb2.PublishedWeights(id=old, uri="u", checksum="c6")
        )
    assert world.ledger.position == position
    world.fine()


def test_sessions_of_a_line_that_was_left_are_lost_even_if_attempts_are_the_same() -> None:
    """After the journal was lost attempts repeat: the lease's time line tells them apart."""
    world = filled(8)
    base = world.save()
    world.sample()
    world.feed()
    old = world.lease(4)
    again = World(world.settings, publishes=False)
    again.begin_resume(1)
    again.to_weights(restore=base, store="s1")
    again.warm_up()
    again.sample()
    again.feed()
    refs = again.lease(4)
    assert [(r.uid, r.attempt) for r in refs] == [(r.uid, r.attempt) for r in old]
    position = again.ledger.position
    assert set(again.complete(refs, lineage=LINEAGE)) == {leasing.LOST}
    assert again.ledger.position == position
    assert set(again.complete(refs, lineage="l1")) == {leasing.DONE}


# -- again and again


def test_ten_rounds_of_saving_and_resuming_leave_as_many_entries_as_before() -> None:
    world = World(settings(window_size=8))
    world.train(2)
    world.save()
    first = (world.states(), world.ledger.groups.held_bytes, world.ledger.cursor)
    for _ in range(10):
        assert world.resume(2) == 0
        world.save()
        world.restart()
    now = (world.states(), world.ledger.groups.held_bytes, world.ledger.cursor)
    assert now == first
    assert world.ledger.groups.fed_count == len(world.ledger.groups)
    world.fine()


def test_a_trainer_that_dies_alone_again_and_again_costs_little() -> None:
    """26 deaths, W = 3, T = 5: what the checkpoint's weights made is never made again."""
    world = World(settings(window_size=12, threshold=5))
    world.train(5)
    world.save()
    made: dict[tuple[str, int], int] = {}
    for death in range(26):
        for group in world.ledger.groups:
            for session, record in group.sessions.items():
                if record.max_version <= 5:
                    assert made.setdefault((group.uid, session), record.attempt) == record.attempt
        world.train(1 + death % 3)
        world.resume(5)
        assert world.ledger.store_incarnation == "s1"
        for (uid, session), attempt in made.items():
            group = world.ledger.groups[uid]
            if group.state in (PENDING, FINISHED):
                assert group.sessions[session].attempt == attempt, "made again"
        assert world.ledger.groups.counts[FINISHED] <= 16
        world.fine()
    assert world.dropped() == {}
    surplus = world.ledger.live_count - 12
    assert surplus > 0
    assert world.ledger.groups.counts[PENDING] >= surplus
    world.train(12)
    assert world.dropped() == {}, "the surplus waits where it does not age"
    world.fine()


def test_one_group_that_was_dropped_early_does_not_pin_what_is_remembered() -> None:
    world = World(settings(window_size=4, max_failures=1, total_steps=200))
    world.feed()
    bad, *good = world.lease()
    world.fail([bad])
    world.complete(good)
    for _ in range(40):
        world.train(1)
        world.save()
    world.restart()
    table = world.ledger.groups
    assert table.get(bad.uid) is None
    assert len(table) <= 10 + world.ledger.live_count
    world.train(2)
    assert world.resume(40) == 0
    world.fine()


def test_going_back_twice_to_ever_older_checkpoints_works_until_they_are_forgotten() -> None:
    world = World(settings(window_size=8))
    world.train(2)
    world.save(oldest_step=2)
    world.train(2)
    world.save(oldest_step=2)
    world.train(2)
    world.resume(4)
    world.resume(2)
    assert world.ledger.committed_step == world.ledger.saved_step == 2
    world.new_trainer()
    world.begin_resume(1)
    with pytest.raises(CannotResumeError, match="oldest checkpoint kept is of step 2"):
        world.roll_back()
    assert world.ledger.lineage == "l2"


def test_a_ledger_that_does_not_reach_the_step_is_not_this_runs() -> None:
    world = filled(4)
    world.new_trainer()
    world.begin_resume(3)
    with pytest.raises(CannotResumeError, match="committed 1 only"):
        world.roll_back()
