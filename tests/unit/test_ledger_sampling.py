"""Sampling: whole groups, oldest first, idempotent; commits; staleness; fencing of trainers."""

from __future__ import annotations

import pytest
from ledger_world import LINEAGE, World, settings

from headrace.errors import (
    InvalidFieldError,
    StepNotCompleteError,
    StepOutOfOrderError,
    TrainerFencedError,
    WeightsConflictError,
)
from headrace.replay import dropping, rows, sampling
from headrace.replay.group import FINISHED, PENDING, SAMPLED, TRAINED
from headrace.replay.ledger import Ledger
from headrace.replay.staleness import span
from headrace.v1 import journal_pb2, prompt_pb2, replay_pb2

READY = replay_pb2.SAMPLE_STATUS_READY
WAITING = replay_pb2.SAMPLE_STATUS_WAITING


def uids(sample: sampling.Sample) -> list[str]:
    return [group.uid for group in sample.groups]


def test_a_repeated_sample_gives_the_same_groups_and_changes_nothing() -> None:
    world = World(settings())
    world.feed()
    world.generate()
    first = world.sample()
    position = world.ledger.position
    assert uids(world.sample()) == uids(first)
    assert world.ledger.position == position


def test_the_oldest_base_is_sampled_first_ties_by_ordinal() -> None:
    world = World(settings(window_size=4, batch_size=2))
    world.feed()
    late = world.lease(1)
    world.generate()
    assert uids(world.sample()) == [world.uid(1), world.uid(2)]
    world.commit()
    world.feed()
    world.generate()
    world.complete(late)
    assert uids(world.sample()) == [world.uid(0), world.uid(3)]


def test_a_repeated_commit_answers_as_the_first_time() -> None:
    world = World(settings())
    world.step()
    position = world.ledger.position
    world.commit(1)
    assert world.ledger.position == position
    assert world.ledger.last_commit.trained == 4


def test_steps_and_parts_come_in_order() -> None:
    world = World(settings())
    world.feed()
    world.generate()
    with pytest.raises(StepOutOfOrderError):
        world.sample(2)
    with pytest.raises(StepOutOfOrderError):
        world.sample(1, part=1, part_count=2)
    with pytest.raises(InvalidFieldError):
        world.sample(1, part_count=3)
    first = world.sample(1, part=0, part_count=2)
    with pytest.raises(InvalidFieldError):
        world.sample(1, part=0, part_count=4)
    with pytest.raises(StepNotCompleteError):
        world.commit(1)
    second = world.sample(1, part=1, part_count=2)
    assert len(uids(first)) == len(uids(second)) == 2
    world.commit(1)
    with pytest.raises(StepOutOfOrderError):
        world.commit(3)


def test_unreadable_groups_go_back_and_the_part_is_filled_again() -> None:
    world = World(settings())
    world.feed()
    world.generate()
    lost, *kept = uids(world.sample())
    for expected in (1, 0):
        returned = sampling.return_groups(
            world.ledger, step=1, part=0, uids=[lost, "e9r9"], error="gone"
        )
        assert returned == expected
    assert world.ledger.groups[lost].state == PENDING
    assert world.ledger.groups[lost].sessions == {}
    refilled = uids(world.sample())
    assert refilled[:3] == kept
    assert len(refilled) == 4
    world.commit()
    assert sum(g.state == TRAINED for g in world.ledger.groups) == 4


def test_a_return_that_is_repeated_late_leaves_what_was_sampled_again() -> None:
    world = World(settings(), row_count=4)
    world.feed()
    world.generate()
    lost, *others = uids(world.sample())

    def give_back(*attempts: int) -> int:
        names = [lost, others[0]][: len(attempts)]
        return sampling.return_groups(
            world.ledger, step=1, part=0, uids=names, attempts=attempts, error="gone"
        )

    assert give_back(1) == 1
    assert give_back(1) == 1, "answered as the first time"
    world.generate()
    assert lost in uids(world.sample())
    position = world.ledger.position
    assert give_back(1) == 1
    assert world.ledger.position == position
    assert world.ledger.groups[lost].state == SAMPLED
    assert give_back(2, 1) == 2, "that is the sampling of now"
    assert [world.ledger.groups[uid].state for uid in (lost, others[0])] == [PENDING, PENDING]
    with pytest.raises(InvalidFieldError):
        sampling.return_groups(
            world.ledger, step=1, part=0, uids=[lost], attempts=[1, 2], error="gone"
        )
    world.generate()
    world.sample()
    world.commit()


def test_a_new_trainer_gets_back_what_the_old_one_had_sampled() -> None:
    world = World(settings())
    world.feed()
    world.generate()
    before = uids(world.sample())
    old = world.ledger.trainer_incarnation
    sampling.register_trainer(world.ledger, "t2")
    assert all(world.ledger.groups[uid].state == FINISHED for uid in before)
    with pytest.raises(TrainerFencedError):
        sampling.check_trainer(world.ledger, old)
    with pytest.raises(TrainerFencedError):
        sampling.register_trainer(world.ledger, "t1")
    sampling.register_trainer(world.ledger, "t2")
    sampling.check_trainer(world.ledger, old + 1)
    assert uids(world.sample()) == before


