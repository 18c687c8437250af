"""Bugs that this system, or one of its neighbours, has had or could have, put back on purpose.

Each is a patch of one rule; the name says what it breaks. `tests/unit/test_mutants.py` expects that
somebody outside of the ledger notices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest

from headrace.replay import base as base_module
from headrace.replay import (
    cutting,
    draft,
    draft_events,
    drafts,
    feeding,
    group,
    groups,
    leasing,
    ledger,
    resuming,
    rows,
    sampling,
    staleness,
    timeline_events,
    window,
)
from headrace.replay.dropping import drop
from headrace.v1 import prompt_pb2, replay_pb2

Patch: TypeAlias = Callable[[pytest.MonkeyPatch], None]
SAMPLED, RUNNING, TRAINED = group.SAMPLED, group.RUNNING, group.TRAINED


@contextmanager
def nothing_under_way(the_ledger: Any) -> Any:
    """Have a rule not see the resume."""
    kept, the_ledger.resume = the_ledger.resume, None
    try:
        yield
    finally:
        if the_ledger.resume is None:
            the_ledger.resume = kept


def blind(patch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    rule = getattr(module, name)

    def without(the_ledger: Any, *args: Any, **more: Any) -> Any:
        with nothing_under_way(the_ledger):
            return rule(the_ledger, *args, **more)

    patch.setattr(module, name, without)


def after_line(patch: pytest.MonkeyPatch, then: Callable[[Any, Any, Any], None]) -> None:
    """Do something wrong once a time line was opened; `then` gets what was before, too."""
    rule = ledger.HANDLERS["lineage_opened"]

    def wrong(the_ledger: Any, event: Any) -> None:
        before = {"weights": dict(the_ledger.weights), "latest": the_ledger.latest_weights}
        rule(the_ledger, event)
        then(the_ledger, event, before)

    patch.setitem(ledger.HANDLERS, "lineage_opened", wrong)


def not_reopened(patch: pytest.MonkeyPatch, *states: int) -> None:
    rule = resuming._reopened

    def without(the_ledger: Any, *args: Any) -> Any:
        found = list(rule(the_ledger, *args))
        return [each for each in found if the_ledger.groups[each.uid].state not in states]

    patch.setattr(resuming, "_reopened", without)


def stored_without(patch: pytest.MonkeyPatch, *fields: str) -> None:
    """Have compaction forget something."""
    rule = base_module.to_base

    def lossy(*args: Any, **more: Any) -> Any:
        made = rule(*args, **more)
        for field in fields:
            made.ClearField(field)  # type: ignore[arg-type]
        return made

    import ledger_resumes

    patch.setattr(ledger_resumes, "to_base", lossy)


# -- time lines


def sessions_of_later_weights_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(resuming, "_kept", lambda _, __, ___, each: dict(each.sessions))


def nothing_is_salvaged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(resuming, "_kept", lambda *_: {})


def rows_of_a_lost_store_are_believed_in(patch: pytest.MonkeyPatch) -> None:
    def kept(_: Any, rollback: Any, step: int, each: Any) -> Any:
        found = {s: r for s, r in each.sessions.items() if r.max_version <= step}
        return found if rollback.salvage else {}

    patch.setattr(resuming, "_kept", kept)


def what_was_trained_later_stays_trained(patch: pytest.MonkeyPatch) -> None:
    not_reopened(patch, TRAINED)


def a_lease_outlives_its_line(patch: pytest.MonkeyPatch) -> None:
    not_reopened(patch, RUNNING)


def a_sampled_batch_outlives_its_line(patch: pytest.MonkeyPatch) -> None:
    not_reopened(patch, SAMPLED)


def the_cursor_moves_back(patch: pytest.MonkeyPatch) -> None:
    def back(the_ledger: Any, _: Any, __: Any) -> None:
        the_ledger.cursor = max(0, the_ledger.cursor - 1)

    after_line(patch, back)


def the_cursor_skips_a_row(patch: pytest.MonkeyPatch) -> None:
    def on(the_ledger: Any, _: Any, __: Any) -> None:
        the_ledger.cursor += 1

    after_line(patch, on)


def attempts_begin_again(patch: pytest.MonkeyPatch) -> None:
    def reset(the_ledger: Any, event: Any, _: Any) -> None:
        for each in event.groups:
            the_ledger.groups[each.uid].attempt = 0

    after_line(patch, reset)


def weights_of_a_dead_line_are_accepted(patch: pytest.MonkeyPatch) -> None:
    def keep(the_ledger: Any, _: Any, before: Any) -> None:
        the_ledger.weights = before["weights"]

    after_line(patch, keep)


def the_newest_weights_are_still_those_of_the_dead_line(patch: pytest.MonkeyPatch) -> None:
    def keep(the_ledger: Any, _: Any, before: Any) -> None:
        the_ledger.weights, the_ledger.latest_weights = before["weights"], before["latest"]

    after_line(patch, keep)


def bases_are_not_restamped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(resuming, "_base", lambda _, __, each, ___: each.base)


def steps_are_not_counted_back(patch: pytest.MonkeyPatch) -> None:
    def on(the_ledger: Any, _: Any, __: Any) -> None:
        the_ledger.committed_step += 1

    after_line(patch, on)


# -- gates


def leases_are_given_while_resuming(patch: pytest.MonkeyPatch) -> None:
    blind(patch, leasing, "allowance")


def batches_are_given_while_resuming(patch: pytest.MonkeyPatch) -> None:
    blind(patch, sampling, "sample")


def prompts_are_fed_before_the_warm_up(patch: pytest.MonkeyPatch) -> None:
    blind(patch, feeding, "demand")


def phases_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(resuming, "_not_done", lambda *_: "")


def the_warm_up_adds_a_full_window(patch: pytest.MonkeyPatch) -> None:
    """verl #7759: warm-up on top of what was restored."""
    rule = feeding.demand

    def full(the_ledger: Any, settings: Any) -> int:
        resume = the_ledger.resume
        if resume and resume.phase == resuming.WARMUP and not resume.topped_up_count:
            room = the_ledger.feed.ordinal_count - the_ledger.cursor
            return int(min(settings.window_size, room))
        return rule(the_ledger, settings)

    patch.setattr(feeding, "demand", full)


