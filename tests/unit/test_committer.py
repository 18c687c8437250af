"""The committer: no waiter is let go before its record is durable, whoever is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.replay.events import to_record
from headrace.replay.journal.committer import CommitFailedError, Committer
from headrace.replay.journal.file import FileJournal
from headrace.v1 import journal_pb2


class HeldJournal(FileJournal):
    """A journal whose appends wait until they are let go, or fail when told to."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, fsync=False)
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.error: Exception | None = None
        self.batches: list[int] = []

    def append(self, records: Sequence[journal_pb2.JournalRecord]) -> None:
        self.begun.release()
        self.go.acquire()
        if self.error:
            raise self.error
        self.batches.append(len(records))
        super().append(records)


def record(position: int) -> journal_pb2.JournalRecord:
    return to_record(journal_pb2.CreditAdded(request_id=str(position)), position)


async def started(journal: HeldJournal) -> tuple[Committer, asyncio.Task[None]]:
    committer = Committer(journal, durable_position=0, wall_clock=lambda: 1.0)
    return committer, asyncio.create_task(committer.run())


async def test_nobody_is_answered_before_the_journal_acknowledges(tmp_path: Path) -> None:
    journal = HeldJournal(tmp_path)
    committer, running = await started(journal)
    committer.enqueue([record(1)])
    waiting = asyncio.create_task(committer.durable(1))
    await asyncio.to_thread(journal.begun.acquire)
    assert not waiting.done()
    journal.go.release()
    await waiting
    assert committer.position == 1
    committer.stop()
    await running


async def test_what_comes_during_an_append_is_written_in_one_next_append(tmp_path: Path) -> None:
    journal = HeldJournal(tmp_path)
    committer, running = await started(journal)
    committer.enqueue([record(1)])
    await asyncio.to_thread(journal.begun.acquire)
    for position in range(2, 7):
        committer.enqueue([record(position)])
    journal.go.release(2)
    await committer.durable(6)
    assert journal.batches == [1, 5]
    committer.stop()
    await running


async def test_a_cancelled_caller_does_not_hurt_the_committer(tmp_path: Path) -> None:
    journal = HeldJournal(tmp_path)
    committer, running = await started(journal)
    committer.enqueue([record(1)])
    cancelled = asyncio.create_task(committer.durable(1))
    await asyncio.to_thread(journal.begun.acquire)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    committer.enqueue([record(2)])
    journal.go.release(2)
    await committer.durable(2)
    assert [r.position for r in journal.replay()] == [1, 2]
    committer.stop()
    await running


async def test_after_a_failed_append_nobody_is_answered_any_more(tmp_path: Path) -> None:
    journal = HeldJournal(tmp_path)
    committer, running = await started(journal)
    committer.enqueue([record(1)])
    waiting = asyncio.create_task(committer.durable(1))
    await asyncio.to_thread(journal.begun.acquire)
    journal.error = OSError(28, "No space left on device")
    journal.go.release()
    with pytest.raises(CommitFailedError, match="No space left"):
        await waiting
    with pytest.raises(CommitFailedError):
        await running
    with pytest.raises(CommitFailedError):
        await committer.durable(1)


async def test_a_hole_in_the_positions_is_never_written(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=False)
    committer = Committer(journal, durable_position=0, wall_clock=lambda: 1.0)
    running = asyncio.create_task(committer.run())
    committer.enqueue([record(1)])
    await committer.durable(1)
    committer.enqueue([record(2), record(4)])
    with pytest.raises(CommitFailedError, match="event 4 cannot follow event 2"):
        await committer.durable(4)
    with pytest.raises(CommitFailedError):
        await running
    assert [r.position for r in journal.replay()] == [1]


async def test_stopping_writes_what_was_enqueued(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=True)
    committer = Committer(journal, durable_position=0, wall_clock=lambda: 1.0)
    committer.enqueue([record(1), record(2)])
    committer.stop()
    await committer.run()
    assert [r.unix_time_s for r in journal.replay()] == [1.0, 1.0]
