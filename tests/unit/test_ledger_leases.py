"""Leases: the gates, the fencing token, sessions one by one, and failures."""

from __future__ import annotations

import pytest
from ledger_world import LINEAGE, World, settings

from headrace.errors import (
    InvalidFieldError,
    PromptInUseError,
    PromptUnknownError,
    StoreFencedError,
    WeightsUnknownError,
)
from headrace.replay import dropping, leasing, rows
from headrace.replay.audit import audit
from headrace.replay.group import FAILED, FINISHED, PENDING, RUNNING
from headrace.v1 import prompt_pb2, replay_pb2

HELD, LOST, DONE = leasing.HELD, leasing.LOST, leasing.DONE


def test_a_late_worker_cannot_complete_a_prompt_that_was_offered_again() -> None:
    world = World(settings())
    world.feed()
    [first] = world.lease(1, worker="a")
    world.expire([first])
    [second] = world.lease(1, worker="b")

    assert (second.uid, second.attempt) == (first.uid, first.attempt + 1)
    assert world.complete([first], worker="a") == [LOST, LOST]
    assert world.complete([second], worker="a", sessions=[0]) == [LOST]
    assert world.ledger.groups[first.uid].sessions == {}
    assert world.complete([second], worker="b") == [DONE, DONE]


def test_a_repeated_completion_answers_as_the_first_time_and_changes_nothing() -> None:
    world = World(settings())
    world.feed()
    [ref] = world.lease(1)
    assert world.complete([ref], sessions=[0]) == [HELD]
    position = world.ledger.position
    assert world.complete([ref], sessions=[0]) == [HELD]
    assert world.ledger.position == position
    assert world.complete([ref], sessions=[1]) == [DONE]
    assert world.complete([ref], sessions=[0, 1]) == [DONE, DONE]
    assert world.ledger.position == position + 1


def test_a_reissued_group_keeps_its_finished_sessions() -> None:
    world = World(settings(n=4))
    world.feed()
    [ref] = world.lease(1)
    world.complete([ref], sessions=[1, 3])
    world.expire([ref])
    [again] = world.lease(1)

    group = world.ledger.groups[again.uid]
    assert group.missing(4) == [0, 2]
    assert world.complete([again]) == [DONE, DONE]
    assert {s: r.attempt for s, r in group.sessions.items()} == {0: 2, 1: 1, 2: 2, 3: 1}


def test_leases_ending_twice_change_nothing_the_second_time() -> None:
    world = World(settings())
    world.feed()
    [ref] = world.lease(1)
    assert world.hand_back([ref]) == [DONE]
    position = world.ledger.position
    assert world.hand_back([ref]) == [LOST]
    assert world.ledger.position == position


def test_only_published_weights_with_the_right_checksum_may_lease() -> None:
    world = World(settings())
    good = prompt_pb2.WeightsId(lineage=LINEAGE, version=0)
    leasing.check_weights(world.ledger, good, "c0")
    for weights, checksum in [
        (good, "c1"),
        (prompt_pb2.WeightsId(lineage=LINEAGE, version=1), "c1"),
        (prompt_pb2.WeightsId(lineage="other", version=0), "c0"),
    ]:
        with pytest.raises(WeightsUnknownError):
            leasing.check_weights(world.ledger, weights, checksum)


def test_without_slack_only_the_newest_weights_may_generate() -> None:
    world = World(settings(window_size=0, threshold=1))
    assert world.sample().status == replay_pb2.SAMPLE_STATUS_WAITING
    world.feed()
    assert world.generate() == 4
    world.sample()
    world.commit()
    world.sample()
    world.feed()
    # Version 1 is out; a worker that still loads it has version 0.
    assert world.lease(version=0) == []
    assert "too old" in world.allowance(version=0).blocked_by
    assert world.generate() == 4
    assert world.dropped() == {}


def test_sync_takes_exactly_the_weights_of_the_step_before() -> None:
    world = World(settings(window_size=0, threshold=8, sync=True))
    world.step()
    world.sample()
    world.feed()
    assert world.lease(version=0) == []
    assert len(world.lease(version=1)) == 4


def test_the_room_gate_reserves_the_longest_trajectory_for_every_session() -> None:
    world = World(settings(max_trajectory_bytes=100), capacity_bytes=700)
    world.feed()
    refs = world.lease()
    assert len(refs) == 3
    assert "no room" in world.allowance().blocked_by
    world.complete(refs[:2], size_bytes=30)
    # 120 bytes held, 200 reserved: 380 of 700 are free.
    assert len(world.lease()) == 1
    world.hand_back(refs[2:])
    assert len(world.lease()) == 1


