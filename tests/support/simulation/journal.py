"""A journal in memory, and the committer before it: what is enqueued is not durable yet."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.errors import WriterFencedError
from headrace.v1 import journal_pb2


class MemoryJournal:
    """What the disk has. Outlives the replay buffer, unless it is lost."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        """Of the positions from `first_position` on."""
        self.first_position = 1
        self.writer_epoch = 0
        self.torn_bytes = 0
        self.base_bytes = b""
        self._base: journal_pb2.LedgerBase | None = None

    @property
    def base(self) -> journal_pb2.LedgerBase | None:
        """The newest base, read from its bytes."""
        if not self.base_bytes:
            return None
        return journal_pb2.LedgerBase.FromString(self.base_bytes)

    @property
    def position(self) -> int:
        """The last durable position."""
        return self.first_position - 1 + len(self.records)

    def write_base(self, base: journal_pb2.LedgerBase) -> None:
        """Keep the base."""
        self.base_bytes = base.SerializeToString(deterministic=True)

    def trim(self, before_position: int) -> None:
        """Let go of what is in the base."""
        count = max(0, before_position - self.first_position)
        del self.records[:count]
        self.first_position += count

    def replay(self, after_position: int = 0) -> Iterator[journal_pb2.JournalRecord]:
        """Read the durable records after a position."""
        for data in self.records[max(0, after_position + 1 - self.first_position) :]:
            yield journal_pb2.JournalRecord.FromString(data)

    def read(self, positions: Sequence[int]) -> list[journal_pb2.JournalRecord]:
        """Read single records."""
        return [
            journal_pb2.JournalRecord.FromString(self.records[position - self.first_position])
            for position in positions
            if position >= self.first_position
        ]

    def append(self, records: Sequence[journal_pb2.JournalRecord]) -> int:
        """Make records durable; returns a digest of their bytes."""
        digest = 0
        for record in records:
            assert record.position == self.position + 1
            data = record.SerializeToString(deterministic=True)
            self.records.append(data)
            digest = zlib.crc32(data, digest)
        return digest

    def close(self) -> None:
        """Do nothing."""


class OpenJournal:
    """The journal as one life of the replay buffer has it open: behind the fence of its epoch."""

    def __init__(self, journal: MemoryJournal) -> None:
        journal.writer_epoch += 1
        self.writer_epoch = journal.writer_epoch
        self.disk = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self.disk, name)

    @property
    def is_fenced(self) -> bool:
        """Whether a newer life has the journal."""
        return self.writer_epoch != self.disk.writer_epoch

    def append(self, records: Sequence[journal_pb2.JournalRecord]) -> int:
        """Append, unless fenced."""
        self._check()
        return self.disk.append(records)

    def write_base(self, base: journal_pb2.LedgerBase) -> None:
        """Keep the base, unless fenced."""
        self._check()
        self.disk.write_base(base)

    def trim(self, before_position: int) -> None:
        """Trim, unless fenced."""
        self._check()
        self.disk.trim(before_position)

    def _check(self) -> None:
        if self.is_fenced:
            raise WriterFencedError("a newer replay buffer owns the run")


class _Wait:
    """Hands what a coroutine waits for to the scheduler."""

    __slots__ = ("_wants",)

    def __init__(self, wants: Any) -> None:
        self._wants = wants

    def __await__(self) -> Iterator[Any]:
        return (yield self._wants)


def wait_for(wants: Any) -> Any:
    """Await what the scheduler knows by these words."""
    return _Wait(wants)


class MemoryCommitter:
    """Takes records in the turn that made them; one sync writes all that is there by then.

    Args:
        journal: Where they go.
        written: Told of records as they become durable.
        enqueued: Told once there is something to be synced.

    """

    def __init__(
        self,
        journal: OpenJournal,
        *,
        written: Callable[[Sequence[journal_pb2.JournalRecord], int], None],
        enqueued: Callable[[], None],
        go_on: Callable[[Any], None],
    ) -> None:
        self._journal = journal
        self._written = written
        self._enqueued = enqueued
        self._go_on = go_on
        self._queue: list[journal_pb2.JournalRecord] = []
        self._waiting: list[tuple[int, Any]] = []
        self.position = journal.position
        """Everything up to here is durable."""

    def enqueue(self, records: Sequence[journal_pb2.JournalRecord]) -> None:
        """Take records to be written."""
        if not self._queue:
            self._enqueued()
        self._queue.extend(records)

    async def durable(self, position: int) -> None:
        """Wait until everything up to the position is durable."""
        if self.position < position:
            await wait_for(("hold", lambda thread: self._waiting.append((position, thread))))

    def sync(self) -> None:
        """Write what is enqueued, and let those go who waited for it.

        Raises:
            WriterFencedError: a newer replay buffer owns the run.

        """
        self._write(len(self._queue))
        waiting, self._waiting = self._waiting, []
        for position, thread in waiting:
            if position <= self.position:
                self._go_on(thread)
            else:
                self._waiting.append((position, thread))

    def tear(self, count: int) -> None:
        """Die in the middle of an append: so many records are durable, and nobody knows."""
        if not self._journal.is_fenced:
            self._write(min(count, len(self._queue)))

    @property
    def queued_count(self) -> int:
        """Records that are not durable yet."""
        return len(self._queue)

    def _write(self, count: int) -> None:
        digest = self._journal.append(self._queue[:count])
        batch, self._queue = self._queue[:count], self._queue[count:]
        self.position = self._journal.position
        self._written(batch, digest)
