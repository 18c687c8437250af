"""The judge looks at resumes: a run whose trainer dies twice passes, and each forgery is found."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from judged_run import Case, played_with_deaths

from headrace.v1 import journal_pb2, prompt_pb2, resume_pb2

CLEAN = played_with_deaths()


@pytest.fixture
def case() -> Case:
    return deepcopy(CLEAN)


def test_a_run_whose_trainer_dies_twice_passes(case: Case) -> None:
    assert [len(event.groups) > 4 for event in case.events("lineage_opened")] == [True, True]
    assert case.events("rows_lost")
    assert case.findings() == []


# -- forgeries


def line(case: Case, number: int = 0) -> Any:
    return case.events("lineage_opened")[number]


def untrained(case: Case, number: int = 0) -> list[int]:
    """Give where in the event the groups stand that were trained after the fork."""
    at = case.index("lineage_opened", number)
    later: set[str] = set()
    for record in case.records[:at]:
        if record.step_committed.step > line(case, number).lineage.fork_step:
            later |= set(sampled_for(case, record))
    return [i for i, group in enumerate(line(case, number).groups) if group.uid in later]


def sampled_for(case: Case, commit: journal_pb2.JournalRecord) -> list[str]:
    step, name = commit.step_committed.step, commit.step_committed.lineage
    sampled = case.events("batch_sampled")
    return [u for e in sampled if (e.step, e.lineage) == (step, name) for u in e.uids]


def what_was_trained_later_is_not_live_again(case: Case) -> None:
    del line(case).groups[untrained(case)[0]]


def what_was_trained_before_is_live_again(case: Case) -> None:
    early = case.events("batch_sampled")[0].uids[0]
    line(case).groups.add(uid=early)


def a_session_of_a_dead_line_is_kept(case: Case) -> None:
    group = next(g for g in line(case).groups if g.sessions)
    group.sessions[0].min_version = group.sessions[0].max_version = 3


def a_session_that_never_was_is_kept(case: Case) -> None:
    group = next(g for g in line(case).groups if not g.sessions)
    group.sessions.add(session=0, lineage="l0", attempt=1, trajectory_count=1)
    group.base = 1


def a_session_that_could_be_kept_is_not(case: Case) -> None:
    group = next(g for g in line(case).groups if g.sessions)
    del group.sessions[:]
    group.base = 0


def a_session_that_the_checkpoint_lacks_is_in_the_restored_store(case: Case) -> None:
    group = next(g for g in line(case, 1).groups if not g.sessions)
    group.sessions.add(session=0, lineage="l1", attempt=1, trajectory_count=1)
    group.base = 1


def a_lease_outlives_its_line(case: Case) -> None:
    held = {ref.uid for event in case.events("prompts_leased") for ref in event.leases}
    running = case.index("lineage_opened", 1)
    last = [r for r in case.records[:running] if r.WhichOneof("event") == "prompts_leased"][-1]
    uid = last.prompts_leased.leases[0].uid
    assert uid in held
    kept = [group for group in line(case, 1).groups if group.uid != uid]
    del line(case, 1).groups[:]
    line(case, 1).groups.extend(kept)


def a_base_is_wrong(case: Case) -> None:
    next(g for g in line(case).groups if g.sessions).base += 1


def a_line_forks_elsewhere(case: Case) -> None:
    line(case).lineage.fork_step = 3


def a_line_has_another_parent(case: Case) -> None:
    line(case, 1).lineage.parent = "l0"


def a_line_has_the_name_of_a_dead_one(case: Case) -> None:
    line(case, 1).lineage.id = "l0"


def a_line_goes_back_behind_what_is_kept(case: Case) -> None:
    case.events("snapshot_ended")[0].oldest_step = 2
    case.events("resume_begun")[0].step = 1
    line(case).lineage.fork_step = 1


def weights_of_a_dead_line_generate(case: Case) -> None:
    """The new line has a version of that number, too."""
    leased = [e for e in case.events("prompts_leased") if e.weights.lineage == "l1"]
    event = next(e for e in leased if e.weights.version == 3)
    event.weights.lineage = "l0"


def a_commit_is_of_the_dead_line(case: Case) -> None:
    commits = case.events("step_committed")
    next(c for c in commits if (c.lineage, c.step) == ("l1", 3)).lineage = "l0"


def the_old_trainer_commits(case: Case) -> None:
    entries = [e for e in case.history if e.call == "CommitStep"]
    entries[4].request.incarnation = entries[0].request.incarnation


def put(case: Case, before: str, number: int = 0, **event: Any) -> None:
    record = journal_pb2.JournalRecord(schema_version=1, **event)
    case.records.insert(case.index(before, number), record)


def a_lease_is_given_while_the_run_is_being_resumed(case: Case) -> None:
    advanced = case.index("resume_advanced", 5)
    later = case.index("prompts_leased", len(case.events("prompts_leased")) - 1)
    after = [i for i in range(advanced, later + 1) if case.records[i].HasField("prompts_leased")]
    case.records.insert(advanced, case.records.pop(after[0]))


def prompts_are_fed_before_the_window_is_to_fill_up(case: Case) -> None:
    at = case.index("resume_advanced", 4)
    fed = [
        i for i in range(at, len(case.records)) if case.records[i].HasField("prompts_registered")
    ]
    case.records.insert(at, case.records.pop(fed[0]))


def a_phase_is_skipped(case: Case) -> None:
    del case.records[case.index("resume_advanced", 3)]


def weights_are_not_waited_for(case: Case) -> None:
    at = case.index("lineage_opened")
    published = next(
        i for i in range(at, len(case.records)) if case.records[i].HasField("weights_published")
    )
    advanced = next(
        i
        for i in range(at, len(case.records))
        if case.records[i].resume_advanced.phase == resume_pb2.RESUME_PHASE_REISSUE
    )
    case.records.insert(advanced, case.records.pop(published))


def a_resume_is_for_a_trainer_of_the_past(case: Case) -> None:
    case.events("resume_begun")[1].trainer_incarnation -= 1


def a_snapshot_is_of_another_step(case: Case) -> None:
    case.events("snapshot_begun")[0].step = 1
    case.events("snapshot_ended")[0].step = 1


def a_snapshot_ends_that_never_began(case: Case) -> None:
    del case.records[case.index("snapshot_begun")]


def a_row_is_lost_that_was_not_there(case: Case) -> None:
    case.events("rows_lost")[0].sessions[0] = 7


def a_usable_group_is_dropped_at_the_restore(case: Case) -> None:
    uid = next(g.uid for g in line(case).groups if len(g.sessions) == 2)
    dropped = journal_pb2.GroupsDropped(
        reason=prompt_pb2.DROP_REASON_STALE_AT_RESTORE, uids=[uid], step=3, spans=[9]
    )
    put(case, "resume_advanced", 4, groups_dropped=dropped)


def a_row_of_a_dead_line_is_trained_on(case: Case) -> None:
    last = case.answers("GetTrajectories")[-1]
    last[0].weight_spans[0].lineage = "dead"


FORGERIES: tuple[tuple[str, Callable[[Case], None]], ...] = (
    ("line", what_was_trained_later_is_not_live_again),
    ("transition", what_was_trained_before_is_live_again),
    ("line", a_session_of_a_dead_line_is_kept),
    ("line", a_session_that_never_was_is_kept),
    ("line", a_session_that_could_be_kept_is_not),
    ("line", a_session_that_the_checkpoint_lacks_is_in_the_restored_store),
    ("line", a_lease_outlives_its_line),
    ("line", a_base_is_wrong),
    ("line", a_line_forks_elsewhere),
    ("line", a_line_has_another_parent),
    ("line", a_line_has_the_name_of_a_dead_one),
    ("line", a_line_goes_back_behind_what_is_kept),
    ("fence", weights_of_a_dead_line_generate),
    ("step", a_commit_is_of_the_dead_line),
    ("testimony", the_old_trainer_commits),
    ("resume", a_lease_is_given_while_the_run_is_being_resumed),
    ("resume", prompts_are_fed_before_the_window_is_to_fill_up),
    ("resume", a_phase_is_skipped),
    ("resume", weights_are_not_waited_for),
    ("fence", a_resume_is_for_a_trainer_of_the_past),
    ("cut", a_snapshot_is_of_another_step),
    ("cut", a_snapshot_ends_that_never_began),
    ("line", a_row_is_lost_that_was_not_there),
    ("stale", a_usable_group_is_dropped_at_the_restore),
    ("rows", a_row_of_a_dead_line_is_trained_on),
)


@pytest.mark.parametrize(
    ("kind", "forge"), FORGERIES, ids=[forge.__name__ for _, forge in FORGERIES]
)
def test_the_judge_finds_that(case: Case, kind: str, forge: Callable[[Case], None]) -> None:
    forge(case)
    assert any(finding.startswith(f"{kind}: ") for finding in case.findings()), case.findings()
