"""The window rule, with the worked numbers of docs/architecture.md."""

from __future__ import annotations

import pytest
from ledger_world import World, settings

from headrace.errors import RunTooShortError
from headrace.replay import feeding
from headrace.replay.audit import audit
from headrace.v1 import prompt_pb2, replay_pb2

READY = replay_pb2.SAMPLE_STATUS_READY
WAITING = replay_pb2.SAMPLE_STATUS_WAITING
DATA_ENDED = replay_pb2.SAMPLE_STATUS_DATA_ENDED


def test_a_fresh_start_demands_the_window_then_each_steps_batch() -> None:
    world = World(settings())
    assert world.demand == 12
    world.feed()
    assert world.demand == 0

    assert world.sample().status == WAITING
    assert world.ledger.window(12).target == 16
    assert world.demand == 4

    world.feed()
    world.generate()
    assert world.sample().status == READY
    assert world.ledger.window(12).target == 12
    assert world.ledger.window(12).occupancy == 12
    assert world.demand == 0


def test_a_dropped_group_comes_back_as_demand_exactly_once() -> None:
    world = World(settings(max_failures=1))
    world.feed()
    [bad] = world.lease(1)
    world.fail([bad])
    world.generate(1)
    assert world.dropped() == {"failed": 1}
    assert world.demand == 1
    assert world.feed(5) == 1
    assert world.demand == 0


def test_stale_groups_leave_the_window_and_are_replaced() -> None:
    world = World(settings(window_size=8, threshold=2, basis="generated"))
    world.sample()
    world.feed()
    world.generate()
    for _ in range(2):
        assert world.sample().status == READY
        world.commit()
    # Eight groups were made by version 0; four of them were trained on in each step, and the
    # four that are left would be of span 3 in step 3.
    assert world.dropped() == {"stale": 4}
    assert world.demand == 8
    assert not audit(world.ledger, world.settings)


def test_an_over_full_window_is_kept_and_not_leased_from() -> None:
    world = World(settings(window_size=12))
    world.feed()
    world.settings = settings(window_size=4)
    assert world.demand == 0
    assert world.ledger.live_count == 12
    assert world.generate() == 4
    assert "window is full" in world.allowance().blocked_by


def test_twenty_two_rows_give_five_steps_of_four_and_two_surplus() -> None:
    world = World(settings(), row_count=22)
    assert world.ledger.feed.total_steps == 5
    for _ in range(5):
        assert world.step().status == READY
    assert world.sample(6).status == DATA_ENDED
    assert world.ledger.ended_by == "steps_done"
    left = feeding.surplus_count(world.ledger)
    assert left == 2
    surplus = [
        replay_pb2.NewPrompt(uid=world.uid(20 + i), drop_reason=prompt_pb2.DROP_REASON_SURPLUS)
        for i in range(left)
    ]
    accepted = feeding.register_prompts(
        world.ledger, world.settings, first_ordinal=20, prompts=surplus
    )
    assert accepted == 2
    assert world.dropped() == {"surplus": 2}
    assert world.ledger.cursor == 22
    assert not audit(world.ledger, world.settings)


def test_in_the_last_steps_the_window_runs_empty() -> None:
    world = World(settings(total_steps=5))
    world.feed()
    live = []
    for _ in range(5):
        world.step()
        world.feed()
        live.append(world.ledger.live_count)
    assert live == [12, 12, 8, 4, 0]
    assert world.ledger.cursor == 20


def test_the_data_ends_when_drops_leave_less_than_a_batch() -> None:
    world = World(settings(window_size=4, max_failures=1), row_count=9)
    assert world.ledger.feed.total_steps == 2
    world.feed()
    world.fail(world.lease(2))
    assert world.step().status == READY
    assert world.dropped() == {"failed": 2}
    assert world.step().status == DATA_ENDED
    assert world.ledger.ended_by == "data_ended"
    assert world.dropped() == {"failed": 2, "surplus": 3}
    assert world.ledger.cursor == 9
    assert not audit(world.ledger, world.settings)


@pytest.mark.parametrize("kind", ["feed", "refill"])
def test_credit_is_fed_once_per_request_id(kind: str) -> None:
    world = World(settings())
    world.feed()
    for _ in range(2):
        answer = feeding.add_credit(world.ledger, count=3, request_id="a", kind=kind)
        assert answer == 3
    assert world.demand == 3
    assert world.feed(5) == 3
    assert world.demand == 0
    assert world.ledger.credit == 0
    feeding.add_credit(world.ledger, count=2, request_id="b", kind=kind)
    assert world.demand == 2, "a second wish counts while the first still overfills the window"


def test_at_most_the_demand_is_accepted_and_repeats_are_ignored() -> None:
    world = World(settings(window_size=3))
    prompts = [replay_pb2.NewPrompt(uid=world.uid(i)) for i in range(5)]
    for _ in range(2):
        accepted = feeding.register_prompts(
            world.ledger, world.settings, first_ordinal=0, prompts=prompts
        )
        assert accepted == 3
        assert world.ledger.cursor == 3


def test_rows_that_are_too_long_keep_their_ordinal_and_serve_no_demand() -> None:
    world = World(settings(window_size=2))
    too_long = prompt_pb2.DROP_REASON_TOO_LONG
    reasons = [too_long, 0, too_long, too_long, 0, too_long, 0]
    prompts = [
        replay_pb2.NewPrompt(uid=world.uid(i), drop_reason=prompt_pb2.DropReason.ValueType(reason))
        for i, reason in enumerate(reasons)
    ]
    accepted = feeding.register_prompts(
        world.ledger, world.settings, first_ordinal=0, prompts=prompts
    )
    assert accepted == 6
    assert world.dropped() == {"too_long": 4}
    assert world.ledger.live_count == 2


def test_the_same_data_for_more_steps_makes_the_run_longer_and_never_shorter_than_it_is() -> None:
    world = World(settings(total_steps=3, window_size=0), row_count=40)
    world.step()
    longer = settings(total_steps=5, window_size=0)

    feeding.open_feed(world.ledger, longer, row_count=40, fingerprint="f")
    assert world.ledger.feed.total_steps == 5
    position = world.ledger.position
    feeding.open_feed(world.ledger, longer, row_count=40, fingerprint="f")
    assert world.ledger.position == position

    world.settings = longer
    world.step()
    with pytest.raises(
        RunTooShortError,
        match=r"total_training_steps: 1 is fewer than the 2 steps .* give 2 or more",
    ):
        feeding.open_feed(
            world.ledger, settings(total_steps=1, window_size=0), row_count=40, fingerprint="f"
        )
