"""What `headrace verify-resume` makes of a history: nothing of a true one, a word of a forged one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from judged_run import BATCH, ROWS, STEPS, Case, N, outage, played, played_with_deaths

from headrace.replay.events import to_ledger_event
from headrace.v1 import journal_pb2, prompt_pb2, resume_pb2
from headrace.verify.model import Model
from headrace.verify.told import Rules
from headrace.verify.verdict import INVARIANTS, seen, to_record

RULES = Rules(
    n=N,
    batch=BATCH,
    window=2 * BATCH,
    threshold=8,
    drops=True,
    basis="generated",
    max_failures=3,
    max_expiries=100,
    uid_of=lambda ordinal: f"e0r{ordinal}" if ordinal < ROWS else None,
)


def told(records: list[journal_pb2.JournalRecord]) -> list[str]:
    """Follow records as the recorder is shown them, and give what is said."""
    found: list[str] = []
    model = Model(RULES, found.append)
    for position, record in enumerate(records, 1):
        record.position = position
        model.apply(to_record(to_ledger_event(record)))
    return found


@pytest.mark.parametrize("play", [played, outage, played_with_deaths])
def test_nothing_is_said_of_a_run_that_was_what_it_should_be(play: Callable[[], Case]) -> None:
    assert told(play().records) == []


def test_a_history_leads_to_what_was_trained_on_the_living_line() -> None:
    model = Model(RULES, pytest.fail)
    for record in played_with_deaths().records:
        model.apply(to_record(to_ledger_event(record)))

    assert sorted(model.trained) == list(range(1, STEPS + 1))
    assert [line for line, _ in model.lineages] == ["l0", "l1", "l2"]
    assert seen([["b", "a"]]) == seen([["a", "b"]]) != seen([["a"], ["b"]])


def _train_again(case: Case) -> None:
    """The second line trains what the first line's kept steps have trained."""
    batches = case.events("batch_sampled")
    batches[4].uids[:] = batches[0].uids


def _feed_again(case: Case) -> None:
    case.events("prompts_registered")[1].prompts[0].uid = "e0r0"


def _skip_a_row(case: Case) -> None:
    case.events("prompts_registered")[1].first_ordinal += 1


def _forget_to_undo(case: Case) -> None:
    opened = case.events("lineage_opened")[0]
    del opened.groups[:]


def _fork_elsewhere(case: Case) -> None:
    case.events("lineage_opened")[0].lineage.fork_step = 1


def _keep_later_sessions(case: Case) -> None:
    opened = case.events("lineage_opened")[0]
    with_sessions = next(group for group in opened.groups if group.sessions)
    with_sessions.sessions[0].max_version = 9


def _lease_while_resuming(case: Case) -> None:
    leased = next(r for r in case.records if r.WhichOneof("event") == "prompts_leased")
    case.records.insert(case.index("resume_begun") + 1, leased)


def _feed_while_resuming(case: Case) -> None:
    before = case.index("resume_begun")
    later = next(
        i
        for i, record in enumerate(case.records)
        if i > before and record.WhichOneof("event") == "prompts_registered"
    )
    case.records.insert(before + 1, case.records.pop(later))


def _fill_a_whole_window_again(case: Case) -> None:
    """What verl #7759 did: the warm-up once more on top of what was restored."""
    extra = journal_pb2.JournalRecord()
    registered = extra.prompts_registered
    registered.first_ordinal = ROWS - 8
    for ordinal in range(ROWS - 8, ROWS):
        registered.prompts.add(uid=f"e0r{ordinal}")
    case.records.insert(case.index("lineage_opened") + 4, extra)


def _same_attempt(case: Case) -> None:
    case.events("prompts_leased")[-1].leases[0].attempt = 0


def _another_holder(case: Case) -> None:
    case.events("sessions_completed")[0].worker_id = "somebody"


