"""Snapshots over real gRPC, on both journals: what is cut while everything goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from journals import OpenJournal, journals
from ledger_resumes import replayed
from ledger_world import settings
from replay_server import Replay, replay_server

from headrace.errors import (
    CannotResumeError,
    InvalidFieldError,
    SnapshotFailedError,
    SnapshotLostError,
    StepOutOfOrderError,
    TrainerFencedError,
    WireError,
)
from headrace.replay.base import from_base, to_base
from headrace.replay.compactor import CompactionSettings, Compactor
from headrace.replay.cut_file import read_cut
from headrace.rpc.status import error_from
from headrace.v1 import journal_pb2, resume_pb2
from headrace.v1 import replay_pb2 as pb

RULES = settings(window_size=8, saves=True)
COMPACTION = CompactionSettings(every_events=5, keep_settled=6, keep_events=0, keep_uncovered=True)


@pytest.fixture(params=["file", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenJournal]:
    with journals(request.param, tmp_path / "journal") as opens:
        yield opens


async def refused(call: Awaitable[Any]) -> WireError | None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return error_from(failed.value)


def events_until(replay: Replay, journal: Any, position: int) -> list[journal_pb2.JournalRecord]:
    assert replay.buffer.committer.position >= position
    return [record for record in journal.replay() if record.position <= position]


async def test_the_cut_is_exactly_the_ledger_at_its_position_while_everything_goes_on(
    opened: OpenJournal, tmp_path: Path
) -> None:
    journal = opened()
    async with replay_server(journal, RULES) as replay:
        trainer = await replay.begin()
        await replay.train(trainer, 1, 2)
        replay.buffer.cut_keeps_settled = 1000

        async def traffic() -> None:
            await replay.train(trainer, 3, 6)
            await replay.feed()
            await replay.lease(3, worker="late", version=6)

        working = asyncio.ensure_future(replay.lease(1, version=2))
        cutting = asyncio.ensure_future(replay.begin_cut(trainer, 2))
        cut, _ = await asyncio.gather(cutting, working)
        part, *_ = await asyncio.gather(replay.write_cut(f"file://{tmp_path}/step"), traffic())
        base = read_cut(part)
        assert base.position == cut.position < replay.buffer.ledger.position
        assert from_base(base).groups.to_counts() == cut.counts
        expected = replayed(events_until(replay, journal, cut.position))
        assert base == to_base(expected, keep_settled=1000, keep_uncovered=True)
        assert list(cut.lineages) == list(base.lineages)
        assert cut.data_fingerprint == "f"
        # Written again, later, it is byte for byte the same.
        again = await replay.write_cut(f"file://{tmp_path}/step")
        assert [f.sha256 for f in again.files] == [f.sha256 for f in part.files]


async def test_beginning_and_ending_a_cut_twice_answers_as_the_first_time(
    opened: OpenJournal, tmp_path: Path
) -> None:
    async with replay_server(opened(), RULES) as replay:
        trainer = await replay.begin()
        await replay.train(trainer, 1, 2)
        first = await replay.begin_cut(trainer, 2)
        await replay.train(trainer, 3, 3)
        position = replay.buffer.ledger.position
        assert await replay.begin_cut(trainer, 2) == first
        await replay.write_cut(f"file://{tmp_path}/step")
        assert replay.buffer.ledger.position == position
        await replay.end_cut(2)
        position = replay.buffer.ledger.position
        await replay.end_cut(2)
        assert replay.buffer.ledger.position == position
        assert (await replay.status()).saved_step == 2


async def test_what_may_not_be_cut_or_is_lost_is_refused_by_name(
    opened: OpenJournal, tmp_path: Path
) -> None:
    uri = f"file://{tmp_path}/step"
    async with replay_server(opened(), RULES) as replay:
        trainer = await replay.begin()
        assert isinstance(await refused(replay.begin_cut(trainer, 0)), StepOutOfOrderError)
        await replay.train(trainer, 1, 1)
        assert isinstance(await refused(replay.begin_cut(trainer, 2)), StepOutOfOrderError)
        assert isinstance(await refused(replay.begin_cut(trainer + 1, 1)), TrainerFencedError)
        assert isinstance(await refused(replay.begin_cut(trainer, 1, "")), InvalidFieldError)
        assert isinstance(await refused(replay.write_cut(uri)), SnapshotLostError)
        await replay.begin_cut(trainer, 1)
        assert isinstance(await refused(replay.write_cut(uri, "other")), SnapshotLostError)
        assert isinstance(await refused(replay.write_cut("")), InvalidFieldError)
        blocked = tmp_path / "a-file"
        blocked.write_text("")
        error = await refused(replay.write_cut(f"file://{blocked}/step"))
        assert isinstance(error, SnapshotFailedError)
        assert "a-file" in str(error)
        await replay.sample(trainer, 2)
        assert isinstance(await refused(replay.begin_cut(trainer, 1, "next")), StepOutOfOrderError)
        store = pb.RegisterStoreRequest(store_incarnation="s2", follows="s1", capacity_bytes=10**9)
        await replay.stub.RegisterStore(store)
        assert isinstance(await refused(replay.write_cut(uri)), SnapshotLostError)
        assert not (await replay.status()).HasField("snapshot")


async def test_the_journal_is_not_compacted_over_a_cut(opened: OpenJournal, tmp_path: Path) -> None:
    journal = opened()
    async with replay_server(journal, RULES) as replay:
        compactor = Compactor(replay.buffer, journal, COMPACTION)
        trainer = await replay.begin()
        await replay.train(trainer, 1, 2)
        assert compactor.is_due
        compacting = asyncio.ensure_future(compactor.compact())
        cut = await replay.begin_cut(trainer, 2)
        assert await compacting <= cut.position
        await replay.train(trainer, 3, 6)
        assert not compactor.is_due
    async with replay_server(opened(), RULES) as replay:
        compactor = Compactor(replay.buffer, journal, COMPACTION)
        assert not compactor.is_due, "a restart knows of the cut, too"
        part = await replay.write_cut(f"file://{tmp_path}/step")
        assert read_cut(part).position == cut.position
        await replay.end_cut(2)


async def test_after_a_snapshot_the_journal_is_compacted_and_can_still_be_gone_back_in(
    opened: OpenJournal, tmp_path: Path
) -> None:
    journal = opened()
    async with replay_server(journal, RULES) as replay:
        trainer = await replay.begin()
        await replay.train(trainer, 1, 2)
        await replay.begin_cut(trainer, 2)
        await replay.write_cut(f"file://{tmp_path}/step")
        await replay.end_cut(2)
        await replay.train(trainer, 3, 8)
        compactor = Compactor(replay.buffer, journal, COMPACTION)
        assert compactor.is_due
        await compactor.compact()
    async with replay_server(opened(), RULES) as replay:
        trainer = await replay.begin_resume(2)
        await replay.until_phase(trainer, 2, resume_pb2.RESUME_PHASE_OPEN)
        assert replay.buffer.ledger.resume is not None
        assert replay.buffer.ledger.resume.untrained_count == 24
        await replay.train(trainer, 3, 9)
        assert list((await replay.stub.Audit(pb.AuditRequest())).violations) == []


# -- the journal is lost


async def saved(opened: OpenJournal, uri: str) -> tuple[resume_pb2.CheckpointPart, Any]:
    """Train three steps, save the second; the ledger's part, and its status then."""
    async with replay_server(opened(), RULES) as replay:
        trainer = await replay.begin()
        await replay.train(trainer, 1, 2)
        status = await replay.status()
        await replay.begin_cut(trainer, 2)
        part = await replay.write_cut(uri)
        await replay.end_cut(2)
        await replay.train(trainer, 3, 3)
        return part, status


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_lost_journal_is_restored_from_the_cut(
    opened: OpenJournal,
    tmp_path: Path,
    restarts: bool,
) -> None:
    part, before = await saved(opened, f"file://{tmp_path}/step")
    empty = tmp_path / "empty"
    async with replay_server(empty, RULES) as replay:
        await replay.stub.OpenFeed(pb.OpenFeedRequest(row_count=1000, fingerprint="f"))
        assert await replay.feed() == 8
        assert (await replay.status()).fresh
        trainer = await replay.begin_resume(2)
        await replay.to_ledger()
        answer = await replay.roll_back(cut=part, restore=True)
        position = replay.buffer.ledger.position
        again = await replay.roll_back(cut=part, restore=True)
        assert (again, replay.buffer.ledger.position) == (answer, position)
        assert answer.state.restored
    if not restarts:
        return
    async with replay_server(empty, RULES) as replay:
        now = await replay.status()
        assert (now.cursor, now.committed_step, now.counts) == (
            before.cursor,
            before.committed_step,
            before.counts,
        )
        store = pb.RegisterStoreRequest(store_incarnation="s1", capacity_bytes=10**9)
        await replay.stub.RegisterStore(store)
        await replay.advance(resume_pb2.RESUME_PHASE_WEIGHTS)
        await replay.publish(trainer, 2)
        await replay.lease_with(replay.weights(2))
        for phase in (resume_pb2.RESUME_PHASE_REISSUE, resume_pb2.RESUME_PHASE_WARMUP):
            await replay.advance(phase)
        await replay.feed()
        assert not (await replay.advance(resume_pb2.RESUME_PHASE_OPEN)).blocked_by
        await replay.train(trainer, 3, 5)
        located = await replay.stub.LocatePrompt(pb.LocatePromptRequest(uid="e0r9"))
        assert located.history[0].name == "ledger_restored"
        assert list((await replay.stub.Audit(pb.AuditRequest())).violations) == []


