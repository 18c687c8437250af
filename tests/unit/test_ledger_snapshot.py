"""When a ledger may be cut, how a snapshot ends, and what stays recallable."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_world import World, filled, settings

from headrace.errors import InvalidFieldError, SnapshotLostError, StepOutOfOrderError
from headrace.replay import cutting, rows
from headrace.replay.base import from_base
from headrace.replay.group import TRAINED
from headrace.v1 import replay_pb2

WAITING = replay_pb2.SAMPLE_STATUS_WAITING


def test_the_cut_is_the_ledger_at_its_position_whatever_happens_later() -> None:
    world = World(settings(window_size=8))
    world.train(2)
    before = world.ledger.groups.to_counts()
    world.begin_cut("a")
    position = world.ledger.position
    world.train(3)
    base = world.cut()
    assert base.position == position
    ledger = from_base(base)
    assert ledger.groups.to_counts() == before
    assert ledger.committed_step == 2
    assert ledger.snapshot is not None


def test_a_cut_is_of_the_last_step_and_of_no_open_one() -> None:
    world = World(settings(window_size=8))
    for step in (0, 1):
        with pytest.raises(StepOutOfOrderError, match="not the last committed one"):
            world.begin_cut("a", step)
    world.train(1)
    with pytest.raises(InvalidFieldError):
        cutting.begin_cut(world.ledger, snapshot_id="", step=1)
    world.sample()
    with pytest.raises(StepOutOfOrderError, match="a step is open"):
        world.begin_cut("a")
    world.commit()
    world.new_trainer()
    world.begin_resume(2)
    with pytest.raises(StepOutOfOrderError, match="being resumed"):
        world.begin_cut("a")
    assert world.ledger.snapshot is None


def test_beginning_and_ending_a_snapshot_twice_changes_nothing() -> None:
    world = filled(4)
    world.begin_cut("a")
    position = world.ledger.position
    world.begin_cut("a")
    assert world.ledger.position == position
    end = {"committed": True, "oldest_step": 1, "error": ""}
    cutting.end_cut(world.ledger, snapshot_id="a", **end)  # type: ignore[arg-type]
    position = world.ledger.position
    cutting.end_cut(world.ledger, snapshot_id="a", **end)  # type: ignore[arg-type]
    cutting.end_cut(world.ledger, snapshot_id="b", **end)  # type: ignore[arg-type]
    assert world.ledger.position == position


def test_a_snapshot_gives_way_to_the_next_one() -> None:
    world = filled(4)
    world.begin_cut("a")
    world.begin_cut("b")
    with pytest.raises(SnapshotLostError):
        cutting.cut_of(world.ledger, "a")
    [lost] = [r.snapshot_ended for r in world.records() if r.snapshot_ended.snapshot_id == "a"]
    assert not lost.committed
    assert lost.error == "another snapshot has begun"
    assert cutting.cut_of(world.ledger, "b").step == 1


def new_store(world: World) -> None:
    rows.register_store(world.ledger, incarnation="s2", follows="s1", capacity_bytes=10**9)


def new_resume(world: World) -> None:
    world.begin_resume(1)


@pytest.mark.parametrize("who", [World.new_trainer, new_store, new_resume])
def test_a_snapshot_ends_by_itself_when_somebody_new_appears(who: Any) -> None:
    world = filled(4)
    world.begin_cut("a")
    who(world)
    with pytest.raises(SnapshotLostError):
        cutting.cut_of(world.ledger, "a")


def test_a_snapshot_that_failed_covers_nothing() -> None:
    world = World(settings(window_size=4))
    world.train(2)
    world.begin_cut("a")
    world.end_cut(committed=False, oldest_step=2)
    assert world.ledger.saved_step == 0
    assert world.ledger.groups.covered_step == 0
    assert all(world.ledger.groups[uid].payload for uid in world.uids(TRAINED))
    world.resume(0)
    assert world.uids(TRAINED) == set()
    world.fine()


def test_what_a_kept_checkpoint_covers_is_let_go_and_what_it_does_not_is_kept() -> None:
    world = World(settings(window_size=4, total_steps=100))
    for step in range(1, 31):
        world.train(1)
        if step % 5 == 0:
            world.save(oldest_step=max(5, step - 5))
    table = world.ledger.groups
    assert (world.ledger.saved_step, table.covered_step) == (30, 25)
    kept = {group.step for group in table if group.state == TRAINED and group.payload}
    assert kept == set(range(26, 31))
    world.restart()
    table = world.ledger.groups
    remembered = [group for group in table if group.state == TRAINED]
    assert {group.step for group in remembered} == set(range(26, 31))
    assert all(len(group.sessions) == 2 and group.payload for group in remembered)
    assert table.counts[TRAINED] == 120
    world.fine()
    world.resume(25)
    world.train(5)
    world.fine()


def test_what_is_kept_beyond_the_covered_is_the_same_after_a_restart() -> None:
    for compacted in (False, True):
        world = World(settings(window_size=4))
        world.train(3)
        world.save(oldest_step=2)
        world.train(3)
        world.restart(compacted=compacted)
        later = [group.uid for group in world.ledger.groups.trained_after(2)]
        assert later == [f"e0r{i}" for i in range(8, 24)]
        assert world.ledger.snapshot is None
        assert world.ledger.saved_step == 3


def test_an_open_step_that_cannot_be_filled_does_not_keep_the_end_from_being_saved() -> None:
    """The data has ended in the middle of a step: what it had sampled is in the cut."""
    rules = settings(window_size=0, saves=True, max_failures=1)
    world = World(rules, row_count=8)
    world.step()
    world.sample(part=0, part_count=2)
    world.feed()
    *good, bad = world.lease()
    world.complete(good)
    assert world.sample(part=0, part_count=2).status == replay_pb2.SAMPLE_STATUS_READY
    world.fail([bad])
    assert world.sample(part=1, part_count=2).status == replay_pb2.SAMPLE_STATUS_DATA_ENDED
    world.save()
    world.resume(1)
    assert world.ledger.open_step is None
    world.fine()


def test_a_late_call_does_not_begin_a_snapshot_again_that_has_ended() -> None:
    world = World(settings(saves=True))
    world.step()
    cutting.begin_cut(world.ledger, snapshot_id="a", step=1)
    cutting.end_cut(world.ledger, snapshot_id="a", committed=True, oldest_step=1, error="")

    with pytest.raises(SnapshotLostError):
        cutting.begin_cut(world.ledger, snapshot_id="a", step=1)
    assert world.ledger.snapshot is None


# -- what was given up


def test_a_snapshot_that_is_given_up_is_remembered_until_older_ones_are_not_kept() -> None:
    world = World(settings(window_size=8))
    world.train(1)
    world.begin_cut("a")
    world.end_cut(committed=False)
    world.train(1)
    world.begin_cut("b")
    world.new_trainer()
    assert world.ledger.given_up == {1: "a", 2: "b"}
    world.restart()
    assert world.ledger.given_up == {1: "a", 2: "b"}

    world.begin_cut("c")
    assert world.ledger.given_up == {1: "a"}, "its directory is made anew"
    world.end_cut(oldest_step=1)
    assert world.ledger.given_up == {1: "a"}
    world.train(1)
    world.save(oldest_step=2)
    assert world.ledger.given_up == {}


@pytest.mark.parametrize("by", ["store", "resume", "snapshot"])
def test_whatever_comes_between_gives_a_snapshot_up(by: str) -> None:
    world = World(settings(window_size=8))
    world.train(1)
    world.begin_cut("a")
    if by == "store":
        rows.register_store(world.ledger, incarnation="s2", follows="s1", capacity_bytes=10**9)
    elif by == "resume":
        world.begin_resume(0)
    else:
        world.train(1)
        world.begin_cut("b")
    assert world.ledger.given_up == {1: "a"}
