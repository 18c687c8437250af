"""One life of the store: the rows of one incarnation, in TransferQueue and in the log.

A life ends with the process, unless it has a log, or when rows are restored: then another life
takes its place. Knows nothing of turns: who writes has to be the only one. Nor of who needs a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import crc32c

from headrace.errors import NotReadyError
from headrace.log import get_logger
from headrace.store.catalogue import Catalogue
from headrace.store.log import StoreLog
from headrace.store.queue import TransferQueue
from headrace.store.row import Row
from headrace.trajectory.chunks import Value

READ_BATCH_BYTES = 8 * 2**20
"""Values read from TransferQueue at a time, unless one alone is larger."""

_log = get_logger()


@dataclass(eq=False)
class Life:
    """The rows of one incarnation."""

    incarnation: str
    """Which store this is; another one with each loss of all rows."""
    queue: TransferQueue
    """Where the bytes lie."""
    now: Callable[[], float]
    """Seconds of a monotonic clock."""
    log: StoreLog | None = None
    """What makes rows outlive this process; none = they don't."""
    restore_id: str = ""
    """The restoring that it began with; empty if it began otherwise."""
    catalogue: Catalogue = field(default_factory=Catalogue)
    """What it has."""

    async def read(self, keys: Sequence[str]) -> tuple[list[Value], list[str]]:
        """Read rows and check each against its checksum.

        Returns:
            The values, in the order of the keys, and the keys that are not there or not readable.

        Raises:
            NotReadyError: TransferQueue gave no answer.

        """
        absent = set(self.catalogue.missing_from(keys))
        entries = {key: self.catalogue.find(key) for key in keys if key not in absent}
        found = await self.queue.read_what_is_there(list(entries)) if entries else {}
        values = []
        for key, entry in entries.items():
            data = found.get(key)
            if entry is None or data is None or crc32c.crc32c(data) != entry.crc32c:
                absent.add(key)
                if entry is not None:
                    # If the row was deleted meanwhile, this entry is in nobody's hands any more.
                    entry.confirmed = False
                    _log.warning("row_unreadable", key=key, found=data is not None)
            else:
                values.append(Value(key=key, data=data, crc32c=entry.crc32c))
        return values, [key for key in keys if key in absent]

    def batches(self, keys: Sequence[str]) -> Iterator[list[str]]:
        """Cut keys into runs whose values are read at a time, to bound memory."""
        batch: list[str] = []
        size_bytes = 0
        for key in keys:
            entry = self.catalogue.find(key)
            entry_bytes = entry.size_bytes if entry is not None else 0
            if batch and size_bytes + entry_bytes > READ_BATCH_BYTES:
                yield batch
                batch, size_bytes = [], 0
            batch.append(key)
            size_bytes += entry_bytes
        if batch:
            yield batch

    def reserve(self, rows: Sequence[Row]) -> None:
        """Make room for rows that are about to be written."""
        now_s = self.now()
        for row in rows:
            self.catalogue.reserve(
                row.value.key, size_bytes=row.size_bytes, crc32c=row.value.crc32c, now_s=now_s
            )

    async def write(self, rows: Sequence[Row]) -> None:
        """Write to TransferQueue and to the log, at the same time.

        Raises:
            NotReadyError: TransferQueue gave no answer, or the disk is full.

        """
        writes: list[Awaitable[None]] = [self._queue_up(rows)]
        if self.log is not None:
            values = [row.value for row in rows]
            writes.append(asyncio.to_thread(self.log.append, values))
        for failed in await asyncio.gather(*writes, return_exceptions=True):
            if failed is not None:
                raise failed

    async def take(self, rows: Sequence[Row]) -> None:
        """Take rows that are in the log already, by different keys; those there are replaced.

        Raises:
            NotReadyError: TransferQueue gave no answer, or not a confirmation.

        """
        self.reserve(rows)
        await self._queue_up(rows)
        if not await self.confirm([row.value.key for row in rows]):
            raise NotReadyError("TransferQueue's catalogue does not confirm restored rows")

    def adopt(self, values: Sequence[Value]) -> None:
        """Note rows that TransferQueue has given whole, and that go into the log, too."""
        now_s = self.now()
        for value in values:
            self.catalogue.reserve(
                value.key, size_bytes=len(value.data), crc32c=value.crc32c, now_s=now_s
            ).confirmed = True

    async def confirm(self, keys: Sequence[str]) -> bool:
        """Ask TransferQueue's catalogue, and believe it."""
        keys = list(dict.fromkeys(keys))
        confirmed = not keys or await self.queue.confirm(keys)
        for key in keys:
            entry = self.catalogue.find(key)
            assert entry is not None
            entry.confirmed = confirmed
        return confirmed

    async def delete(self, keys: Sequence[str]) -> int:
        """Remove rows; keys that are not there are ignored. Returns how many were there.

        Raises:
            NotReadyError: TransferQueue gave no answer. Delete again.

        """
        there = [key for key in dict.fromkeys(keys) if key in self.catalogue]
        if not there:
            return 0
        # Until TransferQueue has answered it is unknown which rows are still whole.
        for key in there:
            entry = self.catalogue.find(key)
            assert entry is not None
            entry.confirmed = False
        await self.queue.clear(there)
        if self.log is not None:
            await asyncio.to_thread(self.log.forget, there)
        for key in there:
            self.catalogue.remove(key)
        return len(there)

    async def _queue_up(self, rows: Sequence[Row]) -> None:
        await self.queue.put(
            [row.value.key for row in rows],
            [row.value.data for row in rows],
            [row.tag for row in rows],
        )