def test_a_trainer_of_a_journal_that_was_lost_is_not_taken_for_one_of_the_next() -> None:
    incarnations = []
    for lineage in ("l0", "l1"):
        ledger = Ledger(journal_pb2.RunOpened(run_id="r", lineage=lineage, n=2))
        sampling.register_trainer(ledger, "t1")
        incarnations.append(ledger.trainer_incarnation)
    with pytest.raises(TrainerFencedError):
        sampling.check_trainer(ledger, incarnations[0])


def test_sampled_groups_whose_rows_were_lost_meanwhile_are_generated_again() -> None:
    world = World(settings())
    world.feed()
    world.generate()
    before = uids(world.sample())
    rows.register_store(world.ledger, incarnation="s2", follows="s1", capacity_bytes=10**9)
    assert all(world.ledger.groups[uid].state == SAMPLED for uid in before)
    sampling.register_trainer(world.ledger, "t2")
    assert all(world.ledger.groups[uid].state == PENDING for uid in before)


def test_span_equal_to_the_threshold_is_kept_and_one_more_is_dropped() -> None:
    world = World(settings(window_size=12, threshold=2))
    world.sample()
    world.feed()
    world.generate()
    world.sample()
    world.commit()
    assert world.dropped() == {}
    assert {span(g.base, 2) for g in world.ledger.groups.finished} == {2}
    world.sample()
    world.commit()
    assert world.dropped() == {"stale": 8}


def test_running_groups_that_can_no_longer_make_it_are_cancelled() -> None:
    world = World(settings(threshold=1, window_size=8))
    world.sample()
    world.feed()
    slow = world.lease(2)
    world.generate()
    world.sample()
    world.commit()
    assert world.complete(slow) == [replay_pb2.LEASE_STATUS_LOST] * 4
    assert world.ledger.groups[slow[0].uid].drop_reason == prompt_pb2.DROP_REASON_STALE


def test_a_pending_group_loses_sessions_that_grew_too_old_and_keeps_its_prompt() -> None:
    world = World(settings(threshold=1, window_size=8))
    world.sample()
    world.feed()
    [half] = world.lease(1)
    world.generate()
    world.complete([half], sessions=[0])
    world.expire([half])
    world.sample()
    world.commit()
    group = world.ledger.groups[half.uid]
    assert group.state == PENDING
    assert group.sessions == {}
    assert group.base == 0


def test_basis_fed_ages_in_the_queue() -> None:
    world = World(settings(threshold=2, basis="fed", window_size=8))
    world.feed()
    world.sample()
    world.feed()
    world.generate(4)
    world.sample()
    world.commit()
    world.generate(4)
    world.sample()
    world.commit()
    assert world.dropped() == {"stale": 4}


def test_wait_blocks_while_a_running_group_has_reached_the_threshold() -> None:
    world = World(settings(strategy="wait", threshold=1, window_size=0))
    world.sample()
    world.feed()
    slow = world.lease(1)
    world.generate()
    sample = world.sample()
    assert sample.status == WAITING
    world.complete(slow)
    assert world.sample().status == READY
    world.commit()
    for _ in range(3):
        assert world.step().status == READY, "W = 0 with wait makes progress"


def test_with_wait_over_age_groups_are_trained_on() -> None:
    world = World(settings(strategy="wait", threshold=1, window_size=12))
    world.feed()
    world.generate()
    for _ in range(3):
        assert world.sample().status == READY
        world.commit()
    assert world.dropped() == {}


def test_drop_stale_by_hand_is_safe_to_repeat() -> None:
    world = World(settings(threshold=2))
    world.feed()
    world.generate()
    assert len(dropping.drop_stale(world.ledger, world.settings, 3)) == 12
    assert dropping.drop_stale(world.ledger, world.settings, 3) == []
    with pytest.raises(InvalidFieldError):
        dropping.drop_stale(world.ledger, world.settings, 0)


def test_weights_are_published_in_order_after_their_step_and_only_once() -> None:
    world = World(settings())
    position = world.ledger.position
    world.publish(0)
    assert world.ledger.position == position
    with pytest.raises(WeightsConflictError):
        world.publish(1)
    other = prompt_pb2.PublishedWeights(
        id=prompt_pb2.WeightsId(lineage=LINEAGE, version=0), uri="u", checksum="other"
    )
    with pytest.raises(WeightsConflictError):
        sampling.publish_weights(world.ledger, other)
    world.step()
    assert world.ledger.latest_weights
    assert world.ledger.latest_weights.id.version == 1