def failed_groups_hold_slots(patch: pytest.MonkeyPatch) -> None:
    """verl #7762: what is over and done with counts as if it could still be trained on."""
    patch.setattr(resuming, "_drop_unusable", lambda *_: None)
    rule = ledger.Ledger.live_count.fget  # type: ignore[attr-defined]
    count = property(lambda self: rule(self) + self.groups.counts[group.FAILED])
    patch.setattr(ledger.Ledger, "live_count", count)


def stale_groups_hold_slots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(resuming, "_drop_unusable", lambda *_: None)


def usable_groups_are_dropped_at_the_restore(patch: pytest.MonkeyPatch) -> None:
    def drop_all(the_ledger: Any, settings: Any) -> None:
        doomed = list(the_ledger.groups.finished)
        reason = prompt_pb2.DROP_REASON_STALE_AT_RESTORE
        spans = [9] * len(doomed)
        drop(the_ledger, reason, doomed, step=the_ledger.current_step, spans=spans)

    patch.setattr(resuming, "_drop_unusable", drop_all)


def an_over_full_window_is_trimmed(patch: pytest.MonkeyPatch) -> None:
    def trim(the_ledger: Any, settings: Any) -> None:
        over = the_ledger.live_count - the_ledger.window(settings.window_size).target
        doomed = list(the_ledger.groups.pending)[: max(0, over)]
        reason = prompt_pb2.DROP_REASON_SURPLUS
        drop(the_ledger, reason, doomed, step=the_ledger.current_step)

    patch.setattr(resuming, "_drop_unusable", trim)


def a_warm_up_never_comes_to_its_end(patch: pytest.MonkeyPatch) -> None:
    rule = resuming._not_done

    def stuck(the_ledger: Any, settings: Any, resume: Any, confirmed: Any) -> str:
        if resume.phase == resuming.WARMUP:
            return "the feeder"
        return rule(the_ledger, settings, resume, confirmed)

    patch.setattr(resuming, "_not_done", stuck)


# -- fences


def an_old_trainer_is_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sampling, "check_trainer", lambda *_: None)


def a_life_of_the_store_that_is_over_is_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows, "check_life", lambda *_, **__: None)


def a_late_return_is_heard(patch: pytest.MonkeyPatch) -> None:
    rule = sampling.return_groups

    def of_any_sampling(the_ledger: Any, *, attempts: Any = (), **more: Any) -> int:
        return rule(the_ledger, **more)

    patch.setattr(sampling, "return_groups", of_any_sampling)


