"""The journal was lost: the ledger is what a checkpoint says, and the run goes on from there."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_resumes import replayed
from ledger_world import LINEAGE, World, filled, settings

from headrace.errors import TrainerFencedError
from headrace.replay import feeding, sampling
from headrace.replay.base import from_base, to_base
from headrace.replay.group import FINISHED, LIVE, PENDING, TRAINED
from headrace.v1 import feeder_pb2, journal_pb2, replay_pb2

EMPTY = journal_pb2.LedgerBase()


def fresh(world: World, store: str = "s2") -> World:
    """Lose the journal: an empty one has begun, and the feeder has fed what it wanted."""
    lost = World(world.settings, publishes=False, store=store, trainer=11)
    lost.feed()
    assert lost.ledger.is_fresh
    return lost


def saved(**rules: Any) -> tuple[World, journal_pb2.LedgerBase]:
    world = World(settings(window_size=8, **rules))
    world.train(2)
    world.new_trainer()
    world.sample()
    world.commit()
    world.feed()
    world.complete(world.lease(2), sessions=[0])
    base = world.save()
    return world, base


def test_a_lost_journal_is_restored_with_cursor_and_time_lines() -> None:
    world, base = saved()
    lost = fresh(world)
    assert lost.begin_resume(3)
    lost.to_weights(restore=base)
    ledger = lost.ledger
    assert (ledger.committed_step, ledger.saved_step, ledger.cursor) == (3, 3, base.cursor)
    assert [line.id for line in ledger.lineages] == [LINEAGE, "l1"]
    assert ledger.groups.to_counts().fed == base.cursor
    assert lost.uids(TRAINED) == world.uids(TRAINED)
    assert lost.uids(FINISHED) == {s.group.uid for s in base.groups if s.group.state == FINISHED}
    assert lost.state.restored
    assert lost.state.sessions_kept_count == 2
    assert ledger.snapshot is None, "the one that the cut was made for is over"
    lost.warm_up()
    lost.train(4)
    lost.fine()


def test_what_was_fed_before_the_restore_is_forgotten_and_fed_again_in_order() -> None:
    world, base = saved()
    lost = fresh(world)
    assert lost.ledger.cursor == 8
    lost.begin_resume(3)
    lost.to_weights(restore=base)
    lost.warm_up()
    lost.train(2)
    ordinals = sorted(group.ordinal for group in lost.ledger.groups)
    assert ordinals == list(range(lost.ledger.cursor))
    assert [group.uid for group in lost.ledger.groups] == [lost.uid(i) for i in ordinals]


def test_the_store_that_has_the_rows_again_is_asked_for_no_others() -> None:
    world, base = saved()
    lost = fresh(world, store="s3")
    lost.begin_resume(3)
    lost.to_weights(restore=base, store="s3")
    finished = list(lost.ledger.groups.finished)
    assert finished
    assert {group.store_incarnation for group in finished} == {"s3"}
    rowless = fresh(world, store="s4")
    rowless.begin_resume(3)
    rowless.to_weights(restore=base, cut=EMPTY, store="s4")
    assert rowless.uids(FINISHED) == set()


@pytest.mark.parametrize("compacted", [False, True])
def test_a_crash_between_the_two_events_of_a_restore_is_made_good(compacted: bool) -> None:
    world, base = saved()
    lost = fresh(world)
    lost.begin_resume(3)
    lost.restore(base)
    lost.restart(compacted=compacted)
    assert not lost.ledger.is_fresh
    assert lost.state.restored
    assert lost.allowance(version=3).count == 0
    # The same resume goes on, or a new trainer begins another one.
    lost.roll_back(store="s2", cut=base)
    assert lost.ledger.lineage == "l1"
    lost.new_trainer()
    lost.begin_resume(3)
    lost.to_weights(store="s2", cut=base)
    lost.warm_up()
    lost.train(3)
    lost.fine()


def test_a_second_restore_by_the_next_resume_gives_the_same() -> None:
    world, base = saved()
    lost = fresh(world)
    lost.begin_resume(3)
    lost.restore(base)
    lost.new_trainer()
    lost.begin_resume(3)
    lost.to_weights(restore=base)
    once = fresh(world)
    once.begin_resume(3)
    once.to_weights(restore=base)
    assert lost.uids(*LIVE) == once.uids(*LIVE)
    assert lost.ledger.groups.to_counts() == once.ledger.groups.to_counts()
    lost.warm_up()
    lost.train(2)
    lost.fine()


def test_a_crash_before_anything_is_restored_leaves_a_fresh_run() -> None:
    world, _ = saved()
    lost = fresh(world)
    lost.begin_resume(3)
    lost.restart()
    assert lost.ledger.is_fresh
    assert lost.ledger.is_resuming


def test_trainers_of_the_lost_journal_stay_fenced_and_the_new_one_does_not() -> None:
    world, base = saved()
    lost = fresh(world)
    lost.begin_resume(3)
    lost.to_weights(restore=base)
    lost.restart()
    for zombie in ("t1", "t2"):
        with pytest.raises(TrainerFencedError):
            sampling.register_trainer(lost.ledger, zombie)
    position = lost.ledger.position
    sampling.register_trainer(lost.ledger, "t11")
    assert lost.ledger.position == position


def test_a_restored_ledger_is_the_same_from_a_base_and_from_its_events() -> None:
    world, base = saved()
    lost = fresh(world)
    lost.begin_resume(3)
    lost.to_weights(restore=base)
    lost.warm_up()
    lost.train(2)
    events = replayed(lost.records())
    assert to_base(events, keep_settled=99) == to_base(lost.ledger, keep_settled=99)
    again = from_base(to_base(lost.ledger, keep_settled=99))
    assert to_base(again, keep_settled=99) == to_base(lost.ledger, keep_settled=99)
    assert again.latest_weights == lost.ledger.latest_weights


def test_rows_fed_by_hand_and_wishes_come_back_with_the_checkpoint() -> None:
    world = filled(8)
    by_hand = [feeder_pb2.PromptPayload(text="a")]
    uids = feeding.register_rows(world.ledger, request_id="x", rows=by_hand)
    feeding.add_credit(world.ledger, count=2, request_id="y", kind="feed")
    base = world.save()
    lost = fresh(world)
    lost.begin_resume(1)
    lost.to_weights(restore=base)
    assert feeding.register_rows(lost.ledger, request_id="x", rows=by_hand) == uids
    assert set(uids) <= lost.uids(PENDING)
    assert feeding.add_credit(lost.ledger, count=2, request_id="y", kind="feed") == 2
    assert lost.warm_up() == 2
    lost.fine()


def test_a_stream_goes_on_from_the_state_that_the_checkpoint_has() -> None:
    def feed(world: World) -> int:
        start, count = world.ledger.cursor, world.demand
        return feeding.register_prompts(
            world.ledger,
            world.settings,
            first_ordinal=start,
            prompts=[replay_pb2.NewPrompt(uid=world.uid(start + i)) for i in range(count)],
            source_states=[f"after {start + i}" for i in range(count)],
        )

    world = World(settings(window_size=8))
    feed(world)
    world.generate()
    world.sample()
    world.commit()
    feed(world)
    base = world.save()
    assert world.ledger.source_state == f"after {world.ledger.cursor - 1}"
    # Rolled back: the cursor stays, and the state with it.
    world.sample()
    feed(world)
    state, cursor = world.ledger.source_state, world.ledger.cursor
    world.open_line(1)
    assert (world.ledger.source_state, world.ledger.cursor) == (state, cursor)
    # Restored: both go back.
    lost = fresh(world)
    lost.begin_resume(1)
    lost.to_weights(restore=base)
    assert lost.ledger.source_state == f"after {lost.ledger.cursor - 1}"
    assert lost.ledger.cursor == base.cursor < cursor
