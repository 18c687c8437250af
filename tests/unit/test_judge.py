"""The judge of the fault tests is judged itself: a clean run passes, and each forgery is found."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from history import Entry
from judged_run import Case, played
from ledger_world import LINEAGE

from headrace.v1 import feeder_pb2, journal_pb2, prompt_pb2, replay_pb2
from headrace.verify.verdict import seen

CLEAN = played()


@pytest.fixture
def case() -> Case:
    return deepcopy(CLEAN)


def test_a_clean_run_passes(case: Case) -> None:
    assert len(case.events("leases_ended")) >= 4
    assert case.findings() == []


# -- forgeries. Each takes a clean case and spoils it in one way.


def trained_twice_in_both_accounts(case: Case) -> None:
    first, third = case.events("batch_sampled")[0], case.events("batch_sampled")[2]
    third.uids[0] = first.uids[0]
    case.answers("SampleBatch")[2].groups[0].CopyFrom(case.answers("SampleBatch")[0].groups[0])


def journal_trains_what_the_trainer_was_not_given(case: Case) -> None:
    groups = case.answers("SampleBatch")[2].groups
    groups[0].uid = "e0r39"


def a_commit_is_forgotten(case: Case) -> None:
    del case.records[case.index("step_committed", 2)]


def the_trainer_never_committed(case: Case) -> None:
    case.history = [e for e in case.history if e.call != "CommitStep" or e.request.step != 3]


def an_expiry_is_forgotten(case: Case) -> None:
    del case.records[case.index("leases_ended", 1)]


def a_prompt_is_lost_at_the_end(case: Case) -> None:
    """The last step trains one prompt less, and nobody says what became of it."""
    case.events("batch_sampled")[-1].uids.pop()


def a_prompt_disappears_from_the_counts(case: Case) -> None:
    case.audit.counts.trained -= 1


def more_is_fed_than_the_window_takes(case: Case) -> None:
    later = case.index("prompts_registered", 1)
    case.records.insert(case.index("prompts_registered") + 1, case.records.pop(later))


def more_is_leased_than_the_window_takes(case: Case) -> None:
    """Every lease of the run is given at once after the first feeding."""
    case.rules = replace(case.rules, warmup=0.25)


def an_ordinal_is_skipped(case: Case) -> None:
    case.events("prompts_registered")[1].first_ordinal += 1


def a_row_is_fed_twice(case: Case) -> None:
    case.events("prompts_registered")[1].prompts[0].uid = "e0r0"


def two_rows_are_swapped(case: Case) -> None:
    prompts = case.events("prompts_registered")[0].prompts
    prompts[0].uid, prompts[1].uid = prompts[1].uid, prompts[0].uid


def a_stale_group_is_sampled(case: Case) -> None:
    case.rules = replace(case.rules, threshold=1)


def a_fresh_group_is_dropped_as_stale(case: Case) -> None:
    finished = case.events("batch_sampled")[1].uids[0]
    event = journal_pb2.GroupsDropped(
        reason=prompt_pb2.DROP_REASON_STALE, uids=[finished], step=2, spans=[9]
    )
    case.records.insert(case.index("batch_sampled", 1), record(groups_dropped=event))


def the_newest_group_is_sampled_first(case: Case) -> None:
    second, third = case.events("batch_sampled")[1:3]
    kept, second.uids[0] = second.uids[0], third.uids[-1]
    third.uids[-1] = kept


def an_old_attempt_completes(case: Case) -> None:
    case.events("sessions_completed")[-1].sessions[0].lease.attempt -= 1


def another_worker_completes(case: Case) -> None:
    case.events("sessions_completed")[-1].worker_id = "zombie"


def a_session_is_recorded_twice(case: Case) -> None:
    sessions = case.events("sessions_completed")[-1].sessions
    sessions[1].CopyFrom(sessions[0])


def rows_of_a_dead_store_are_recorded(case: Case) -> None:
    case.events("sessions_completed")[-1].store_incarnation = "s0"


def attempts_are_not_counted_up(case: Case) -> None:
    case.events("prompts_leased")[1].leases[0].attempt = 1


def unpublished_weights_generate(case: Case) -> None:
    case.events("prompts_leased")[0].weights.version = 1


def too_old_weights_generate(case: Case) -> None:
    case.events("prompts_leased")[-1].weights.version = 0
    case.rules = replace(case.rules, threshold=3)


def weights_of_an_older_step_generate_in_sync_mode(case: Case) -> None:
    case.events("prompts_leased")[-1].weights.version -= 1
    case.rules = replace(case.rules, sync=True)


def a_prompt_is_dropped_without_a_reason_to(case: Case) -> None:
    uid = case.events("batch_sampled")[-1].uids[0]
    event = journal_pb2.GroupsDropped(reason=prompt_pb2.DROP_REASON_SURPLUS, uids=[uid], step=7)
    case.records.insert(case.index("run_ended"), record(groups_dropped=event))


def a_prompt_with_failures_left_is_dropped_as_failed(case: Case) -> None:
    uid = case.events("leases_ended")[0].leases[0].lease.uid
    event = journal_pb2.GroupsDropped(reason=prompt_pb2.DROP_REASON_FAILED, uids=[uid], step=1)
    case.records.insert(case.index("leases_ended") + 1, record(groups_dropped=event))


def work_goes_on_after_the_end(case: Case) -> None:
    case.records.append(deepcopy(case.records[case.index("prompts_leased")]))


def feeding_goes_on_while_the_circuit_is_open(case: Case) -> None:
    cause = replay_pb2.CIRCUIT_CAUSE_WORKERS_FAIL
    event = journal_pb2.CircuitOpened(cause=cause, error="boom")
    case.records.insert(case.index("prompts_registered", 1), record(circuit_opened=event))


def the_feed_opens_for_another_number_of_steps(case: Case) -> None:
    case.events("feed_opened")[0].total_steps += 1


def the_run_never_ends(case: Case) -> None:
    del case.records[case.index("run_ended")]


def an_audit_finds_something(case: Case) -> None:
    case.answers("Audit")[3].ok = False


def an_audit_saw_what_was_lost_later(case: Case) -> None:
    case.answers("Audit")[-2].position += 1000


def an_audit_counted_otherwise(case: Case) -> None:
    counts = case.answers("Audit")[2].counts
    counts.running, counts.finished = counts.running + 1, counts.finished - 1


def a_repeated_sample_gives_other_groups(case: Case) -> None:
    index = next(i for i, entry in enumerate(case.history) if entry.call == "SampleBatch")
    again = deepcopy(case.history[index])
    groups = list(again.answer.groups)
    del again.answer.groups[:]
    again.answer.groups.extend(reversed(groups))
    case.history.insert(index + 1, again)


def the_trainer_is_told_another_span(case: Case) -> None:
    case.answers("SampleBatch")[3].groups[0].span += 1


def the_trainer_is_given_rows_of_another_attempt(case: Case) -> None:
    reference = case.answers("SampleBatch")[0].groups[0].trajectories[0]
    reference.key = reference.key[:-1] + "9"


def weights_are_published_and_forgotten(case: Case) -> None:
    weights = prompt_pb2.PublishedWeights(
        id=prompt_pb2.WeightsId(lineage=LINEAGE, version=2), checksum="other"
    )
    request = replay_pb2.PublishWeightsRequest(weights=weights)
    case.history.append(Entry(0.0, "PublishWeights", request, replay_pb2.PublishWeightsResponse()))


def a_row_is_never_read(case: Case) -> None:
    index = next(i for i, entry in enumerate(case.history) if entry.call == "GetTrajectories")
    case.history[index] = replace(case.history[index], answer=case.history[index].answer[1:])


def a_row_has_another_prompt(case: Case) -> None:
    case.answers("GetTrajectories")[1][0].prompt_token_ids.append(5)


def a_row_was_made_by_other_weights(case: Case) -> None:
    case.answers("GetTrajectories")[-1][0].weight_spans[0].version += 1


def a_row_lacks_log_probabilities(case: Case) -> None:
    del case.answers("GetTrajectories")[1][0].logprobs[:]


def a_writer_that_was_fenced_writes(case: Case) -> None:
    for one in case.records[:-3]:
        one.writer_epoch = 2


def record(**event: Any) -> journal_pb2.JournalRecord:
    return journal_pb2.JournalRecord(schema_version=1, **event)


FORGERIES: tuple[tuple[str, Callable[[Case], None]], ...] = (
    ("twice", trained_twice_in_both_accounts),
    ("testimony", journal_trains_what_the_trainer_was_not_given),
    ("testimony", a_commit_is_forgotten),
    ("testimony", the_trainer_never_committed),
    ("transition", an_expiry_is_forgotten),
    ("lost", a_prompt_is_lost_at_the_end),
    ("balance", a_prompt_disappears_from_the_counts),
    ("window", more_is_fed_than_the_window_takes),
    ("window", more_is_leased_than_the_window_takes),
    ("ordinal", an_ordinal_is_skipped),
    ("ordinal", a_row_is_fed_twice),
    ("ordinal", two_rows_are_swapped),
    ("stale", a_stale_group_is_sampled),
    ("stale", a_fresh_group_is_dropped_as_stale),
    ("order", the_newest_group_is_sampled_first),
    ("fence", an_old_attempt_completes),
    ("fence", another_worker_completes),
    ("fence", a_session_is_recorded_twice),
    ("fence", rows_of_a_dead_store_are_recorded),
    ("fence", attempts_are_not_counted_up),
    ("fence", unpublished_weights_generate),
    ("stale", too_old_weights_generate),
    ("stale", weights_of_an_older_step_generate_in_sync_mode),
    ("drop", a_prompt_is_dropped_without_a_reason_to),
    ("transition", a_prompt_with_failures_left_is_dropped_as_failed),
    ("end", work_goes_on_after_the_end),
    ("window", feeding_goes_on_while_the_circuit_is_open),
    ("step", the_feed_opens_for_another_number_of_steps),
    ("lost", the_run_never_ends),
    ("balance", an_audit_finds_something),
    ("durable", an_audit_saw_what_was_lost_later),
    ("balance", an_audit_counted_otherwise),
    ("testimony", a_repeated_sample_gives_other_groups),
    ("testimony", the_trainer_is_told_another_span),
    ("testimony", the_trainer_is_given_rows_of_another_attempt),
    ("durable", weights_are_published_and_forgotten),
    ("rows", a_row_is_never_read),
    ("rows", a_row_has_another_prompt),
    ("rows", a_row_was_made_by_other_weights),
    ("rows", a_row_lacks_log_probabilities),
    ("fence", a_writer_that_was_fenced_writes),
)


@pytest.mark.parametrize(
    ("kind", "forge"), FORGERIES, ids=[forge.__name__ for _, forge in FORGERIES]
)
def test_the_judge_finds_that(case: Case, kind: str, forge: Callable[[Case], None]) -> None:
    forge(case)
    assert any(finding.startswith(f"{kind}: ") for finding in case.findings()), case.findings()


def test_of_a_run_that_was_only_watched_its_weights_tell(case: Case) -> None:
    case.history = [entry for entry in case.history if entry.call in ("Audit", "WatchEvents")]
    trained = [list(event.uids) for event in case.events("batch_sampled")]
    assert case.watched_findings(seen(trained)) == []
    case.events("batch_sampled")[2].uids[0] = trained[0][0]
    case.audit.counts.trained -= 1
    kinds = [finding.partition(":")[0] for finding in case.watched_findings(seen(trained))]
    assert {"twice", "lost", "balance", "testimony"} <= set(kinds)


def test_a_prompt_that_was_not_the_row_of_its_ordinal_is_found(case: Case) -> None:
    payload = feeder_pb2.PromptPayload(text="5172>")
    case.events("prompts_registered")[0].prompts[0].payload.CopyFrom(payload)
    case.rules = replace(case.rules, text=lambda uid: "5172>" if uid != "e0r0" else "1234>")
    assert any(f.startswith("ordinal: e0r0 is '5172>'") for f in case.findings())
