"""A feed whose length nobody knows until it ends, as the ledger sees it."""

from __future__ import annotations

import pytest
from ledger_world import World, settings

from headrace.errors import FeedNotOpenError, InvalidFieldError
from headrace.replay import feeding
from headrace.replay.audit import audit
from headrace.replay.base import from_base, to_base
from headrace.replay.events import name_of
from headrace.replay.feeding import UNKNOWN_LENGTH
from headrace.replay.group_events import HAND_FED_ORDINAL
from headrace.replay.ledger import Ledger
from headrace.v1 import feeder_pb2, journal_pb2, prompt_pb2, replay_pb2

READY = replay_pb2.SAMPLE_STATUS_READY
DATA_ENDED = replay_pb2.SAMPLE_STATUS_DATA_ENDED
TOO_LONG = prompt_pb2.DROP_REASON_TOO_LONG
USABLE = prompt_pb2.DROP_REASON_UNSPECIFIED


def stream(*, total_steps: int = 100, window_size: int = 12) -> World:
    return World(
        settings(total_steps=total_steps, window_size=window_size), row_count=UNKNOWN_LENGTH
    )


def end(world: World, ordinal_count: int) -> None:
    feeding.end_feed(world.ledger, world.settings, ordinal_count=ordinal_count)


def steps(world: World) -> int:
    return world.ledger.feed.total_steps


def run_out(world: World) -> World:
    """Train until there is nothing left, register the surplus, and look whether all is well."""
    while world.step().status == READY:
        pass
    left = feeding.surplus_count(world.ledger)
    if left:
        start = world.ledger.cursor
        prompts = [
            replay_pb2.NewPrompt(
                uid=world.uid(start + i), drop_reason=prompt_pb2.DROP_REASON_SURPLUS
            )
            for i in range(left)
        ]
        feeding.register_prompts(world.ledger, world.settings, first_ordinal=start, prompts=prompts)
    assert not audit(world.ledger, world.settings)
    assert not world.demand
    return world


def test_a_stream_claims_more_rows_than_come_and_fewer_than_the_ordinals_by_hand() -> None:
    world = stream(total_steps=3)

    assert steps(world) == 3
    assert world.demand == 12
    assert world.ledger.cursor + UNKNOWN_LENGTH < HAND_FED_ORDINAL


@pytest.mark.parametrize("when", [0, 3, 10, 12, 15, 16, 20])
def test_wherever_a_stream_ends_all_its_rows_are_accounted_for(when: int) -> None:
    world = stream()
    while world.ledger.cursor < when:
        world.sample()
        world.feed(min(world.demand, when - world.ledger.cursor))
        world.generate()
        if world.sample().status == READY and world.ledger.cursor < when:
            world.commit()
    end(world, when)
    run_out(world)

    assert world.ledger.ended_by
    assert world.ledger.committed_step == when // 4
    assert world.dropped() == ({"surplus": when % 4} if when % 4 else {})
    assert world.ledger.cursor == when


def test_the_end_can_be_told_before_the_last_rows_are_registered() -> None:
    world = stream()
    world.feed()
    end(world, 22)

    assert steps(world) == 5
    run_out(world)
    assert world.ledger.committed_step == 5
    assert world.dropped() == {"surplus": 2}


def test_the_last_steps_let_the_window_run_empty() -> None:
    world = stream()
    world.step()
    assert world.ledger.cursor == 16
    end(world, 18)
    assert world.sample().status == READY

    assert world.ledger.window(12).target == 8  # of 12: 4 are trained, 4 are sampled
    assert world.demand == 0


def test_the_steps_never_become_more_than_the_user_said() -> None:
    world = stream(total_steps=2)
    world.feed()
    end(world, 12)

    assert steps(world) == 2
    run_out(world)
    assert world.ledger.ended_by == "steps_done"


def test_the_end_is_told_once_and_only_ever_comes_nearer() -> None:
    world = stream()
    world.feed()
    end(world, 20)
    position = world.ledger.position
    end(world, 20)
    assert world.ledger.position == position

    for wrong in (11, 21):
        with pytest.raises(InvalidFieldError, match=r"must be 12 \(the cursor\) to 20"):
            end(world, wrong)
    end(world, 17)
    assert (world.ledger.feed.ordinal_count, steps(world)) == (17, 4)


