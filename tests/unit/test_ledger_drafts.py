"""Responses under way: what is kept, for how long, and who goes on with it."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_drafts import kept, piece, report, running
from ledger_world import World, settings

from headrace.errors import InvalidFieldError
from headrace.replay import rows
from headrace.replay.dropping import drop_stale
from headrace.replay.events import to_ledger_event, uids_of
from headrace.replay.group import FINISHED, PENDING


def begun(**rules: Any) -> World:
    """A world in step 3, with weights of versions 0 to 2."""
    world = World(settings(**{"window_size": 4, "threshold": 3} | rules))
    world.train(2)
    world.sample()
    world.feed()
    return world


def test_what_was_reported_goes_with_the_next_lease_of_the_group() -> None:
    world = begun()
    [ref] = running(world)

    assert report(
        world, ref, piece(world, ref.uid, 0, 0, (2, 5)), piece(world, ref.uid, 1, 0, (2, 3))
    ) == [5, 3]
    assert report(world, ref, piece(world, ref.uid, 0, 5, (2, 2))) == [7]
    world.complete([ref], sessions=[1])
    world.expire([ref])

    assert world.ledger.groups[ref.uid].state == PENDING
    [again] = world.lease(1)
    assert (again.uid, again.attempt) == (ref.uid, 2)
    assert kept(world, ref.uid) == {0: [(2, 0, 7)]}
    world.fine()


def test_a_report_that_is_repeated_or_overlaps_changes_nothing_twice() -> None:
    world = begun()
    [ref] = running(world)
    first = piece(world, ref.uid, 0, 0, (2, 5))
    assert report(world, ref, first) == [5]
    position = world.ledger.position

    assert report(world, ref, first) == [5]
    assert report(world, ref, piece(world, ref.uid, 0, 1, (2, 2))) == [5]
    assert report(world, ref, piece(world, ref.uid, 0, 6, (2, 2))) == [5], "a token is missing"
    assert world.ledger.position == position
    assert report(world, ref, piece(world, ref.uid, 0, 3, (2, 4))) == [7]
    twice = piece(world, ref.uid, 0, 7, (2, 2))
    assert report(world, ref, twice, twice) == [9, 9]

    assert kept(world, ref.uid) == {0: [(2, 0, 9)]}
    assert world.ledger.groups.draft_token_count == 9
    world.fine()


def test_only_the_holder_of_the_lease_is_heard_and_only_on_its_time_line() -> None:
    world = begun()
    [ref] = running(world)
    news = piece(world, ref.uid, 0, 0, (2, 5))
    position = world.ledger.position

    assert report(world, ref, news, worker="other") == [0]
    assert report(world, ref, news, lineage="elsewhere") == [0]
    world.expire([ref])
    world.lease(1)
    assert report(world, ref, news) == [0]

    assert world.ledger.position == position + 2
    assert world.ledger.groups[ref.uid].drafts == {}


@pytest.mark.parametrize("fault", ["session", "logprobs", "hole", "end", "offset"])
def test_a_draft_that_does_not_say_all_of_each_token_is_refused(fault: str) -> None:
    world = begun()
    [ref] = running(world)
    bad = piece(world, ref.uid, 0, 0, (1, 2), (2, 3))
    if fault == "session":
        bad.session = 2
    elif fault == "logprobs":
        bad.logprobs.pop()
    elif fault == "hole":
        bad.weight_spans[1].begin = 3
    elif fault == "end":
        bad.weight_spans[1].end = 4
    else:
        bad.offset = -1

    with pytest.raises(InvalidFieldError, match="malformed"):
        report(world, ref, bad)


def test_tokens_by_weights_that_the_time_line_does_not_know_are_not_kept() -> None:
    world = begun()
    [ref] = running(world)

    assert report(world, ref, piece(world, ref.uid, 0, 0, (2, 3), (7, 3))) == [3]
    assert report(world, ref, piece(world, ref.uid, 1, 0, (2, 3), lineage="dead")) == [0]
    assert report(world, ref, piece(world, ref.uid, 1, 0, (1, 3))) == [0], "before the lease's"

    assert kept(world, ref.uid) == {0: [(2, 0, 3)]}
    world.fine()


def test_a_response_of_the_full_length_is_no_draft() -> None:
    world = begun(max_response_length=6)
    [ref] = running(world)

    assert report(world, ref, piece(world, ref.uid, 0, 0, (2, 6))) == [5]
    world.expire([ref])
    world.settings = settings(window_size=4, threshold=3, max_response_length=5)
    world.lease(1)

    assert kept(world, ref.uid) == {}, "of another length than now it cannot be gone on with"


def test_drafts_end_with_their_session_their_group_and_a_failure() -> None:
    world = begun(max_failures=5)
    done, failed, returned, dropped = running(world, 4)
    for ref in (done, failed, returned, dropped):
        report(world, ref, piece(world, ref.uid, 0, 0, (2, 5)), piece(world, ref.uid, 1, 0, (2, 1)))

    world.complete([done])
    world.fail([failed])
    world.hand_back([returned])
    for _ in range(3):
        world.ledger.committed_step += 1  # four steps later it is too old
    drop_stale(world.ledger, world.settings, world.ledger.current_step)

    assert world.ledger.groups[done.uid].state != PENDING
    for ref in (done, failed, dropped):
        assert world.ledger.groups[ref.uid].drafts == {}
    assert kept(world, returned.uid) == {0: [(2, 0, 5)], 1: [(2, 0, 1)]}
    assert world.ledger.groups.draft_token_count == 6


def one_left(**rules: Any) -> tuple[World, Any]:
    """A world in step 4 whose only PENDING group has a draft by version 2."""
    world = begun(**rules)
    *others, ref = running(world, 4)
    world.complete(others)
    report(world, ref, piece(world, ref.uid, 0, 0, (2, 5)))
    world.expire([ref])
    world.commit()
    assert world.uids(PENDING) == {ref.uid}
    return world, ref


def test_a_group_that_is_gone_on_with_is_as_old_as_its_oldest_token() -> None:
    world, ref = one_left()
    group = world.ledger.groups[ref.uid]
    assert group.base == 0, "the prompt itself has not aged"

    [again] = world.lease(version=3)
    assert group.base == 3
    assert report(world, again, piece(world, ref.uid, 0, 5, (3, 4))) == [9]
    world.complete([again], version=3, sessions=[1])
    world.expire([again])
    assert group.base == 4, "of what is recorded"
    [again] = world.lease(version=3)
    assert group.base == 3
    world.complete([again], version=(2, 3))
    assert (group.state, group.base) == (FINISHED, 3)
    world.fine()


def test_a_draft_past_the_threshold_is_dropped_when_its_group_is_leased() -> None:
    world, ref = one_left(threshold=3)
    expected: dict[int, Any] = {3: {0: [(2, 0, 5)]}, 1: {}}
    for threshold, left in expected.items():
        world.settings = settings(window_size=4, threshold=threshold)
        drop_stale(world.ledger, world.settings, 4)  # as a new life does
        [again] = world.lease()
        assert kept(world, ref.uid) == left
        assert world.ledger.groups[ref.uid].base == (3 if left else 4)
        world.fine()
        world.expire([again])

    [dropped] = [r.drafts_dropped for r in world.records() if r.HasField("drafts_dropped")]
    assert (dropped.reason, list(dropped.uids), dropped.step) == ("stale", [ref.uid], 4)


@pytest.mark.parametrize("sync", [False, True])
def test_in_sync_mode_only_what_the_steps_own_weights_have_made_is_gone_on_with(sync: bool) -> None:
    world, ref = one_left()
    world.settings = settings(window_size=4, threshold=3, sync=sync)
    world.lease(version=3)

    assert kept(world, ref.uid) == ({} if sync else {0: [(2, 0, 5)]})
    world.fine()


def test_what_there_is_no_room_for_is_not_kept() -> None:
    world = begun(max_draft_bytes=8 * 10)
    first, second = running(world, 2)

    assert report(world, first, piece(world, first.uid, 0, 0, (2, 7))) == [7]
    assert report(world, second, piece(world, second.uid, 0, 0, (2, 7))) == [3]
    assert report(world, first, piece(world, first.uid, 1, 0, (2, 7))) == [0]
    world.complete([first])
    assert report(world, second, piece(world, second.uid, 0, 3, (2, 4))) == [7]
    world.fine()


def test_what_does_not_fit_into_a_lease_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    world = begun(max_response_length=2000)
    refs = running(world, 2)
    for ref in refs:
        for session in (0, 1):
            report(world, ref, piece(world, ref.uid, session, 0, (2, 1000)))
    world.expire(refs)
    monkeypatch.setattr("headrace.replay.leasing.MAX_PAYLOAD_BYTES", 10_000)

    [first] = world.lease(2)
    assert list(kept(world, first.uid)) == [0], "two do not fit"
    [second] = world.lease(2)
    assert list(kept(world, second.uid)) == [0]
    reasons = [r.drafts_dropped.reason for r in world.records() if r.HasField("drafts_dropped")]
    assert reasons == ["too_large", "too_large"]
    world.fine()


# -- time lines and lives


def spread(**rules: Any) -> tuple[World, Any]:
    """A group whose first session is by versions 1 and 2, the second by 2 alone."""
    world = World(settings(window_size=4, threshold=5, **rules))
    world.train(1)
    world.save()
    world.sample()
    world.feed()
    refs = world.lease()
    ref = refs[-1]
    report(world, ref, piece(world, ref.uid, 0, 0, (1, 3)))
    world.complete(refs[:-1])
    world.sample()
    world.commit()
    assert report(
        world, ref, piece(world, ref.uid, 0, 3, (2, 4)), piece(world, ref.uid, 1, 0, (2, 2))
    ) == [7, 2]
    return world, ref


@pytest.mark.parametrize(
    ("step", "left"), [(2, {0: [(1, 0, 3), (2, 3, 7)], 1: [(2, 0, 2)]}), (1, {0: [(1, 0, 3)]})]
)
def test_a_rollback_leaves_of_a_draft_what_the_line_that_goes_on_has_made(
    step: int, left: Any
) -> None:
    world, ref = spread()
    world.resume(step)

    assert kept(world, ref.uid) == left
    world.settings = settings(window_size=12, threshold=5)
    again = [each for each in world.lease() if each.uid == ref.uid]
    assert world.ledger.groups[ref.uid].base == 2
    news = piece(world, ref.uid, 0, left[0][-1][2], (step, 2))
    assert report(world, again[0], news, lineage="l0") == [0], "a lease of the line that was left"
    assert report(world, again[0], news) == [left[0][-1][2] + 2]
    world.fine()


def test_a_rollback_that_keeps_nothing_keeps_no_drafts() -> None:
    world, ref = spread()
    world.resume(2, salvage=False)

    assert kept(world, ref.uid) == {}
    assert world.ledger.groups.draft_token_count == 0
    world.fine()


def test_drafts_are_in_the_journal_and_in_what_compaction_keeps() -> None:
    world, ref = spread()
    before = kept(world, ref.uid)
    for compacted in (False, True):
        world.restart(compacted=compacted)
        assert kept(world, ref.uid) == before
        assert world.ledger.groups.draft_token_count == 9
        world.fine()
    assert report(world, ref, piece(world, ref.uid, 0, 7, (2, 1))) == [8]


def test_a_lost_journal_is_restored_with_the_drafts_of_the_checkpoint() -> None:
    world, ref = spread()
    world.step()
    base = world.save()
    lost = World(world.settings, publishes=False, store="s2", trainer=11)
    lost.begin_resume(3)
    lost.to_weights(restore=base)

    assert kept(lost, ref.uid) == {0: [(1, 0, 3), (2, 3, 7)], 1: [(2, 0, 2)]}
    lost.warm_up()
    lost.fine()


def test_a_checkpoint_that_has_the_session_ends_what_was_begun_anew_of_it() -> None:
    world = World(settings(window_size=8))
    world.sample()
    world.feed()
    world.complete(world.lease(4))
    world.sample()
    world.commit()
    [ref] = world.lease(1)
    world.complete([ref], sessions=[0])
    base = world.save()
    world.expire([ref])
    rows.register_store(world.ledger, incarnation="s2", follows="s1", capacity_bytes=10**9)
    [again] = [each for each in world.lease() if each.uid == ref.uid]
    report(world, again, piece(world, ref.uid, 0, 0, (1, 3)), piece(world, ref.uid, 1, 0, (1, 2)))

    world.open_line(1, store="s3", cut=base)

    assert set(world.ledger.groups[ref.uid].sessions) == {0}
    assert kept(world, ref.uid) == {1: [(1, 0, 2)]}
    world.warm_up()
    world.fine()


def test_drafts_outlive_the_store_that_lost_its_rows() -> None:
    world, ref = spread()
    world.complete([ref], sessions=[1])
    rows.register_store(world.ledger, incarnation="s2", follows="s1", capacity_bytes=10**9)

    assert world.ledger.groups[ref.uid].state == PENDING
    assert kept(world, ref.uid) == {0: [(1, 0, 3), (2, 3, 7)]}
    world.fine()


# -- sessions by several versions


def test_a_group_is_as_old_as_its_oldest_token_and_kept_by_its_newest() -> None:
    world = World(settings(window_size=8, threshold=4))
    world.train(2)
    world.save()
    world.sample()
    world.feed()
    old, new, *rest = world.lease()
    world.complete(rest)
    world.sample()
    world.commit()
    world.complete([old], version=(2, 2))
    world.complete([new], version=(2, 3))

    assert [world.ledger.groups[ref.uid].base for ref in (old, new)] == [3, 3]
    world.resume(2)
    assert world.ledger.groups[old.uid].state == FINISHED
    assert world.ledger.groups[new.uid].state == PENDING, "its newest token is of the dead line"
    world.fine()


def test_tools_see_where_sessions_were_and_no_tokens() -> None:
    world = begun()
    [ref] = running(world)
    report(world, ref, piece(world, ref.uid, 0, 0, (2, 5)))
    [record] = [each for each in world.records() if each.HasField("tokens_reported")]

    assert uids_of(record) == [ref.uid]
    detail = to_ledger_event(record).detail_json
    assert '"end": 5' in detail
    assert "token_ids" not in detail
