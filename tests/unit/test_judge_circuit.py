"""The judge knows what an open circuit lets in, and sees a ledger that lets in more."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
from judged_run import Case, outage

from headrace.v1 import journal_pb2, prompt_pb2, replay_pb2

CLEAN = outage()


@pytest.fixture
def case() -> Case:
    return deepcopy(CLEAN)


def test_an_outage_that_is_waited_out_passes(case: Case) -> None:
    opened, closed = case.index("circuit_opened"), case.index("circuit_closed")
    fed = [
        record for record in case.records[opened:closed] if record.HasField("prompts_registered")
    ]
    assert len(fed) == case.rules.eject_after, "as many as the rules allow, and no more"
    assert case.findings() == []


# -- forgeries. Each takes the outage and spoils it in one way.


def one_prompt_more_is_let_in(case: Case) -> None:
    case.rules = replace(case.rules, eject_after=case.rules.eject_after - 1)


def a_prompt_is_let_in_beside_what_could_be_probed_with(case: Case) -> None:
    first_fed = case.index("prompts_registered", fed_before_the_outage(case))
    fed = case.records.pop(first_fed)
    case.records.insert(case.index("circuit_opened") + 1, fed)


def two_prompts_are_let_in_at_once(case: Case) -> None:
    number = fed_before_the_outage(case)
    first, second = case.events("prompts_registered")[number : number + 2]
    first.prompts.append(second.prompts[0])
    del case.records[case.index("prompts_registered", number + 1)]


def fed_before_the_outage(case: Case) -> int:
    before = case.records[: case.index("circuit_opened")]
    return sum(record.HasField("prompts_registered") for record in before)


def a_worker_gets_two_probes(case: Case) -> None:
    first, second = two_leases_after(case, case.index("circuit_opened"))
    case.records[first].prompts_leased.leases.extend(case.records[second].prompts_leased.leases)


def two_leases_after(case: Case, position: int) -> tuple[int, int]:
    numbers = [
        number
        for number, record in enumerate(case.records)
        if number > position and record.HasField("prompts_leased")
    ]
    return numbers[0], numbers[1]


def leasing_goes_on_while_the_filters_budget_is_used_up(case: Case) -> None:
    case.events("circuit_opened")[0].cause = replay_pb2.CIRCUIT_CAUSE_FILTER_BUDGET


def it_opens_though_no_worker_is_ejected(case: Case) -> None:
    case.records = [record for record in case.records if not record.HasField("worker_ejected")]


def a_worker_is_ejected_too_early(case: Case) -> None:
    case.rules = replace(case.rules, eject_after=20)


def a_prompt_is_failed_too_early(case: Case) -> None:
    case.rules = replace(case.rules, max_failures=4)


def a_prompt_is_dropped_as_failed_and_it_stays_open(case: Case) -> None:
    place = case.index("groups_failed")
    uid = case.records[place].groups_failed.uids[0]
    event = journal_pb2.GroupsDropped(reason=prompt_pb2.DROP_REASON_FAILED, uids=[uid])
    case.records.insert(place + 1, journal_pb2.JournalRecord(groups_dropped=event))


def it_never_closes(case: Case) -> None:
    del case.records[case.index("circuit_closed")]


FORGERIES: tuple[tuple[str, Callable[[Case], None]], ...] = (
    ("window", one_prompt_more_is_let_in),
    ("window", a_prompt_is_let_in_beside_what_could_be_probed_with),
    ("window", two_prompts_are_let_in_at_once),
    ("end", a_worker_gets_two_probes),
    ("end", leasing_goes_on_while_the_filters_budget_is_used_up),
    ("end", it_opens_though_no_worker_is_ejected),
    ("end", a_worker_is_ejected_too_early),
    ("transition", a_prompt_is_failed_too_early),
    ("end", a_prompt_is_dropped_as_failed_and_it_stays_open),
    ("window", it_never_closes),
)


@pytest.mark.parametrize(
    ("kind", "forge"), FORGERIES, ids=[forge.__name__ for _, forge in FORGERIES]
)
def test_the_judge_finds_that(case: Case, kind: str, forge: Callable[[Case], None]) -> None:
    forge(case)
    found = case.findings()
    assert any(finding.startswith(f"{kind}: ") for finding in found), found