def _weights_of_a_dead_line(case: Case) -> None:
    case.events("prompts_leased")[-1].weights.lineage = "l0"


def _publish_twice(case: Case) -> None:
    index = case.index("weights_published", 2)
    case.records.insert(index + 1, case.records[index])


def _no_such_trainer(case: Case) -> None:
    case.events("resume_begun")[0].trainer_incarnation = 1


def _sample_the_young_first(case: Case) -> None:
    batch = case.events("batch_sampled")[0]
    batch.uids[:] = list(reversed(batch.uids))


def _drop_the_fresh_as_stale(case: Case) -> None:
    model_index = case.index("step_committed", 0)
    uid = case.events("prompts_registered")[0].prompts[-1].uid
    record = journal_pb2.JournalRecord()
    record.groups_dropped.reason = prompt_pb2.DROP_REASON_STALE
    record.groups_dropped.uids.append(uid)
    record.groups_dropped.step = 2
    record.groups_dropped.spans.append(9)
    case.records.insert(model_index + 1, record)


def _drop_as_failed_at_once(case: Case) -> None:
    uid = case.events("prompts_registered")[0].prompts[-1].uid
    record = journal_pb2.JournalRecord()
    record.groups_dropped.reason = prompt_pb2.DROP_REASON_FAILED
    record.groups_dropped.uids.append(uid)
    case.records.insert(case.index("step_committed", 0) + 1, record)


def _cut_another_step(case: Case) -> None:
    case.events("snapshot_begun")[0].step += 1


def _end_too_soon(case: Case) -> None:
    record = journal_pb2.JournalRecord()
    record.run_ended.cause = "steps_done"
    case.records.insert(case.index("step_committed", 1) + 1, record)


def _open_without_weights(case: Case) -> None:
    begun = case.index("resume_begun")
    published = next(
        i
        for i, record in enumerate(case.records)
        if i > begun and record.WhichOneof("event") == "weights_published"
    )
    del case.records[published]


def _leave_out_a_phase(case: Case) -> None:
    warmup = resume_pb2.RESUME_PHASE_WARMUP
    index = next(
        i
        for i, record in enumerate(case.records)
        if record.WhichOneof("event") == "resume_advanced"
        and record.resume_advanced.phase == warmup
    )
    del case.records[index]


def _lose_an_event(case: Case) -> None:
    """Not by position, which is renumbered here: a completion is gone."""
    del case.records[case.index("sessions_completed", 1)]


FORGERIES: list[tuple[Callable[[Any], None], str]] = [
    (_train_again, "I1"),
    (_feed_again, "I12"),
    (_skip_a_row, "I12"),
    (_forget_to_undo, "I3"),
    (_fork_elsewhere, "I3"),
    (_keep_later_sessions, "I14"),
    (_lease_while_resuming, "I5"),
    (_feed_while_resuming, "I5"),
    (_fill_a_whole_window_again, "I5"),
    (_same_attempt, "I6"),
    (_another_holder, "I6"),
    (_weights_of_a_dead_line, "I14"),
    (_publish_twice, "I14"),
    (_no_such_trainer, "I6"),
    (_sample_the_young_first, "I12"),
    (_drop_the_fresh_as_stale, "I7"),
    (_drop_as_failed_at_once, "I13"),
    (_cut_another_step, "I9"),
    (_end_too_soon, "I4"),
    (_open_without_weights, "I14"),
    (_leave_out_a_phase, "a phase is left out"),
    (_lose_an_event, "I"),
]


@pytest.mark.parametrize(
    ("forge", "key"), FORGERIES, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_forged_history_is_told_from_a_true_one(forge: Callable[[Case], None], key: str) -> None:
    case = played_with_deaths()
    forge(case)

    found = told(case.records)

    assert any(line.startswith(key) for line in found), found


def test_every_violation_has_a_line_in_the_verdict() -> None:
    for _, key in FORGERIES:
        assert key in INVARIANTS or not key[1:].isdecimal()