def test_a_new_life_of_the_store_sends_its_groups_back_to_be_generated() -> None:
    world = World(settings())
    world.feed()
    finished, half, fresh = world.lease(3)
    world.complete([finished])
    world.complete([half], sessions=[0])

    lost = rows.register_store(world.ledger, incarnation="s2", follows="s1", capacity_bytes=10**9)
    assert lost == 2
    states = [world.ledger.groups[ref.uid].state for ref in (finished, half, fresh)]
    assert states == [PENDING, PENDING, RUNNING]
    assert world.complete([fresh], store="s1") == [leasing.STORE_CHANGED] * 2
    assert world.complete([fresh], store="s2") == [DONE, DONE]
    lost = rows.register_store(world.ledger, incarnation="s2", follows="s1", capacity_bytes=10**9)
    assert lost == 0


@pytest.mark.parametrize("compacted", [False, True])
def test_a_life_of_the_store_that_is_over_changes_nothing_any_more(compacted: bool) -> None:
    world = World(settings())
    world.feed()
    rows.register_store(world.ledger, incarnation="s3", follows="s1", capacity_bytes=10**9)
    world.complete(world.lease(2), store="s3")
    world.restart(compacted=compacted)
    before = world.ledger.position

    for late, follows in (("s1", ""), ("s2", "s1")):  # The second died before it was heard.
        with pytest.raises(StoreFencedError, match=f"in life s3: {late}"):
            rows.register_store(
                world.ledger, incarnation=late, follows=follows, capacity_bytes=10**9
            )

    assert (world.ledger.position, world.ledger.store_incarnation) == (before, "s3")
    assert len(world.ledger.groups.finished) == 2


def test_a_store_follows_one_whose_word_came_after_its_death() -> None:
    world = World(settings())
    rows.register_store(world.ledger, incarnation="dead", follows="s1", capacity_bytes=10**9)
    with pytest.raises(StoreFencedError, match="in life dead: s3, which follows s1"):
        rows.register_store(world.ledger, incarnation="s3", follows="s1", capacity_bytes=10**9)

    rows.register_store(world.ledger, incarnation="s3", follows="dead", capacity_bytes=10**9)

    assert world.ledger.store_incarnation == "s3"


def test_dead_rows_are_those_that_nobody_can_ask_for_again() -> None:
    world = World(settings())
    world.feed()
    [ref] = world.lease(1)
    key = f"{ref.uid}_{{}}_0_{LINEAGE}a{{}}"
    assert rows.find_dead(world.ledger, [key.format(0, 1)]) == []
    assert rows.find_dead(world.ledger, [key.format(0, 2), "nonsense"]) == [
        key.format(0, 2),
        "nonsense",
    ]
    world.complete([ref], sessions=[0])
    world.expire([ref])
    world.lease(1)
    assert rows.find_dead(world.ledger, [key.format(0, 1), key.format(1, 1)]) == [key.format(1, 1)]
    assert rows.find_dead(world.ledger, [key.format(0, 2), key.format(1, 2)]) == [key.format(0, 2)]


def test_a_prompt_that_always_fails_is_dropped_once_others_succeed() -> None:
    world = World(settings(max_failures=2, window_size=2))
    world.feed()
    other, bad = world.lease()
    for _ in range(2):
        world.fail([bad])
        bad = next(iter(world.lease(1)), bad)
    assert world.ledger.groups[bad.uid].state == FAILED
    assert world.dropped() == {}
    world.complete([other])
    assert world.dropped() == {"failed": 1}


def test_when_all_workers_fail_the_circuit_opens_and_no_prompt_is_lost() -> None:
    world = World(settings(max_failures=1, eject_after=3))
    world.feed()
    workers = ["a", "b"]
    for _ in range(40):
        for worker in workers:
            refs = world.lease(2, worker=worker)
            world.fail(refs, worker=worker, live_workers=workers)
    assert world.ledger.circuit.is_open
    assert world.dropped() == {}
    assert world.ledger.cursor == 12
    for _ in range(40):
        world.sample()
        world.feed()
        for worker in workers:
            refs = world.lease(worker=worker)
            assert len(refs) <= 1
            world.fail(refs, worker=worker, live_workers=workers)
    assert world.ledger.cursor == 12 + 3, "feeding stops, but for a few to probe with"
    assert world.demand == 0

    probe = world.lease(5, worker="a")
    assert len(probe) == 1
    assert world.lease(5, worker="a") == []
    world.complete(probe, worker="a")
    assert not world.ledger.circuit.is_open
    assert world.dropped() == {}
    assert world.ledger.groups.failed == {}
    assert len(world.lease(worker="a")) == 14
    assert not audit(world.ledger, world.settings)


