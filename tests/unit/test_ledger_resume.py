"""How a ledger goes on from a checkpoint: what is kept, what is fed, what is dropped."""

from __future__ import annotations

import pytest
from ledger_world import World, filled, settings

from headrace.replay.group import FAILED, FINISHED, PENDING, TRAINED
from headrace.v1 import prompt_pb2, replay_pb2

READY = replay_pb2.SAMPLE_STATUS_READY
WAITING = replay_pb2.SAMPLE_STATUS_WAITING
STALE_AT_RESTORE = prompt_pb2.DROP_REASON_STALE_AT_RESTORE


# -- the window


def test_a_fresh_start_is_no_resume_and_feeds_the_window() -> None:
    world = World(settings(window_size=12), publishes=False)
    assert world.ledger.is_fresh
    assert world.feed() == 12
    world.publish(0)
    assert not world.ledger.is_fresh


@pytest.mark.parametrize(("held", "fed"), [(12, 0), (6, 6), (13, 0), (0, 12)])
def test_a_resume_feeds_what_the_restored_groups_leave_of_the_window(held: int, fed: int) -> None:
    world = filled(held)
    world.settings = settings(window_size=12)
    assert world.resume(1) == fed
    assert world.states()["finished" if held else "pending"] == (held or 12)
    assert world.state.topped_up_count == fed
    assert world.ledger.live_count == max(held, 12)
    world.fine()


def test_finished_groups_alone_are_neither_reissued_nor_added_to() -> None:
    world = filled(3)
    assert world.resume(1) == 0
    assert world.state.reissued_count == 0
    assert world.states() == {"finished": 3}


def test_a_failed_group_is_dropped_and_replaced_by_exactly_one() -> None:
    world = World(settings(window_size=3, max_failures=1))
    world.sample()
    world.feed()
    *good, bad = world.lease()
    world.complete(good)
    world.fail([bad])
    world.sample()
    world.commit()
    assert world.states() == {"finished": 2, "failed": 1}
    assert world.uids(FAILED) == {bad.uid}
    world.save()
    assert world.resume(1) == 1
    assert world.state.reissued_count == 0
    assert world.dropped() == {"failed": 1}
    assert world.states() == {"finished": 2, "pending": 1}
    world.fine()


def test_what_is_past_the_threshold_is_dropped_first_and_replaced() -> None:
    world = World(settings(window_size=8, threshold=2))
    world.sample()
    world.feed()
    world.generate(8)
    world.sample()
    world.commit()
    world.generate()
    assert [group.base for group in world.ledger.groups.finished] == [1] * 4 + [2] * 4
    world.save()
    world.settings = settings(window_size=8, threshold=1)
    assert world.resume(1) == 4
    assert world.dropped() == {"stale_at_restore": 4}
    assert world.state.dropped_count == 4
    assert world.states() == {"finished": 4, "pending": 4}
    world.fine()


def test_a_window_that_is_over_full_waits_in_pending_and_two_drops_are_one_demand() -> None:
    world = filled(13, max_failures=1)
    world.settings = settings(window_size=12, max_failures=1)
    assert world.resume(1) == 0
    assert world.allowance().count == 0
    leftovers = list(world.ledger.groups.finished)[:2]
    for group in leftovers:
        with world.ledger.groups.changing(group):
            group.state = PENDING
            group.sessions.clear()
    refs = world.lease(2)
    assert len(refs) == 1, "running + finished fill the window with one more"
    world.fine()


# -- what is reissued, what is kept


def test_finished_sessions_of_a_reissued_group_are_kept() -> None:
    world = World(settings(n=4, window_size=8))
    world.sample()
    world.feed()
    world.generate(9)
    world.sample()
    world.commit()
    [running] = world.lease(1)
    world.complete([running], sessions=[1, 3])
    bases = {g.uid: g.base for g in world.ledger.groups.finished}
    assert world.states() == {"pending": 2, "running": 1, "finished": 5}
    world.save()

    state = world.open_line(1)
    assert state.reissued_count == 3
    assert state.sessions_kept_count == 2
    world.warm_up()
    assert {g.uid: g.base for g in world.ledger.groups.finished} == bases
    again = world.lease()
    assert [ref.attempt for ref in again if ref.uid == running.uid] == [2]
    group = world.ledger.groups[running.uid]
    assert group.missing(4) == [0, 2]
    assert group.base == 2
    world.fine()