def test_a_feed_that_is_not_open_cannot_end() -> None:
    ledger = Ledger(journal_pb2.RunOpened(run_id="r", lineage="l", n=1, train_batch_size=4))

    with pytest.raises(FeedNotOpenError):
        feeding.end_feed(ledger, settings(), ordinal_count=0)


def test_an_end_after_the_last_whole_step_ends_the_run_even_between_its_parts() -> None:
    world = stream(window_size=0)
    world.step()
    while world.sample(part=0, part_count=2).status != READY:
        world.feed(min(world.demand, 6 - world.ledger.cursor))
        world.generate()
    assert world.ledger.cursor == 6
    end(world, 6)

    assert world.ledger.ended_by == "data_ended"
    assert world.sample(part=1, part_count=2).status == DATA_ENDED
    assert world.dropped() == {"surplus": 2}
    assert not audit(world.ledger, world.settings)


def test_rows_by_hand_fill_steps_that_the_stream_left_short() -> None:
    world = stream()
    rows = [feeder_pb2.PromptPayload(text="x")] * 3
    feeding.register_rows(world.ledger, request_id="a", rows=rows)
    world.feed()
    end(world, 14)

    assert steps(world) == 4  # 14 + 3
    run_out(world)
    assert world.ledger.committed_step == 4
    assert world.dropped() == {"surplus": 1}


def test_a_stream_of_less_than_a_batch_trains_nothing_and_ends() -> None:
    world = stream()
    world.feed(3)
    end(world, 3)

    assert steps(world) == 1
    run_out(world)
    assert (world.ledger.ended_by, world.dropped()) == ("data_ended", {"surplus": 3})


def test_rows_that_are_too_long_are_no_step() -> None:
    world = stream()
    prompts = [
        replay_pb2.NewPrompt(uid=world.uid(i), drop_reason=TOO_LONG if i % 2 else USABLE)
        for i in range(12)
    ]
    feeding.register_prompts(world.ledger, world.settings, first_ordinal=0, prompts=prompts)
    end(world, 12)
    run_out(world)

    assert world.ledger.committed_step == 1
    assert world.dropped() == {"too_long": 6, "surplus": 2}


def test_opening_the_feed_again_after_its_end_says_where_it_ended() -> None:
    world = stream()
    world.feed()
    end(world, 14)
    position = world.ledger.position
    feeding.open_feed(world.ledger, world.settings, row_count=UNKNOWN_LENGTH, fingerprint="f")

    assert world.ledger.position == position
    assert world.ledger.feed.ordinal_count == 14


def register(world: World, first: int, count: int) -> int:
    return feeding.register_prompts(
        world.ledger,
        world.settings,
        first_ordinal=first,
        prompts=[replay_pb2.NewPrompt(uid=world.uid(first + i)) for i in range(count)],
        source_states=[f"after {first + i}" for i in range(count)],
    )


def test_the_state_that_is_kept_is_that_after_the_last_prompt_accepted() -> None:
    world = stream()
    assert register(world, 0, 5) == 5
    assert world.ledger.source_state == "after 4"
    assert register(world, 3, 4) == 4  # two of them are repeats
    assert world.ledger.source_state == "after 6"
    assert register(world, 2, 3) == 3  # all of them are
    assert world.ledger.source_state == "after 6"
    assert register(world, 7, 20) == 5  # more than is wanted
    assert world.ledger.source_state == "after 11"
    with pytest.raises(InvalidFieldError, match="one per prompt"):
        feeding.register_prompts(
            world.ledger,
            world.settings,
            first_ordinal=12,
            prompts=[replay_pb2.NewPrompt(uid="e0r12")],
            source_states=["a", "b"],
        )


def test_state_and_end_outlive_the_replay_buffer_by_journal_and_by_compaction() -> None:
    world = stream()
    register(world, 0, 12)
    end(world, 18)
    events = world.ledger.take_events()
    replayed = Ledger(events[0].run_opened)
    replayed.take_events()
    for record in events[1:]:
        replayed.apply(record)
    compacted = from_base(to_base(world.ledger, keep_settled=0))

    assert [name_of(record) for record in events].count("feed_opened") == 2
    for ledger in (replayed, compacted):
        assert ledger.source_state == "after 11"
        assert ledger.feed == world.ledger.feed
        assert (ledger.cursor, ledger.feed.total_steps) == (12, 4)
