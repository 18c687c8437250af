"""Rows that are written once: put, read and deleted, within a number of bytes.

Everything that writes does so one at a time, under one lock: TransferQueue gains nothing from
parallel writers, and a snapshot will need a moment in which nobody writes. A write that has begun
runs to its end even if its caller goes away. Knows nothing of gRPC, nor who needs a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import crc32c

from headrace.errors import KeyExistsError, NotReadyError, StoreFullError
from headrace.log import get_logger
from headrace.store.catalogue import Catalogue
from headrace.store.queue import RowsUnreadableError, TransferQueue
from headrace.store.row import Row
from headrace.trajectory.chunks import Value

READ_BATCH_BYTES = 8 * 2**20
"""Values read from TransferQueue at a time, unless one alone is larger."""

_T = TypeVar("_T")
_log = get_logger()


class TrajectoryStore:
    """The rows of one incarnation.

    Args:
        queue: Where the bytes lie.
        incarnation: This life of the store; unique.
        capacity_bytes: The most bytes of values held.
        now: Seconds of a monotonic clock.

    """

    def __init__(
        self,
        queue: TransferQueue,
        *,
        incarnation: str,
        capacity_bytes: int,
        now: Callable[[], float],
    ) -> None:
        self.incarnation = incarnation
        self.capacity_bytes = capacity_bytes
        self.catalogue = Catalogue()
        self.written_count = 0
        """Rows written so far."""
        self.read_count = 0
        """Rows read so far."""
        self.deleted_count = 0
        """Rows removed so far."""
        self._queue = queue
        self._now = now
        self._write_lock = asyncio.Lock()
        self._writes: set[asyncio.Task[Any]] = set()

    def age_limit(self, grace_s: float) -> list[str]:
        """Return the keys of rows that are at least so old, oldest first."""
        return self.catalogue.keys_put_until(self._now() - grace_s)

    def has_room_for(self, rows: Sequence[Row]) -> bool:
        """Whether a put of these rows would fit now."""
        return self._extra_bytes(rows) <= self._free_bytes

    async def put(self, rows: Sequence[Row]) -> None:
        """Write rows and wait until TransferQueue's catalogue has confirmed each of them.

        A row that is there with the same bytes is confirmed again, not written again.

        Raises:
            KeyExistsError: one of the keys is there with other bytes; nothing was written.
            StoreFullError: no room; nothing was written.
            NotReadyError: TransferQueue gave no answer, or not a confirmation. Put again.

        """
        await self._uninterrupted(self._put(rows))

    async def read(self, keys: Sequence[str]) -> tuple[list[Value], list[str]]:
        """Read rows and check each against its checksum.

        Returns:
            The values, in the order of the keys, and the keys that are not there or not readable.

        Raises:
            NotReadyError: TransferQueue gave no answer.

        """
        absent = set(self.catalogue.missing_from(keys))
        entries = {key: self.catalogue.find(key) for key in keys if key not in absent}
        found = await self._read_what_is_there(list(entries)) if entries else {}
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
        self.read_count += len(values)
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

    async def delete(self, keys: Sequence[str]) -> int:
        """Remove rows. Keys that are not there are ignored.

        Returns:
            How many were there.

        Raises:
            NotReadyError: TransferQueue gave no answer. Delete again.

        """
        return await self._uninterrupted(self._delete(keys))

    async def close(self) -> None:
        """Wait for the writes under way; each ends by the deadlines of its calls."""
        await asyncio.gather(*self._writes, return_exceptions=True)

    async def _put(self, rows: Sequence[Row]) -> None:
        async with self._write_lock:
            fresh = self._fresh(rows)
            self._require_room_for(fresh)
            await self._write(fresh)
            keys = list(dict.fromkeys(row.value.key for row in rows))
            if keys and not await self._queue.confirm(keys):
                self._doubt(keys)
                raise NotReadyError(
                    "TransferQueue took the rows, but its catalogue does not confirm them"
                )
            for key in keys:
                entry = self.catalogue.find(key)
                assert entry is not None
                entry.confirmed = True
            self.written_count += len(fresh)

    async def _write(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        now_s = self._now()
        for row in rows:
            self.catalogue.reserve(
                row.value.key, size_bytes=row.size_bytes, crc32c=row.value.crc32c, now_s=now_s
            )
        await self._queue.put(
            [row.value.key for row in rows],
            [row.value.data for row in rows],
            [row.tag for row in rows],
        )

    def _fresh(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows that are to be written: neither there nor named twice.

        Raises:
            KeyExistsError: a key is there, or named twice, with other bytes.

        """
        fresh: dict[str, Row] = {}
        for row in rows:
            key, size_bytes, checksum = row.value.key, row.size_bytes, row.value.crc32c
            entry = self.catalogue.find(key)
            there = None
            if key in fresh:
                there = (fresh[key].size_bytes, fresh[key].value.crc32c)
            elif entry is not None and entry.confirmed:
                there = (entry.size_bytes, entry.crc32c)
            if there is None:
                fresh[key] = row
            elif there != (size_bytes, checksum):
                raise KeyExistsError(f"{key} is there with other bytes", key=key)
        return list(fresh.values())

    @property
    def _free_bytes(self) -> int:
        return self.capacity_bytes - self.catalogue.held_bytes

    def _extra_bytes(self, rows: Sequence[Row]) -> int:
        """Bytes that a put of these rows adds; what is there, or has its room already, adds none."""
        wanted = {row.value.key: row.size_bytes for row in rows}
        there = (self.catalogue.find(key) for key in wanted)
        return sum(wanted.values()) - sum(entry.size_bytes for entry in there if entry is not None)

    def _require_room_for(self, rows: Sequence[Row]) -> None:
        extra, free = self._extra_bytes(rows), self._free_bytes
        if extra > free:
            raise StoreFullError(
                f"{extra} bytes do not fit: {free} of {self.capacity_bytes} are free",
                extra_bytes=str(extra),
                free_bytes=str(free),
                capacity_bytes=str(self.capacity_bytes),
            )

    def _doubt(self, keys: Sequence[str]) -> None:
        for key in keys:
            entry = self.catalogue.find(key)
            if entry is not None:
                entry.confirmed = False

    async def _read_what_is_there(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Read a batch; if it does not come whole, find out by halves which rows are bad.

        TransferQueue refuses, or silently shortens, a batch with one bad row in it.
        """
        try:
            return dict(zip(keys, await self._queue.read(keys), strict=True))
        except RowsUnreadableError:
            if len(keys) == 1:
                return {}
        middle = len(keys) // 2
        first = await self._read_what_is_there(keys[:middle])
        return first | await self._read_what_is_there(keys[middle:])

    async def _delete(self, keys: Sequence[str]) -> int:
        async with self._write_lock:
            there = [key for key in dict.fromkeys(keys) if key in self.catalogue]
            if not there:
                return 0
            # Until TransferQueue has answered it is unknown which rows are still whole.
            self._doubt(there)
            await self._queue.clear(there)
            for key in there:
                self.catalogue.remove(key)
            self.deleted_count += len(there)
            return len(there)

    async def _uninterrupted(self, write: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.create_task(write)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await asyncio.shield(task)