@pytest.mark.parametrize(("steps", "is_taken"), [(2, True), (3, True), (1, False)])
async def test_a_restored_run_is_as_long_as_it_is_configured_now(
    tmp_path: Path, *, steps: int, is_taken: bool
) -> None:
    with journals("file", tmp_path / "journal") as opens:
        part, before = await saved(opens, f"file://{tmp_path}/step")
    async with replay_server(tmp_path / "empty", replace(RULES, total_steps=steps)) as replay:
        await replay.stub.OpenFeed(pb.OpenFeedRequest(row_count=1000, fingerprint="f"))
        await replay.begin_resume(2)
        await replay.to_ledger()
        await replay.roll_back(cut=part, restore=True)
        now = await replay.status()
        assert now.total_steps == (steps if is_taken else before.total_steps)
        assert (now.committed_step, now.cursor) == (2, before.cursor)


@pytest.mark.parametrize(
    ("rules", "step", "said"),
    [
        (RULES, 1, "step 2, not of run r, step 1"),
        (settings(window_size=8, saves=True, n=3), 2, "rollout.n"),
        (settings(window_size=8, saves=True, batch_size=2), 2, "data.train_batch_size"),
        (settings(window_size=8, saves=True, basis="fed"), 2, "sampler.basis"),
    ],
)
async def test_a_cut_of_something_else_is_refused(
    tmp_path: Path, rules: Any, step: int, said: str
) -> None:
    with journals("file", tmp_path / "journal") as opens:
        part, _ = await saved(opens, f"file://{tmp_path}/step")
    async with replay_server(tmp_path / "empty", rules) as replay:
        await replay.begin_resume(step)
        await replay.to_ledger()
        error = await refused(replay.roll_back(cut=part, restore=True))
        assert isinstance(error, CannotResumeError)
        assert said in str(error)
        assert not replay.buffer.ledger.resume or not replay.buffer.ledger.resume.restored


async def test_a_cut_of_a_line_that_was_left_is_refused(tmp_path: Path) -> None:
    async with replay_server(tmp_path / "journal", RULES) as replay:
        trainer = await replay.begin()
        parts = {}
        for step in (1, 2):
            await replay.train(trainer, step, step)
            await replay.begin_cut(trainer, step, f"of {step}")
            parts[step] = await replay.write_cut(f"file://{tmp_path}/{step}", f"of {step}")
        trainer = await replay.begin_resume(1)
        await replay.until_phase(trainer, 1, resume_pb2.RESUME_PHASE_OPEN)
        await replay.train(trainer, 2, 2)
        await replay.begin_resume(2, "another")
        await replay.to_ledger("another")
        error = await refused(replay.roll_back(cut=parts[2], name="another", store="s2"))
        assert isinstance(error, CannotResumeError)
        assert "line l0, step 2" in str(error)
        await replay.begin_resume(1, "third")
        error = await refused(replay.roll_back(cut=parts[2], name="third", store="s2"))
        assert isinstance(error, CannotResumeError)
        assert (await replay.roll_back(cut=parts[1], name="third", store="s2")).state.lineage
