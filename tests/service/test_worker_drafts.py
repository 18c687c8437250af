"""Responses under way: what a worker reports of them, and how it goes on with another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from worker_scene import World, completed, eventually, made_world

from headrace.config.rollout import ScriptedEngine as ScriptedConfig
from headrace.rollout.engines.base import Response
from headrace.v1 import prompt_pb2, trajectory_pb2

LONG = 400


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with made_world(tmp_path) as made:
        made.ledger.sampling.max_response_length = LONG
        yield made


class Clock:
    """Time that stands still; the test lets tokens and reports come."""

    def __init__(self) -> None:
        self.token = asyncio.Semaphore(0)
        self.look = asyncio.Semaphore(0)
        self.waiting = 0
        """Sessions that wait for a tick."""

    async def engine(self, seconds: float) -> None:
        if seconds:  # loading takes none
            self.waiting += 1
            await self.token.acquire()
            self.waiting -= 1

    async def worker(self, seconds: float) -> None:
        if seconds == 0.5:
            await self.look.acquire()
        else:
            await asyncio.sleep(0)


def slow() -> ScriptedConfig:
    """400 tokens in 40 ticks."""
    return ScriptedConfig(kind="scripted", mean_latency_s=0, token_latency_s=0.005, min_tokens=LONG)


async def grown(world: World, clock: Clock, ticks: int, sessions: int = 1) -> None:
    """Let every session grow by so many ticks."""
    generated = world.worker.engine.status().generated_token_count
    for _ in range(ticks):
        await eventually(lambda: clock.waiting == sessions)
        for _ in range(sessions):
            clock.token.release()
        generated += 10 * sessions
        await eventually(
            lambda: world.worker.engine.status().generated_token_count == generated  # noqa: B023
        )


def reports(world: World) -> list[Any]:
    return [
        (draft.session, draft.offset, len(draft.token_ids))
        for request in world.ledger.requests("RenewLeases")
        for progress in request.progress
        for draft in progress.drafts
    ]


async def test_a_response_is_reported_when_it_has_grown_by_so_many_tokens(world: World) -> None:
    clock, world.ledger.n = Clock(), 1
    await world.publish(0)
    world.ledger.feed("e0r0")
    await world.start(slow(), sleep=clock.engine, pauses=clock.worker, report_every=25)
    await eventually(lambda: world.worker.group_count == 1)

    await grown(world, clock, 2)
    clock.look.release()
    await grown(world, clock, 1)
    assert reports(world) == []
    clock.look.release()
    await eventually(lambda: len(reports(world)) == 1)
    await grown(world, clock, 4)
    clock.look.release()
    await eventually(lambda: len(reports(world)) == 2)

    assert reports(world) == [(0, 0, 29), (0, 29, 40)], "all but the last token"
    [progress] = world.ledger.requests("RenewLeases")[0].progress
    assert (progress.lease.uid, progress.lease.attempt, progress.lineage) == ("e0r0", 1, "main")
    for _ in range(40):
        clock.token.release()
    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))
    [trajectory] = world.store.trajectories.values()
    draft = world.ledger.drafts["e0r0"][0]
    assert list(trajectory.response_token_ids[:69]) == list(draft.token_ids)
    assert list(trajectory.logprobs[:69]) == list(draft.logprobs)


async def test_what_another_worker_has_made_is_gone_on_with_and_counted_once(world: World) -> None:
    world.ledger.drafts["e0r0"] = {
        1: prompt_pb2.Draft(
            session=1,
            token_ids=[5] * 100,
            logprobs=[-0.5] * 100,
            weight_spans=[
                trajectory_pb2.WeightSpan(lineage="before", version=3, begin=0, end=60),
                trajectory_pb2.WeightSpan(lineage="main", version=4, begin=60, end=100),
            ],
        )
    }
    await world.publish(5)
    world.ledger.feed("e0r0")
    await world.start(
        ScriptedConfig(kind="scripted", mean_latency_s=0, min_tokens=LONG), report_every=25
    )
    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))
    await eventually(lambda: not world.worker.group_count)

    fresh, gone_on = sorted(world.store.trajectories.values(), key=lambda each: each.key)
    spans = [(s.lineage, s.version, s.begin, s.end) for s in gone_on.weight_spans]
    assert spans == [("before", 3, 0, 60), ("main", 4, 60, 100), ("main", 5, 100, LONG)]
    assert list(gone_on.response_token_ids[:100]) == [5] * 100
    assert len(gone_on.response_token_ids) == len(gone_on.logprobs) == LONG
    records = {each.record.session: each.record for each in completed(world)}
    assert (records[1].min_version, records[1].max_version) == (3, 5)
    assert (records[0].min_version, records[0].max_version) == (5, 5)
    assert len(fresh.response_token_ids) == LONG
    worker = world.worker
    assert worker.continued_token_count == 100
    assert worker.engine.status().generated_token_count == 2 * LONG - 100
    assert worker.wasted_token_count == 0


async def test_newer_weights_take_over_and_the_record_says_which(world: World) -> None:
    clock, world.ledger.n = Clock(), 1
    await world.publish(0)
    world.ledger.feed("e0r0")
    await world.start(slow(), sleep=clock.engine, pauses=clock.worker, partial=True)
    await eventually(lambda: world.worker.group_count == 1)
    await grown(world, clock, 3)
    await world.publish(1)
    await eventually(lambda: world.worker.weights.current.id.version == 1)  # type: ignore[union-attr]
    for _ in range(40):
        clock.token.release()
    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))

    [record] = [each.record for each in completed(world)]
    assert (record.min_version, record.max_version) == (0, 1)
    [trajectory] = world.store.trajectories.values()
    spans = [(s.version, s.begin, s.end) for s in trajectory.weight_spans]
    assert spans == [(0, 0, 30), (1, 30, LONG)]


async def test_a_worker_that_goes_home_reports_its_last_tokens_and_they_are_not_wasted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.rollout.renewals.LAST_REPORT_S", 20.0)
    clock = Clock()
    await world.publish(0)
    world.ledger.feed("e0r0")
    await world.start(slow(), sleep=clock.engine, pauses=clock.worker, report_every=1000)
    await eventually(lambda: world.worker.group_count == 1)
    await grown(world, clock, 4, sessions=2)
    await world.stop()

    assert sorted(reports(world)) == [(0, 0, 39), (1, 0, 39)]
    assert [each.lease.uid for each in world.ledger.ended_leases] == ["e0r0"]
    assert world.worker.engine.status().aborted_token_count == 80
    assert world.worker.wasted_token_count == 2


async def test_what_the_ledger_does_not_keep_is_sent_again_by_time_alone(world: World) -> None:
    clock, world.ledger.n, world.ledger.keeps = Clock(), 1, 20
    await world.publish(0)
    world.ledger.feed("e0r0")
    await world.start(slow(), sleep=clock.engine, pauses=clock.worker, report_every=25, lease_s=6)
    await eventually(lambda: world.worker.group_count == 1)
    for _ in range(2):
        await grown(world, clock, 3)
        clock.look.release()
        await eventually(lambda: len(world.ledger.requests("RenewLeases")))
    assert reports(world) == [(0, 0, 29)]

    for _ in range(2):  # with the two before, a third of the lease
        clock.look.release()
    await eventually(lambda: len(reports(world)) == 2)

    assert reports(world) == [(0, 0, 29), (0, 20, 39)]
    await world.stop()
    assert world.worker.wasted_token_count == 40


async def test_without_the_journal_of_tokens_nothing_is_reported(world: World) -> None:
    clock, world.ledger.n = Clock(), 1
    await world.publish(0)
    world.ledger.feed("e0r0")
    await world.start(slow(), sleep=clock.engine, lease_s=0.1)
    await eventually(lambda: world.worker.group_count == 1)
    await grown(world, clock, 3)
    await eventually(lambda: len(world.ledger.requests("RenewLeases")) > 1)
    await world.stop()

    assert reports(world) == []
    assert world.worker.wasted_token_count == 30


def test_a_draft_is_copied_and_not_shared() -> None:
    draft = prompt_pb2.Draft(
        token_ids=[1],
        logprobs=[-1.0],
        weight_spans=[trajectory_pb2.WeightSpan(lineage="main", version=1, end=1)],
    )
    response = Response.of(draft)
    response.extend([2], [-2.0], prompt_pb2.WeightsId(lineage="main", version=1))

    assert draft.weight_spans[0].end == 1
    piece = response.stretch(0, 1, 2)
    assert (piece.offset, list(piece.token_ids)) == (1, [2])
    assert [(s.begin, s.end) for s in piece.weight_spans] == [(1, 2)]
