"""Compaction: so that a restart costs what is live, not what ever was.

The compactor reads the journal as a restart would, on a thread of its own, and leaves a base
behind; the running ledger then forgets what the base forgot. Rules never look at groups that
settled long ago, so nobody notices.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from headrace.config.config import Config
from headrace.replay.base import to_base
from headrace.replay.buffer import ReplayBuffer
from headrace.replay.journal.base import Journal
from headrace.replay.load import load_until

FORGET_AT_ONCE = 2000
"""Settled groups; some ten milliseconds."""


@dataclass(frozen=True)
class CompactionSettings:
    """When, and how much stays."""

    every_events: int
    """Events since the last base that call for a new one."""
    keep_settled: int
    """Settled groups that are remembered one by one."""
    keep_events: int
    """Events before the base that stay readable."""
    keep_uncovered: bool = False
    """Whether groups that a rollback may make live again are remembered, too."""

    @classmethod
    def from_config(cls, config: Config) -> CompactionSettings:
        """Take the compactor's part of the configuration."""
        journal = config.journal
        return cls(
            journal.compact_every,
            journal.keep_settled,
            journal.keep_events,
            keep_uncovered=config.trainer.save_freq > 0,
        )


class Compactor:
    """Keeps the journal short."""

    def __init__(
        self, buffer: ReplayBuffer, journal: Journal, settings: CompactionSettings
    ) -> None:
        self._buffer = buffer
        self._journal = journal
        self._settings = settings

    @property
    def is_due(self) -> bool:
        """Whether enough has happened since the last base; never while a cut is to be written."""
        base = self._journal.base
        since = self._buffer.committer.position - (base.position if base else 0)
        return since >= self._settings.every_events and self._buffer.ledger.snapshot is None

    async def compact(self) -> int:
        """Write a base at the last durable position; returns that position.

        Raises:
            WriterFencedError, OSError: the journal refused.

        """
        position = self._buffer.committer.position
        async with self._buffer.journal_reader:
            await asyncio.to_thread(self._write_base, position)
        await self._forget()
        return position

    async def _forget(self) -> None:
        """Have the running ledger forget what the base forgot, a slice in each turn."""
        while True:
            forgotten = self._buffer.ledger.groups.forget_settled(
                self._settings.keep_settled,
                keep_uncovered=self._settings.keep_uncovered,
                most=FORGET_AT_ONCE,
            )
            if forgotten < FORGET_AT_ONCE:
                return
            await asyncio.sleep(0)

    def _write_base(self, position: int) -> None:
        ledger = load_until(self._journal, position)
        base = to_base(
            ledger,
            keep_settled=self._settings.keep_settled,
            keep_uncovered=self._settings.keep_uncovered,
        )
        self._journal.write_base(base)
        self._journal.trim(position - self._settings.keep_events)