def an_old_attempt_is_heard(patch: pytest.MonkeyPatch) -> None:
    def holder(the_ledger: Any, worker_id: str, ref: Any) -> Any:
        found = the_ledger.groups.get(ref.uid)
        return found if found and found.state == RUNNING else None

    patch.setattr(leasing, "holder", holder)


def a_commit_counts_twice(patch: pytest.MonkeyPatch) -> None:
    rule = sampling.commit_step

    def twice(the_ledger: Any, settings: Any, step: int) -> None:
        again = step == the_ledger.committed_step and step
        rule(the_ledger, settings, step)
        if again:
            the_ledger.committed_step += 1

    patch.setattr(sampling, "commit_step", twice)


def a_new_trainer_leaves_what_the_old_one_had(patch: pytest.MonkeyPatch) -> None:
    rule = ledger.HANDLERS["trainer_registered"]

    def keep(the_ledger: Any, event: Any) -> None:
        opened, sampled = the_ledger.open_step, dict(the_ledger.groups.sampled)
        the_ledger.groups.sampled.clear()
        rule(the_ledger, event)
        the_ledger.groups.sampled.update(sampled)
        the_ledger.open_step = opened

    patch.setitem(ledger.HANDLERS, "trainer_registered", keep)


def weights_too_old_are_leased_with(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leasing, "oldest_usable_version", lambda *_: 0)


# -- the window, the order, the rows


def a_refill_comes_twice(patch: pytest.MonkeyPatch) -> None:
    own = window.Window.own_demand.fget  # type: ignore[attr-defined]
    patch.setattr(window.Window, "own_demand", property(lambda self: 2 * own(self)))


def leasing_knows_no_window(patch: pytest.MonkeyPatch) -> None:
    rule = leasing.allowance

    def all_there_is(the_ledger: Any, settings: Any, **more: Any) -> Any:
        found = rule(the_ledger, settings, **more)
        full = "the window is full" in found.blocked_by
        return leasing.Allowance(len(the_ledger.groups.pending)) if full else found

    patch.setattr(leasing, "allowance", all_there_is)


def the_newest_is_sampled_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(groups, "_by_age", lambda each: (-each.base, each.ordinal))


def an_error_is_a_row_of_zero_reward(patch: pytest.MonkeyPatch) -> None:
    """NeMo RL #3470, #3589: what an engine did not make is trained on."""
    rule = ledger.HANDLERS["leases_ended"]

    def zero(the_ledger: Any, event: Any) -> None:
        rule(the_ledger, event)
        for ended in event.leases:
            if ended.end == replay_pb2.LEASE_END_FAILED:
                with the_ledger.groups.changing(the_ledger.groups[ended.lease.uid]) as failed:
                    for session in failed.missing(the_ledger.n):
                        record = prompt_pb2.SessionRecord(session=session, trajectory_count=1)
                        failed.sessions[session] = record
                    failed.state, failed.base = group.FINISHED, 1

    patch.setitem(ledger.HANDLERS, "leases_ended", zero)


