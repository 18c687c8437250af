"""The replay buffer: a ledger, its journal, and everybody who waits for it to change.

Every handler changes the ledger in one uninterrupted turn of the event loop and calls `commit`;
its answer leaves only after `settled`. Long polls look again whenever something changed.
Knows nothing of the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from headrace.errors import NotReadyError, WriterFencedError
from headrace.replay import leasing, resuming
from headrace.replay.deadlines import LeaseDeadlines
from headrace.replay.dropping import drop_stale
from headrace.replay.journal.committer import CommitFailedError, Committer
from headrace.replay.ledger import Ledger
from headrace.replay.peers import Peers
from headrace.replay.polls import Alike, LongPolls, Look, unlike_others
from headrace.replay.settings import LedgerSettings
from headrace.replay.workers import Workers
from headrace.v1 import journal_pb2

_T = TypeVar("_T")

Observe: TypeAlias = Callable[[Ledger, Sequence[journal_pb2.JournalRecord]], None]
"""Told of the events of each turn, once the ledger has applied them."""


def _unobserved(ledger: Ledger, records: Sequence[journal_pb2.JournalRecord]) -> None:
    """Do nothing."""


class ReplayBuffer:
    """Binds the ledger to the journal and to time."""

    def __init__(
        self,
        ledger: Ledger,
        settings: LedgerSettings,
        committer: Committer,
        *,
        deadlines: LeaseDeadlines,
        workers: Workers,
        stopping: asyncio.Event,
        observe: Observe = _unobserved,
    ) -> None:
        self.ledger = ledger
        self.settings = settings
        self.committer = committer
        self.deadlines = deadlines
        self.workers = workers
        self.stopping = stopping
        self.store_held_bytes = 0
        """What the store last said it holds."""
        self.journal_reader = asyncio.Lock()
        """Held by whoever reads the journal as a restart would: compaction, or a cut."""
        self.cut_keeps_settled = 0
        """Settled groups that a cut holds one by one, beside those that a rollback may need."""
        self.phase_times: dict[str, float] = {}
        """When the phases of the resume `phases_of` began, Unix seconds; for people."""
        self.phases_of = ""
        self.peers = Peers()
        """Where the others listen."""
        self._observe = observe
        self._polls = LongPolls(asked=self.commit, stopping=stopping)

    def take_up(self) -> None:
        """Go on from the ledger that was loaded, by this life's settings: T may be smaller now.

        A resume that is under way drops what is stale itself, when it comes to that.
        """
        resume = self.ledger.resume
        if self.settings.drops and (resume is None or resume.phase >= resuming.WARMUP):
            drop_stale(self.ledger, self.settings, self.ledger.current_step)
        self.commit()

    def commit(self) -> None:
        """Hand this turn's events to the journal and wake whoever waits."""
        records = self.ledger.take_events()
        if records:
            self.committer.enqueue(records)
            self._observe(self.ledger, records)
            self.wake()

    def wake(self) -> None:
        """Let all long polls look again."""
        self._polls.wake()

    async def settled(self) -> None:
        """Wait until everything the ledger holds now is durable.

        Raises:
            WriterFencedError: a newer replay buffer owns the run.
            NotReadyError: the journal failed; this process is about to end.

        """
        await self.durable(self.ledger.position)

    async def durable(self, position: int) -> int:
        """Wait until everything up to a position is durable; give the last position that is.

        Raises:
            WriterFencedError, NotReadyError: as `settled`.

        """
        try:
            await self.committer.durable(position)
        except CommitFailedError as error:
            if isinstance(error.__cause__, WriterFencedError):
                raise error.__cause__ from error
            raise NotReadyError(
                f"the journal failed ({error}); the replay buffer is stopping"
            ) from error
        return self.committer.position

    async def until(self, look: Look[_T], wait_s: float, alike: Alike = unlike_others) -> _T | None:
        """Look, and look again after every change, until there is an answer or time is up.

        `look` may change the ledger; what it returns in the end is returned. See `LongPolls`.
        """
        return await self._polls.until(look, wait_s, alike)

    def expire_leases(self) -> list[str]:
        """Take back leases that ran out; name their prompts."""
        expired = self.deadlines.expired(self.ledger.groups.running)
        if expired:
            leasing.expire(self.ledger, self.settings, expired)
            self.commit()
        return expired