def test_prompts_are_not_blamed_for_the_failures_of_an_ejected_worker() -> None:
    world = World(settings(max_failures=2, eject_after=2))
    world.feed()
    bad = world.lease(3, worker="bad")
    world.fail(bad, worker="bad", live_workers=["bad", "good"])
    assert not world.ledger.circuit.is_open
    assert [group.failures for group in world.groups(bad)] == [0, 0, 0]
    assert len(world.lease(5, worker="bad")) == 1
    world.complete(world.lease(worker="good"), worker="good")
    assert world.dropped() == {}


def test_a_worker_is_ejected_for_prompts_that_are_long_forgotten() -> None:
    world = World(settings(eject_after=3))
    world.feed()
    world.fail(world.lease(1, worker="bad"), worker="bad", live_workers=["bad", "good"])
    for _ in range(4):
        world.step()
    world.ledger.groups.forget_settled(0)
    world.sample()
    world.feed()
    world.fail(world.lease(2, worker="bad"), worker="bad", live_workers=["bad", "good"])
    assert world.ledger.circuit.ejected == {"bad"}
    assert world.ledger.take_events()[-1].position == world.ledger.position


def test_prompts_that_nobody_can_do_do_not_keep_the_circuit_open() -> None:
    world = World(settings(eject_after=3, max_failures=3))
    world.feed()
    poison = {world.uid(ordinal) for ordinal in range(3)}
    for _ in range(60):
        for ref in world.lease(1):
            if ref.uid in poison:
                world.fail([ref], live_workers=["w"])
            else:
                world.complete([ref])
    assert world.ledger.groups.counts[FINISHED] == 9


def test_an_open_circuit_lets_in_one_prompt_if_nothing_is_left_to_probe_with() -> None:
    rules = settings(n=1, batch_size=2, window_size=4, threshold=1, eject_after=1)
    world = World(rules)
    world.feed()
    world.complete(world.lease(2))
    world.fail(world.lease(2), live_workers=["w"])
    probes = world.lease(worker="w") + world.lease(worker="v")
    assert world.ledger.circuit.is_open
    assert len(probes) == 2
    world.sample()
    assert world.demand == 0, "while there are probes"
    world.commit()
    assert world.dropped() == {"stale": 2}
    assert world.demand == 1
    world.feed()
    assert world.demand == 0
    world.complete(world.lease())
    assert not world.ledger.circuit.is_open
    assert world.demand == 3


def test_a_storm_of_expiries_fails_no_prompt_but_a_worker_killer_is_dropped() -> None:
    world = World(settings(max_failures=1, max_expiries=5, window_size=1))
    world.feed()
    uid = world.uid(0)
    for _ in range(4):
        world.expire(world.lease(1))
    assert world.ledger.groups[uid].state == PENDING
    world.expire(world.lease(1))
    assert world.dropped() == {"failed": 1}


def test_the_group_filter_drops_equal_rewards_and_its_budget_opens_the_circuit() -> None:
    world = World(settings(filter_groups=True, max_filtered_groups=3))
    world.feed()
    refs = world.lease(3)
    world.complete(refs[:1])
    assert world.ledger.groups[refs[0].uid].state == FINISHED
    world.complete(refs[1:], reward=lambda _: 1.0)
    assert world.dropped() == {"filtered": 2}
    assert world.demand == 2
    world.complete(world.lease(1), reward=lambda _: 0.0)
    assert world.ledger.circuit.is_open
    assert world.demand == 0
    assert world.lease() == []
    assert "nothing is leased until `headrace circuit close`" in world.sample().blocked_by


def test_ends_that_are_not_the_workers_to_say_are_refused() -> None:
    world = World(settings())
    world.feed()
    refs = world.lease(1)
    with pytest.raises(InvalidFieldError):
        world.end(refs, replay_pb2.LEASE_END_EXPIRED, "w", ())


def test_prompts_that_failed_go_behind_the_others() -> None:
    world = World(settings())
    world.feed()
    [first] = world.lease(1)
    world.fail([first])
    [second] = world.lease(1)
    assert second.uid != first.uid


