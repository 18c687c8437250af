"""Rows that are written once: put, read and deleted, within a number of bytes.

Everything that writes does so one at a time, under one lock: TransferQueue gains nothing from
parallel writers, the log is synced once for all puts that wait, and a snapshot will need a moment
in which nobody writes. A write that has begun runs to its end even if its caller goes away. Knows
nothing of gRPC, nor who needs a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import crc32c

from headrace.errors import NotReadyError, StoreFullError, WireError
from headrace.log import get_logger
from headrace.store.catalogue import Catalogue
from headrace.store.log import StoreLog
from headrace.store.puts import Put, WaitingPuts, fail_unfinished, fresh_rows
from headrace.store.queue import TransferQueue
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
        incarnation: Which store this is; another one with each loss of all rows.
        capacity_bytes: The most bytes of values held.
        now: Seconds of a monotonic clock.
        log: What makes rows outlive this process; none = they don't.

    """

    def __init__(
        self,
        queue: TransferQueue,
        *,
        incarnation: str,
        capacity_bytes: int,
        now: Callable[[], float],
        log: StoreLog | None = None,
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
        self._log = log
        self._waiting = WaitingPuts()
        self._write_lock = asyncio.Lock()
        self._writes: set[asyncio.Task[Any]] = set()

    def age_limit(self, grace_s: float) -> list[str]:
        """Return the keys of rows that are at least so old, oldest first."""
        return self.catalogue.keys_put_until(self._now() - grace_s)

    def has_room_for(self, rows: Sequence[Row]) -> bool:
        """Whether a put of these rows would fit now."""
        return self._extra_bytes(rows) <= self._free_bytes

    async def put(self, rows: Sequence[Row]) -> None:
        """Write rows; wait until TransferQueue's catalogue has confirmed each, and the log has it.

        Puts that wait at the same time are written together. A row that is there with the same
        bytes is confirmed again, not written again.

        Raises:
            KeyExistsError: one of the keys is there with other bytes; nothing was written.
            StoreFullError: no room; nothing was written.
            NotReadyError: TransferQueue gave no answer, or not a confirmation, or the disk is
                full. Put again.

        """
        put = self._waiting.add(rows)
        await self._uninterrupted(self._take_turn(put))
        await put.outcome

    async def restore(self, rows: Sequence[Row]) -> None:
        """Take rows from the log, by different keys; those that are there are replaced.

        Raises:
            NotReadyError: TransferQueue gave no answer, or not a confirmation.

        """
        async with self._write_lock:
            self._reserve(rows)
            await self._queue_up(rows)
            if not await self._confirm([row.value.key for row in rows]):
                raise NotReadyError("TransferQueue's catalogue does not confirm restored rows")

    async def read(self, keys: Sequence[str]) -> tuple[list[Value], list[str]]:
        """Read rows and check each against its checksum.

        Returns:
            The values, in the order of the keys, and the keys that are not there or not readable.

        Raises:
            NotReadyError: TransferQueue gave no answer.

        """
        absent = set(self.catalogue.missing_from(keys))
        entries = {key: self.catalogue.find(key) for key in keys if key not in absent}
        found = await self._queue.read_what_is_there(list(entries)) if entries else {}
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

    async def _take_turn(self, put: Put) -> None:
        """Write a put with those that wait behind it, unless an earlier turn has written it."""
        async with self._write_lock:
            if put.outcome.done():
                return
            puts = self._waiting.take()
            try:
                await self._put_all(puts)
            except NotReadyError as error:
                for failed in puts:
                    failed.fail(error)
            finally:
                fail_unfinished(puts)

    async def _put_all(self, puts: Sequence[Put]) -> None:
        fresh: dict[str, Row] = {}
        accepted: list[Put] = []
        for put in puts:
            try:
                own = fresh_rows(put.rows, self.catalogue, fresh)
                self._require_room_for(own)
            except WireError as error:
                put.fail(error)
                continue
            self._reserve(own)
            fresh.update((row.value.key, row) for row in own)
            accepted.append(put)
        if fresh:
            await self._write(list(fresh.values()))
        confirmed = await self._confirm([key for put in accepted for key in put.keys])
        for put in accepted:
            if confirmed or await self._confirm(put.keys):
                put.succeed()
            else:
                put.fail(NotReadyError("TransferQueue's catalogue does not confirm the rows"))
        self.written_count += len(fresh)

    def _reserve(self, rows: Sequence[Row]) -> None:
        now_s = self._now()
        for row in rows:
            self.catalogue.reserve(
                row.value.key, size_bytes=row.size_bytes, crc32c=row.value.crc32c, now_s=now_s
            )

    async def _write(self, rows: Sequence[Row]) -> None:
        """Write to TransferQueue and to the log, at the same time."""
        writes: list[Awaitable[None]] = [self._queue_up(rows)]
        if self._log is not None:
            values = [row.value for row in rows]
            writes.append(asyncio.to_thread(self._log.append, values))
        for failed in await asyncio.gather(*writes, return_exceptions=True):
            if failed is not None:
                raise failed

    async def _queue_up(self, rows: Sequence[Row]) -> None:
        await self._queue.put(
            [row.value.key for row in rows],
            [row.value.data for row in rows],
            [row.tag for row in rows],
        )

    async def _confirm(self, keys: Sequence[str]) -> bool:
        """Ask TransferQueue's catalogue, and believe it."""
        keys = list(dict.fromkeys(keys))
        confirmed = not keys or await self._queue.confirm(keys)
        for key in keys:
            entry = self.catalogue.find(key)
            assert entry is not None
            entry.confirmed = confirmed
        return confirmed

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

    async def _delete(self, keys: Sequence[str]) -> int:
        async with self._write_lock:
            there = [key for key in dict.fromkeys(keys) if key in self.catalogue]
            if not there:
                return 0
            # Until TransferQueue has answered it is unknown which rows are still whole.
            self._doubt(there)
            await self._queue.clear(there)
            if self._log is not None:
                await asyncio.to_thread(self._log.forget, there)
            for key in there:
                self.catalogue.remove(key)
            self.deleted_count += len(there)
            return len(there)

    async def _uninterrupted(self, write: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.create_task(write)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await asyncio.shield(task)
