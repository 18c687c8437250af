"""What the replay buffer measures: events as they happen, state when it is asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from ledger_drafts import piece, report
from ledger_world import World, settings
from prometheus_client import CollectorRegistry, Metric

from headrace.replay import feeding
from headrace.replay.audit import audit
from headrace.replay.buffer import ReplayBuffer
from headrace.replay.circuit import WORKERS_FAIL
from headrace.replay.deadlines import LeaseDeadlines
from headrace.replay.event_metrics import EventMetrics
from headrace.replay.journal.committer import Committer
from headrace.replay.journal.file import FileJournal
from headrace.replay.state_metrics import StateMetrics
from headrace.replay.workers import Workers
from headrace.v1 import feeder_pb2
from headrace.v1 import journal_pb2 as journal


class Measured:
    """A world beside a replay buffer's metrics."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.registry = CollectorRegistry()
        self.events = EventMetrics(self.registry)
        self.journal = FileJournal(folder, fsync=False)
        self.committer = Committer(
            self.journal, durable_position=0, wall_clock=time.time, observe=self.events.appended
        )
        self.buffer = ReplayBuffer(
            world.ledger,
            world.settings,
            self.committer,
            deadlines=LeaseDeadlines(clock=time.monotonic, lease_s=60),
            workers=Workers(clock=time.monotonic, timeout_s=60),
            stopping=asyncio.Event(),
            observe=self.events.happened,
        )

    def happened(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def state(self, name: str, **labels: str) -> float:
        [family] = [metric for metric in self.read() if metric.name == name]
        [found] = [sample.value for sample in family.samples if sample.labels == labels]
        return float(found)

    def read(self) -> Iterator[Metric]:
        return StateMetrics(self.buffer, self.journal).read()


@pytest.fixture
async def measured(tmp_path: Path) -> AsyncIterator[Measured]:
    made = Measured(World(settings(max_failures=1)), tmp_path / "journal")
    yield made
    made.journal.close()


async def test_prompts_are_counted_by_state_and_those_dropped_by_reason(
    measured: Measured,
) -> None:
    world = measured.world
    world.feed()
    [bad] = world.lease(1)
    world.fail([bad])
    world.generate(1)

    prompts = "headrace_replay_prompts"
    assert measured.state(prompts, state="pending", reason="") == 10
    assert measured.state(prompts, state="finished", reason="") == 1
    assert measured.state(prompts, state="dropped", reason="failed") == 1
    assert measured.state(prompts, state="dropped", reason="stale") == 0
    [family] = [metric for metric in measured.read() if metric.name == prompts]
    assert sum(sample.value for sample in family.samples) == 12
    assert measured.state("headrace_replay_fed") == 12
    assert measured.state("headrace_replay_demand") == 1
    assert measured.state("headrace_replay_regenerated", cause="failed") == 1
    assert measured.state("headrace_replay_regenerated", cause="expired") == 0


async def test_rows_given_by_hand_are_accounted_for_too(measured: Measured) -> None:
    world = measured.world
    world.feed()
    rows = [feeder_pb2.PromptPayload(text="mine")]
    feeding.register_rows(world.ledger, request_id="a", rows=rows)

    assert measured.state("headrace_replay_fed") == 13
    assert measured.state("headrace_replay_balance_ok") == 1
    assert audit(world.ledger, world.settings) == []


async def test_a_balance_that_does_not_hold_is_seen(measured: Measured) -> None:
    measured.world.feed()
    measured.world.ledger.cursor += 1

    assert measured.state("headrace_replay_balance_ok") == 0


async def test_an_open_circuit_is_seen_by_its_cause(measured: Measured) -> None:
    measured.world.ledger.emit(journal.CircuitOpened(cause=WORKERS_FAIL, error="no GPU"))

    assert measured.state("headrace_replay_circuit_open", cause="workers_fail") == 1
    assert measured.state("headrace_replay_circuit_open", cause="filter_budget") == 0


async def test_a_sampled_groups_span_is_observed_once_however_often_it_is_asked_for(
    measured: Measured,
) -> None:
    world = measured.world
    world.feed()
    world.generate()
    for _ in range(3):
        world.sample()
        measured.buffer.commit()

    assert measured.happened("headrace_replay_sampled_span_count") == 4
    assert measured.happened("headrace_replay_sampled_span_bucket", le="1.0") == 4
    assert measured.happened("headrace_journal_events_total", event="batch_sampled") == 1


async def test_tokens_of_responses_under_way_are_counted(measured: Measured) -> None:
    world = measured.world
    world.feed()
    first, second = world.lease(2)
    measured.buffer.commit()
    for ref in (first, second):
        report(world, ref, piece(world, ref.uid, 0, 0, (0, 5)))
    measured.buffer.commit()
    world.expire([first])
    world.lease(1)
    measured.buffer.commit()

    assert measured.happened("headrace_replay_tokens_journaled_total") == 10
    assert measured.happened("headrace_replay_tokens_continued_total") == 5
    assert measured.state("headrace_replay_draft_tokens") == 10
    world.complete([second])
    assert measured.state("headrace_replay_draft_tokens") == 5
    world.expire([first])
    measured.buffer.commit()
    world.settings = settings(max_response_length=4)
    world.lease(1)
    measured.buffer.commit()
    assert measured.happened("headrace_replay_drafts_dropped_total", reason="too_large") == 1


async def test_appends_are_measured_once_they_are_durable(measured: Measured) -> None:
    measured.world.feed()
    measured.buffer.commit()
    events = measured.world.ledger.position
    assert measured.state("headrace_journal_pending_events") == events
    assert measured.happened("headrace_journal_batch_events_count") == 0

    measured.committer.stop()
    await measured.committer.run()

    assert measured.state("headrace_journal_pending_events") == 0
    assert measured.state("headrace_journal_position") == events
    assert measured.happened("headrace_journal_batch_events_sum") == events
    assert measured.happened("headrace_journal_append_seconds_count") == 1