def test_prompts_that_nobody_can_do_are_dropped_however_many_there_are() -> None:
    world = World(settings(max_failures=3, eject_after=3), row_count=400)
    for _ in range(3000):
        if world.sample().status == replay_pb2.SAMPLE_STATUS_READY:
            world.commit()
        world.feed()
        for ref in world.lease():
            if world.ledger.groups[ref.uid].ordinal % 6 == 3:
                world.fail([ref], live_workers=["w"])
            else:
                world.complete([ref])
        if world.ledger.committed_step >= 40:
            break
    assert world.ledger.committed_step == 40
    assert world.dropped()["failed"] > 10
    assert all(
        group.ordinal % 6 == 3
        for group in world.ledger.groups
        if group.drop_reason == prompt_pb2.DROP_REASON_FAILED
    )


def test_prompts_are_dropped_by_name_all_or_none() -> None:
    world = World(settings(n=1))
    world.feed()
    world.complete(world.lease(1))
    [running] = world.lease(1)
    finished, pending = world.uid(0), world.uid(2)

    with pytest.raises(PromptInUseError, match=f"{finished} is finished: only what is pending"):
        dropping.drop_named(world.ledger, [pending, finished])
    with pytest.raises(PromptUnknownError, match="no prompt 'e9r9' was fed"):
        dropping.drop_named(world.ledger, [pending, "e9r9"])
    with pytest.raises(InvalidFieldError):
        dropping.drop_named(world.ledger, [])
    assert world.dropped() == {}

    named = [running.uid, pending, pending]
    assert dropping.drop_named(world.ledger, named) == [running.uid, pending]
    position = world.ledger.position
    assert dropping.drop_named(world.ledger, named) == []
    assert world.ledger.position == position
    assert world.dropped() == {"cancelled": 2}
    assert world.complete([running], sessions=[0]) == [leasing.LOST]
    assert world.demand == 2, "others take their place"
    world.feed()
    world.generate()
    world.step()
    with pytest.raises(PromptInUseError, match=f"{finished} is trained"):
        dropping.drop_named(world.ledger, [finished])
    assert not audit(world.ledger, world.settings)


def test_a_run_that_waits_for_prompts_that_nobody_can_do_ends_when_they_are_dropped() -> None:
    world = World(settings(max_failures=1, eject_after=3), row_count=12)
    world.feed()
    world.complete(world.lease(5))
    world.sample()
    world.commit()
    for _ in range(30):
        world.fail(world.lease(), live_workers=["w"])
    waiting = world.sample()
    assert waiting.status == replay_pb2.SAMPLE_STATUS_WAITING
    assert "`headrace circuit close`" in waiting.blocked_by
    assert "`headrace drop UID`" in waiting.blocked_by

    bad = [group.uid for group in world.ledger.groups.live() if group.state != FINISHED]
    assert len(bad) == 7
    assert dropping.drop_named(world.ledger, bad) == bad

    assert world.sample().status == replay_pb2.SAMPLE_STATUS_DATA_ENDED
    assert world.dropped() == {"cancelled": 7, "surplus": 1}
    assert not audit(world.ledger, world.settings)


def test_a_circuit_with_its_last_probes_dropped_lets_in_others() -> None:
    world = World(settings(max_failures=1, eject_after=3, window_size=4))
    for _ in range(30):
        world.feed()
        world.fail(world.lease(), live_workers=["w"])
    assert (world.ledger.cursor, world.demand) == (4 + 3, 0)
    dropping.drop_named(world.ledger, [group.uid for group in world.ledger.groups.live()])
    assert world.demand == 1
    world.feed()
    world.complete(world.lease())
    assert not world.ledger.circuit.is_open
    assert world.demand == 3


def test_what_an_outage_failed_is_probed_again_where_the_last_one_left_is_hopeless() -> None:
    world = World(settings(max_failures=1, eject_after=3, window_size=4))
    for _ in range(30):
        world.feed()
        world.fail(world.lease(), live_workers=["w"])
    for _ in range(4):
        for ref in world.lease():
            if ref.uid == world.uid(6):
                world.fail([ref], live_workers=["w"])
            else:
                world.complete([ref])
    assert not world.ledger.circuit.is_open
    assert world.dropped() == {}
    assert not audit(world.ledger, world.settings)


def test_at_the_end_of_the_data_an_open_circuit_goes_on_probing() -> None:
    world = World(settings(max_failures=1, eject_after=3), row_count=12)
    world.feed()
    world.sample()
    for _ in range(60):
        world.fail(world.lease(), live_workers=["w"])
    assert world.ledger.circuit.is_open
    assert "circuit is open: boom" in world.sample().blocked_by
    world.complete(world.lease())
    assert not world.ledger.circuit.is_open
    assert world.dropped() == {}