@pytest.mark.parametrize("basis", ["generated", "fed"])
def test_prompts_that_were_not_generated_count_from_the_resumed_step(basis: str) -> None:
    world = World(settings(window_size=8, threshold=2, basis=basis, total_steps=20))
    world.step()
    world.feed()
    world.save()
    for _ in range(3):
        assert world.step().status == READY
    world.feed()
    world.resume(1)
    pending = list(world.ledger.groups.pending)
    assert pending
    assert {group.base for group in pending} == {2 if basis == "fed" else 0}
    world.fine()


def test_sessions_of_later_weights_are_made_again_and_earlier_ones_are_not() -> None:
    world = World(settings(window_size=8, n=2))
    world.train(2)
    world.save()
    world.train(1)  # version 3 has made some of what is in the window now
    versions = {
        group.uid: {s: record.max_version for s, record in group.sessions.items()}
        for group in world.ledger.groups.finished
    }
    assert {v for sessions in versions.values() for v in sessions.values()} == {2, 3}
    world.resume(2)
    for group in world.ledger.groups:
        if group.uid in versions:
            kept = {s for s, version in versions[group.uid].items() if version <= 2}
            assert group.sessions.keys() == kept, group.uid
    world.fine()


def test_nothing_is_kept_where_nothing_is_salvaged() -> None:
    world = filled(12)
    state = world.open_line(1, salvage=False)
    assert (state.reissued_count, state.sessions_kept_count) == (12, 0)
    world.warm_up()
    assert world.states() == {"pending": 12}
    assert {group.base for group in world.ledger.groups.pending} == {0}
    world.fine()


def test_what_was_trained_after_the_step_is_live_again_with_what_the_step_had_made() -> None:
    world = World(settings(window_size=8))
    world.train(2)
    before = world.uids(TRAINED)
    world.save()
    world.train(4)
    later = world.uids(TRAINED) - before
    made = {
        uid: [r.max_version for r in world.ledger.groups[uid].sessions.values()] for uid in later
    }
    cursor = world.ledger.cursor
    state = world.open_line(2)
    assert state.untrained_count == 16
    assert world.uids(TRAINED) == before
    assert world.ledger.cursor == cursor
    for uid in later:
        group = world.ledger.groups[uid]
        assert group.state == (FINISHED if max(made[uid]) <= 2 else PENDING)
        assert (group.step, group.lineage, group.payload is not None) == (0, "", True)
    assert any(world.ledger.groups[uid].state == FINISHED for uid in later)
    assert any(world.ledger.groups[uid].state == PENDING for uid in later)
    world.fine()
    assert world.warm_up() == 0
    world.train(6)
    world.fine()


def test_what_was_dropped_stays_dropped() -> None:
    world = World(settings(window_size=4, max_failures=1))
    world.train(1)
    world.save()
    world.sample()
    world.feed()
    bad, good = world.lease(2)
    world.fail([bad])
    world.complete([good])
    dropped = world.ledger.groups[bad.uid]
    assert world.dropped() == {"failed": 1}
    world.resume(1)
    assert world.dropped() == {"failed": 1}
    assert dropped.uid in {g.uid for g in world.ledger.groups if g.drop_reason}
    world.fine()


def test_a_batch_that_was_sampled_is_finished_again() -> None:
    world = World(settings(window_size=8))
    world.train(1)
    world.save()
    sampled = {group.uid for group in world.sample().groups}
    world.new_trainer()
    world.begin_resume(1)
    world.to_weights()
    assert sampled <= world.uids(FINISHED)
    assert world.ledger.open_step is None
    world.warm_up()
    assert {group.uid for group in world.sample().groups} == sampled