def lost_rows_are_forgotten_about(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(ledger.HANDLERS, "rows_lost", lambda *_: None)


# -- responses under way


def tokens_are_added_twice(patch: pytest.MonkeyPatch) -> None:
    """A repeated report is new again."""
    rule = draft.stretch

    def whole(piece: Any, begin: int, end: int) -> Any:
        return rule(piece, min(begin, piece.offset), end)

    patch.setattr(draft, "stretch", whole)
    patch.setattr(draft, "length", lambda known: 0)
    patch.setattr(groups, "grow", lambda known, piece: known.MergeFrom(piece))


def tokens_may_be_left_out(patch: pytest.MonkeyPatch) -> None:
    """What was reported is behind what is known, wherever it says that it is."""
    rule = drafts.keep

    def closed_up(the_ledger: Any, settings: Any, progress: Any, **more: Any) -> Any:
        for reported, held in progress:
            for piece in reported.drafts:
                known = held.drafts.get(piece.session) if held else None
                if draft.length(known) < piece.offset:
                    piece.CopyFrom(moved(piece, draft.length(known)))
        return rule(the_ledger, settings, progress, **more)

    def moved(piece: Any, offset: int) -> Any:
        found = type(piece)()
        found.CopyFrom(piece)
        for span in found.weight_spans:
            span.begin -= piece.offset - offset
            span.end -= piece.offset - offset
        found.offset = offset
        return found

    patch.setattr(drafts, "keep", closed_up)


def tokens_of_a_dead_line_are_kept(patch: pytest.MonkeyPatch) -> None:
    def until(piece: Any, known: Any, **_: Any) -> int:
        return int(piece.offset + len(piece.token_ids))

    patch.setattr(draft, "known_until", until)


def drafts_outlive_their_line(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timeline_events, "cut_drafts", lambda *_: None)


def a_new_line_begins_without_drafts(patch: pytest.MonkeyPatch) -> None:
    rule = draft_events.cut_drafts
    patch.setattr(timeline_events, "cut_drafts", lambda the_ledger, _: rule(the_ledger, None))


def drafts_too_old_are_gone_on_with(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(drafts, "drop_unusable", lambda *_, **__: None)


def drafts_that_can_be_used_are_dropped(patch: pytest.MonkeyPatch) -> None:
    rule = staleness.oldest_usable_version
    patch.setattr(drafts, "oldest_usable_version", lambda *given: rule(*given) + 1)


def a_group_forgets_how_old_its_drafts_are(patch: pytest.MonkeyPatch) -> None:
    rule = ledger.HANDLERS["prompts_leased"]

    def young(the_ledger: Any, event: Any) -> None:
        held = {lease.uid: dict(the_ledger.groups[lease.uid].drafts) for lease in event.leases}
        for uid in held:
            with the_ledger.groups.changing(the_ledger.groups[uid]) as each:
                each.drafts = {}
        rule(the_ledger, event)
        for uid, there in held.items():
            with the_ledger.groups.changing(the_ledger.groups[uid]) as each:
                each.drafts = there

    patch.setitem(ledger.HANDLERS, "prompts_leased", young)


def drafts_outlive_a_failure(patch: pytest.MonkeyPatch) -> None:
    rule = ledger.HANDLERS["leases_ended"]

    def keep(the_ledger: Any, event: Any) -> None:
        held = {
            ended.lease.uid: dict(the_ledger.groups[ended.lease.uid].drafts)
            for ended in event.leases
        }
        rule(the_ledger, event)
        for uid, there in held.items():
            with the_ledger.groups.changing(the_ledger.groups[uid]) as each:
                each.drafts = there

    patch.setitem(ledger.HANDLERS, "leases_ended", keep)


def drafts_are_as_long_as_responses(patch: pytest.MonkeyPatch) -> None:
    rule = drafts._usable_until

    def beyond(the_ledger: Any, settings: Any, *more: Any) -> int:
        longer = dataclasses.replace(settings, max_response_length=10**6)
        return int(rule(the_ledger, longer, *more))

    patch.setattr(drafts, "_usable_until", beyond)


def compaction_forgets_drafts(patch: pytest.MonkeyPatch) -> None:
    rule = base_module.to_base

    def lossy(*args: Any, **more: Any) -> Any:
        made = rule(*args, **more)
        for stored in made.groups:
            stored.ClearField("drafts")
        return made

    import ledger_resumes

    patch.setattr(ledger_resumes, "to_base", lossy)


# -- snapshots, the journal


def a_failed_snapshot_covers(patch: pytest.MonkeyPatch) -> None:
    rule = ledger.HANDLERS["snapshot_ended"]

    def cover(the_ledger: Any, event: Any) -> None:
        rule(the_ledger, event)
        the_ledger.groups.cover(event.step)

    patch.setitem(ledger.HANDLERS, "snapshot_ended", cover)


def a_run_is_cut_while_it_is_resumed(patch: pytest.MonkeyPatch) -> None:
    blind(patch, cutting, "begin_cut")


def a_step_is_cut_while_it_is_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cutting, "at_end", lambda _: "data_ended")


def trained_groups_are_let_go_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(groups.GroupTable, "is_uncovered", lambda *_: False)


def compaction_forgets_time_lines(patch: pytest.MonkeyPatch) -> None:
    stored_without(patch, "lineages")


def compaction_forgets_the_resume(patch: pytest.MonkeyPatch) -> None:
    stored_without(patch, "resume")


def compaction_forgets_the_snapshots(patch: pytest.MonkeyPatch) -> None:
    stored_without(patch, "saved_step", "oldest_step")


def compaction_forgets_the_weights(patch: pytest.MonkeyPatch) -> None:
    stored_without(patch, "weights")
