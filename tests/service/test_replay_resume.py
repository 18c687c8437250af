"""Resumes over real gRPC, on both journals: made twice, refused by name, and gone on with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from journals import OpenJournal, journals
from ledger_world import settings
from replay_server import Replay, replay_server

from headrace.errors import (
    CannotResumeError,
    InvalidFieldError,
    ResumeLostError,
    StepNotCompleteError,
    StoreFencedError,
    TrainerFencedError,
    WeightsUnknownError,
    WireError,
)
from headrace.replay.settings import LedgerSettings
from headrace.rpc.status import error_from
from headrace.v1 import prompt_pb2, resume_pb2
from headrace.v1 import replay_pb2 as pb

STORE = resume_pb2.RESUME_PHASE_STORE
LEDGER = resume_pb2.RESUME_PHASE_LEDGER
WEIGHTS = resume_pb2.RESUME_PHASE_WEIGHTS
REISSUE = resume_pb2.RESUME_PHASE_REISSUE
WARMUP = resume_pb2.RESUME_PHASE_WARMUP
OPEN = resume_pb2.RESUME_PHASE_OPEN

RULES = settings(window_size=8, saves=True)


@pytest.fixture(params=["file", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenJournal]:
    with journals(request.param, tmp_path / "journal") as opens:
        yield opens


async def refused(call: Awaitable[Any]) -> WireError | None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return error_from(failed.value)


async def begun(replay: Replay, *, steps: int = 3, step: int = 1) -> int:
    """Train, have the trainer die, and begin to go back; gives the new trainer."""
    first = await replay.begin()
    await replay.train(first, 1, steps)
    return await replay.begin_resume(step)


async def test_a_resume_goes_through_its_phases_while_workers_and_feeder_wait(
    opened: OpenJournal,
) -> None:
    async with replay_server(opened(), RULES) as replay:
        trainer = await begun(replay)
        sampling = asyncio.ensure_future(replay.sample(trainer, 2, wait_s=30))
        old = replay.weights(3)
        assert (await replay.advance(STORE)).state.phase == STORE
        assert (await replay.advance(LEDGER)).state.phase == LEDGER
        blocked = await replay.advance(WEIGHTS)
        assert (blocked.state.phase, blocked.blocked_by) == (LEDGER, "the ledger to be rolled back")
        state = (await replay.roll_back()).state
        assert (state.step, state.untrained_count, state.parent) == (1, 8, "l0")
        assert (await replay.advance(WEIGHTS)).state.phase == WEIGHTS
        assert isinstance(await refused(replay.lease_with(old)), WeightsUnknownError)
        await replay.publish(trainer, 1)
        blocked = await replay.advance(REISSUE)
        assert blocked.blocked_by == f"a worker to load weights {state.lineage} v1"
        advancing = asyncio.ensure_future(replay.advance(REISSUE, wait_s=30))
        answer = await replay.lease_with(replay.weights(1))
        assert "being resumed" in answer.blocked_by
        assert not answer.leases
        assert (await advancing).state.phase == REISSUE
        assert (await replay.advance(WARMUP)).state.phase == WARMUP
        assert (await replay.advance(OPEN)).state.phase == OPEN
        assert (await sampling).status == pb.SAMPLE_STATUS_READY
        times = (await replay.advance(OPEN)).state.phase_times
        assert set(times) >= {"store", "ledger", "weights", "reissue", "warmup", "open"}
        assert (await replay.stub.Audit(pb.AuditRequest())).ok


async def test_a_worker_that_waits_is_told_of_the_weights_of_the_new_line_at_once(
    opened: OpenJournal,
) -> None:
    async with replay_server(opened(), RULES) as replay:
        trainer = await begun(replay)
        await replay.to_ledger()
        await replay.roll_back()
        waiting = asyncio.ensure_future(
            replay.lease_with(prompt_pb2.WeightsId(lineage="l0", version=1), wait_s=30)
        )
        await asyncio.sleep(0)
        await replay.advance(WEIGHTS)
        await replay.publish(trainer, 1)
        answer = await waiting
        assert answer.latest_weights.id == replay.weights(1)
        assert not answer.leases


async def test_the_window_fills_up_before_the_run_is_open(opened: OpenJournal) -> None:
    async with replay_server(opened(), RULES) as replay:
        trainer = await begun(replay, steps=2, step=2)
        replay.buffer.settings = settings(window_size=12, saves=True)
        await replay.to_reissue(trainer, 2)
        assert await replay.feed() == 0, "nothing is fed before WARMUP"
        await replay.advance(WARMUP)
        opening = asyncio.ensure_future(replay.advance(OPEN, wait_s=30))
        assert await replay.feed(wait_s=10) == 4
        state = (await opening).state
        assert (state.phase, state.topped_up_count) == (OPEN, 4)


async def test_rows_that_the_store_lacks_are_reported_by_their_keys(opened: OpenJournal) -> None:
    async with replay_server(opened(), RULES) as replay:
        trainer = await begun(replay, steps=1)
        await replay.to_reissue(trainer, 1)
        keys = await replay.keys()
        assert len(keys) == 16
        lost = [key for key in keys if key.startswith(("e0r4_", "e0r5_0"))]
        count = await replay.report_lost([*lost, "e0r0_0_0_l0a1", "e9r9_0_0_l0a1"])
        assert count == 2
        assert len(await replay.keys()) == 13
        counts = replay.buffer.ledger.groups.to_counts()
        assert (counts.pending, counts.finished) == (2, 6)
        assert isinstance(await refused(replay.report_lost(["?"])), InvalidFieldError)


async def test_keys_are_listed_a_page_at_a_time(
    opened: OpenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.replay.service.coordinator.KEYS_PER_PAGE", 3)
    async with replay_server(opened(), RULES) as replay:
        await begun(replay, steps=1)
        ledger = replay.buffer.ledger
        keys = await replay.keys()
        uids = [group.uid for group in ledger.groups if group.sessions and not group.step]
        assert keys == [f"{uid}_{session}_0_l0a1" for uid in uids for session in (0, 1)]
        request = pb.ListTrajectoriesRequest(page_token="x")
        assert isinstance(await refused(replay.stub.ListTrajectories(request)), InvalidFieldError)


# -- refused by name


async def test_another_resume_and_an_old_trainer_are_refused(opened: OpenJournal) -> None:
    async with replay_server(opened(), RULES) as replay:
        await begun(replay)
        await replay.to_ledger()
        calls: list[Callable[[str], Awaitable[Any]]] = [
            lambda name: replay.advance(WEIGHTS, name=name),
            lambda name: replay.roll_back(name=name),
            lambda name: replay.report_lost([], name=name),
        ]
        for call in calls:
            assert isinstance(await refused(call("other")), ResumeLostError)
        begin = pb.BeginResumeRequest(resume_id="late", incarnation=1, step=1)
        assert isinstance(await refused(replay.stub.BeginResume(begin)), TrainerFencedError)
        await replay.stub.RegisterTrainer(pb.RegisterTrainerRequest(trainer_id="t9"))
        for call in calls:
            assert isinstance(await refused(call("resume")), ResumeLostError)
        position = replay.buffer.ledger.position
        for request in (
            replay.stub.CommitStep(pb.CommitStepRequest(incarnation=1, step=3)),
            replay.stub.EndRun(pb.EndRunRequest(incarnation=1)),
            replay.sample(1, 4),
            replay.publish(1, 3),
        ):
            assert isinstance(await refused(request), TrainerFencedError)
        assert replay.buffer.ledger.position == position


async def test_what_cannot_be_gone_back_to_is_said(opened: OpenJournal, tmp_path: Path) -> None:
    async with replay_server(opened(), RULES) as replay:
        await begun(replay, steps=1, step=7)
        await replay.to_ledger()
        error = await refused(replay.roll_back())
        assert isinstance(error, CannotResumeError)
        assert "committed 1 only" in str(error)
        part = resume_pb2.CheckpointPart(
            name="ledger",
            uri=f"file://{tmp_path}",
            files=[resume_pb2.PartFile(path="ledger.pb", size_bytes=3, sha256="0" * 64)],
        )
        error = await refused(replay.roll_back(cut=part))
        assert isinstance(error, CannotResumeError)
        assert "ledger.pb is missing" in str(error)
        (tmp_path / "ledger.pb").write_bytes(b"abc")
        error = await refused(replay.roll_back(cut=part, restore=True))
        assert "SHA-256" in str(error)
        assert isinstance(await refused(replay.roll_back(restore=True)), InvalidFieldError)
        assert isinstance(await refused(replay.roll_back(store="")), InvalidFieldError)
        wrong = replay.advance(OPEN)
        assert isinstance(await refused(wrong), InvalidFieldError)
        assert replay.buffer.ledger.lineage == "l0"


async def test_no_time_line_is_opened_on_a_life_of_the_store_that_is_over(
    opened: OpenJournal,
) -> None:
    async with replay_server(opened(), RULES) as replay:
        await begun(replay, step=0)
        await replay.to_ledger()
        store = pb.RegisterStoreRequest(store_incarnation="s3", follows="s1", capacity_bytes=10**9)
        await replay.stub.RegisterStore(store)
        before = replay.buffer.ledger.position

        for late, follows in (("s1", ""), ("s1", "s1"), ("s2", "s1")):
            error = await refused(replay.roll_back(store=late, follows=follows, start_over=True))
            assert isinstance(error, StoreFencedError)
        assert replay.buffer.ledger.position == before, "it was not emptied either"

        assert (await replay.roll_back(store="s3", follows="s1")).state.lineage
        after = replay.buffer.ledger.position
        assert (await replay.roll_back(store="s1", follows="s1")).state.lineage
        assert replay.buffer.ledger.position == after, "a repeat changes nothing, however late"
        assert replay.buffer.ledger.store_incarnation == "s3"


async def test_a_run_that_is_not_at_its_end_is_not_ended(opened: OpenJournal) -> None:
    async with replay_server(
        opened(), settings(window_size=8, saves=True, total_steps=2)
    ) as replay:
        trainer = await replay.begin()
        await replay.train(trainer, 1, 1)
        end = pb.EndRunRequest(incarnation=trainer)
        assert isinstance(await refused(replay.stub.EndRun(end)), StepNotCompleteError)
        await replay.train(trainer, 2, 2)
        position = replay.buffer.ledger.position
        assert (await replay.stub.EndRun(end)).surplus_count == 0
        assert replay.buffer.ledger.position > position
        commit = pb.CommitStepRequest(incarnation=trainer, step=2)
        assert (await replay.stub.CommitStep(commit)).ended


@pytest.mark.parametrize(("steps", "length"), [(9, 9), (1, 6)])
async def test_a_run_that_goes_back_is_as_long_as_it_is_configured_now(
    opened: OpenJournal, steps: int, length: int
) -> None:
    """The trainer reckons its learning rate by that, and no feeder may have come yet."""
    async with replay_server(
        opened(), settings(window_size=8, saves=True, total_steps=6)
    ) as replay:
        trainer = await begun(replay, steps=3, step=2)
    rules = settings(window_size=8, saves=True, total_steps=steps)
    async with replay_server(opened(), rules) as replay:
        await replay.until_phase(trainer, 2, WEIGHTS)
        assert replay.buffer.ledger.feed.total_steps == length


# -- restarts


@pytest.mark.parametrize(
    "phase", [None, STORE, LEDGER, "rolled back", WEIGHTS, REISSUE, WARMUP, OPEN]
)
async def test_a_restart_of_the_replay_buffer_in_any_phase_goes_on_in_it(
    opened: OpenJournal, phase: Any
) -> None:
    rules: LedgerSettings = settings(window_size=8, saves=True, threshold=2)
    async with replay_server(opened(), rules) as replay:
        trainer = await begun(replay, steps=3, step=2)
        await replay.until_phase(trainer, 2, phase)
        before = await replay.status()
        events = replay.buffer.ledger.position
    async with replay_server(opened(), rules) as replay:
        after = await replay.status()
        assert replay.buffer.ledger.position == events, "a restart decides nothing by itself"
        assert after == before
        await replay.until_phase(trainer, 2, OPEN)
        await replay.train(trainer, 3, 5)
        audit = await replay.stub.Audit(pb.AuditRequest())
        assert list(audit.violations) == []
        lineages = replay.buffer.ledger.lineages
        assert [line.fork_step for line in lineages] == [0, 2]


async def test_a_restart_with_a_smaller_threshold_drops_nothing_before_its_time(
    opened: OpenJournal,
) -> None:
    async with replay_server(opened(), RULES) as replay:
        trainer = await begun(replay, steps=3, step=2)
        await replay.until_phase(trainer, 2, REISSUE)
        position = replay.buffer.ledger.position
    async with replay_server(opened(), settings(window_size=8, saves=True, threshold=1)) as replay:
        assert replay.buffer.ledger.position == position
        state = (await replay.advance(WARMUP)).state
        assert state.dropped_count > 0
        dropped = replay.buffer.ledger.groups.to_counts().dropped
        assert dict(dropped) == {"stale_at_restore": state.dropped_count}


# -- made twice


async def test_every_call_of_a_resume_made_twice_answers_as_the_first_time(
    opened: OpenJournal,
) -> None:
    async with replay_server(opened(), RULES) as replay:
        trainer = await begun(replay)

        async def twice(call: Callable[[], Awaitable[Any]]) -> None:
            first = await call()
            position = replay.buffer.ledger.position
            assert await call() == first
            assert replay.buffer.ledger.position == position

        begin = pb.BeginResumeRequest(resume_id="resume", incarnation=trainer, step=1)
        await twice(lambda: replay.stub.BeginResume(begin))
        await twice(lambda: replay.advance(STORE))
        await twice(lambda: replay.advance(LEDGER))
        await twice(replay.roll_back)
        await twice(lambda: replay.advance(WEIGHTS))
        await twice(lambda: replay.publish(trainer, 1))
        await replay.lease_with(replay.weights(1))
        await twice(lambda: replay.advance(REISSUE))
        lost = [(await replay.keys())[0]]
        assert [await replay.report_lost(lost) for _ in range(2)] == [1, 0]
        await twice(lambda: replay.advance(WARMUP))
        await twice(lambda: replay.advance(OPEN))
