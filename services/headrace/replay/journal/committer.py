"""The committer: many handlers, one append at a time, and nobody answered too early.

Handlers enqueue records in the turn that changed the ledger, and then wait for `durable`.
One task takes all that is enqueued, appends it in one write, and lets the waiters go. A waiter
that is cancelled disturbs nobody. If an append fails the committer is broken for good: memory is
ahead of the journal, so the process must end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from headrace.replay.journal.base import Journal
from headrace.v1 import journal_pb2


class CommitFailedError(Exception):
    """An append failed; the process is to end. `__cause__` says why."""


def _unobserved(event_count: int, seconds: float) -> None:
    """Do nothing."""


class Committer:
    """Group commit over a journal. Used on one event loop.

    Args:
        journal: Where events go.
        durable_position: The last position that is there.
        wall_clock: Seconds since 1970, for the events.
        observe: Told of each append: its events, its seconds.
        now: Seconds of a monotonic clock.

    """

    def __init__(
        self,
        journal: Journal,
        *,
        durable_position: int,
        wall_clock: Callable[[], float],
        observe: Callable[[int, float], None] = _unobserved,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal = journal
        self._wall_clock = wall_clock
        self._observe = observe
        self._now = now
        self._queue: list[journal_pb2.JournalRecord] = []
        self._wanted = asyncio.Event()
        self._advanced = asyncio.Event()
        self.position = durable_position
        """Everything up to here is durable."""
        self.failure: Exception | None = None
        self._stopping = False

    def enqueue(self, records: Sequence[journal_pb2.JournalRecord]) -> None:
        """Take records to be written, in order."""
        if not records:
            return
        now = self._wall_clock()
        for record in records:
            record.unix_time_s = now
        self._queue.extend(records)
        self._wanted.set()

    async def durable(self, position: int) -> None:
        """Wait until everything up to the position is durable.

        Raises:
            CommitFailedError: it never will be.

        """
        while self.position < position:
            if self.failure is not None:
                raise CommitFailedError(str(self.failure)) from self.failure
            await self._advanced.wait()

    async def run(self) -> None:
        """Write what is enqueued, until `stop` was called and nothing is left.

        Raises:
            CommitFailedError: an append failed.

        """
        # One thread of its own: a pool would wake another one for each append.
        thread = ThreadPoolExecutor(1, thread_name_prefix="committer")
        try:
            while self._queue or not self._stopping:
                await self._wanted.wait()
                self._wanted.clear()
                batch, self._queue = self._queue, []
                if batch:
                    await self._append(batch, thread)
        finally:
            thread.shutdown(wait=False)

    async def _append(self, batch: list[journal_pb2.JournalRecord], thread: Executor) -> None:
        begun = self._now()
        loop = asyncio.get_running_loop()
        try:
            _check_succession(self.position, batch)
            await loop.run_in_executor(thread, self._journal.append, batch)
        except Exception as error:
            # Whatever it was, nobody may be answered any more.
            self.failure = error
            self._let_go()
            raise CommitFailedError(str(error)) from error
        self.position = batch[-1].position
        self._let_go()
        self._observe(len(batch), self._now() - begun)

    def stop(self) -> None:
        """Let `run` end when everything is written."""
        self._stopping = True
        self._wanted.set()

    def _let_go(self) -> None:
        waiters, self._advanced = self._advanced, asyncio.Event()
        waiters.set()


def _check_succession(position: int, batch: Sequence[journal_pb2.JournalRecord]) -> None:
    """Refuse a hole: an event that broke off half-way moved the ledger on and left no record.

    Raises:
        ValueError: the batch does not go on after the position. Written, it would make the
            journal unreadable; a restart does without the half.

    """
    for record in batch:
        position += 1
        if record.position != position:
            msg = f"event {record.position} cannot follow event {position - 1}"
            raise ValueError(msg)
