"""The judge compares what was acknowledged with what a killed keeper of the journal still had."""

from __future__ import annotations

from copy import deepcopy

import pytest
from history import Entry
from judge_durable import Witness
from judged_run import Case, played

from headrace.replay.events import to_ledger_event
from headrace.v1 import prompt_pb2, replay_pb2

CLEAN = played()
CLEAN.findings()  # which numbers the records


@pytest.fixture
def case() -> Case:
    """A run whose keeper was killed after each step."""
    case = deepcopy(CLEAN)
    for heard, entry in enumerate(case.history, 1):
        if entry.call == "Audit":
            case.witness.saw("redis", heard, case.records[: entry.answer.position])
    return case


def test_kills_that_lose_nothing_pass(case: Case) -> None:
    assert len(case.witness.kills) == 8
    assert case.findings() == []


@pytest.mark.parametrize("call", ["Audit", "CommitStep", "PublishWeights", "RegisterTrainer"])
def test_an_answer_to_what_the_killed_had_not_is_found(call: str) -> None:
    case = deepcopy(CLEAN)
    entry, position = an_answer(case, call)
    case.history.insert(0, entry)
    case.witness.saw("redis", 1, case.records[: position - 1])
    assert any("was acknowledged" in finding for finding in case.findings())
    case.witness = Witness()
    case.witness.saw("redis", 1, case.records[:position])
    assert not any("was acknowledged" in finding for finding in case.findings())


def an_answer(case: Case, call: str) -> tuple[Entry, int]:
    """Make an answer, and the position it depends on."""
    if call == "PublishWeights":
        at = case.index("weights_published", 2)
        weights: prompt_pb2.PublishedWeights = case.records[at].weights_published.weights
        request = replay_pb2.PublishWeightsRequest(weights=weights)
        return Entry(0.0, call, request, replay_pb2.PublishWeightsResponse()), at + 1
    if call == "RegisterTrainer":
        at = case.index("trainer_registered")
        answer = replay_pb2.RegisterTrainerResponse(
            incarnation=case.records[at].trainer_registered.incarnation
        )
        return Entry(0.0, call, replay_pb2.RegisterTrainerRequest(), answer), at + 1
    [*_, entry] = [entry for entry in case.history if entry.call == call]
    at = case.index("step_committed", -1) if call == "CommitStep" else len(case.records) - 1
    return entry, at + 1


def test_a_batch_that_the_killed_had_not_is_found(case: Case) -> None:
    [first, *_] = [i for i, entry in enumerate(case.history) if entry.call == "SampleBatch"]
    case.witness = Witness()
    case.witness.saw("redis", first + 1, case.records[: case.index("batch_sampled")])
    assert any("was acknowledged" in finding for finding in case.findings())


def test_an_event_that_is_another_than_before_is_found(case: Case) -> None:
    case.records[20] = deepcopy(case.records[20])
    case.records[20].unix_time_s += 1
    assert any("position 21 has changed" in finding for finding in case.findings())


def test_a_journal_that_has_become_shorter_is_found(case: Case) -> None:
    case.witness.saw("redis", 1, case.records[:9])
    assert any("9 events, there were" in finding for finding in case.findings())


def watched(case: Case) -> list[prompt_pb2.LedgerEvent]:
    """Have a watcher told of everything."""
    answer = replay_pb2.WatchEventsResponse(
        events=[to_ledger_event(record) for record in case.records]
    )
    case.history.append(Entry(0.0, "WatchEvents", replay_pb2.WatchEventsRequest(), answer))
    return list(answer.events)


def test_a_watcher_that_was_told_the_truth_passes(case: Case) -> None:
    assert watched(case)
    assert case.findings() == []


def test_an_event_that_was_told_and_is_another_is_found(case: Case) -> None:
    watched(case)[7].name = "run_ended"
    assert any("event 8 was told as run_ended" in finding for finding in case.findings())


def test_an_event_that_was_told_and_is_lost_is_found(case: Case) -> None:
    watched(case)
    del case.records[-1]
    assert any("was told and is not in the journal" in finding for finding in case.findings())


def test_an_event_that_was_told_twice_is_found(case: Case) -> None:
    watched(case)
    watched(case)
    assert any("event 1 was told after" in finding for finding in case.findings())
