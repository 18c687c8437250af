"""Puts, reads, deletes and counts trajectories: the rules of the store.

Writes happen one at a time, under one lock: TransferQueue gains nothing from parallel writers, the
log is synced once for all puts that wait, and a checkpoint needs a moment in which nobody writes.
A write that has begun runs to its end even if its caller goes away. Knows nothing of gRPC, nor who
needs a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from headrace.errors import NotReadyError, StoreFullError, WireError
from headrace.log import get_logger
from headrace.rpc.lasting import lasting
from headrace.store.catalogue import Catalogue
from headrace.store.hold import Hold
from headrace.store.life import Life
from headrace.store.log import StoreLog
from headrace.store.puts import Put, WaitingPuts, fail_unfinished, fresh_rows
from headrace.store.queue import TransferQueue
from headrace.store.row import Row
from headrace.trajectory.chunks import Value

_RETRY_S = 1.0
_T = TypeVar("_T")
_log = get_logger()


class TrajectoryStore:
    """The rows, and who they wait for.

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
        restore_id = "" if log is None else log.identity.restore_id
        self.life = Life(incarnation, queue, now, log, restore_id)
        """What there is now; another one once rows were restored."""
        self.capacity_bytes = capacity_bytes
        self.now = now
        self.hold = Hold(now=now)
        self.waiting = WaitingPuts(now=now)
        self.written_count = 0
        """Rows written so far."""
        self.read_count = 0
        """Rows read so far."""
        self.deleted_count = 0
        """Rows removed so far."""
        self.is_quiet = False
        """Whether all writes are kept waiting."""
        self._write_lock = asyncio.Lock()
        self._writes: set[asyncio.Task[Any]] = set()

    @property
    def incarnation(self) -> str:
        """Which store this is."""
        return self.life.incarnation

    @property
    def catalogue(self) -> Catalogue:
        """Which rows there are."""
        return self.life.catalogue

    def age_limit(self, grace_s: float) -> list[str]:
        """Return the keys of rows that are at least so old, oldest first."""
        return self.catalogue.keys_put_until(self.now() - grace_s)

    def has_room_for(self, rows: Sequence[Row]) -> bool:
        """Whether a put of these rows would fit now."""
        return self._extra_bytes(rows) <= self._free_bytes

    async def put(self, rows: Sequence[Row]) -> str:
        """Write rows; wait until TransferQueue's catalogue has confirmed each, and the log has it.

        Puts that wait at the same time are written together. A row that is there with the same
        bytes is confirmed again, not written again.

        Returns:
            The incarnation that has them.

        Raises:
            KeyExistsError: one of the keys is there with other bytes; nothing was written.
            StoreFullError: no room; nothing was written.
            NotReadyError: TransferQueue gave no answer, or not a confirmation, or the disk is
                full, or too many puts wait. Put again.

        """
        put = self.waiting.add(rows)
        await self._uninterrupted(self._take_turn(put))
        return await put.outcome

    async def restore(self, rows: Sequence[Row]) -> None:
        """Take rows from the log, by different keys; those that are there are replaced.

        Raises:
            NotReadyError: TransferQueue gave no answer, or not a confirmation.

        """
        async with self._write_lock:
            await self.life.take(rows)

    async def read(self, keys: Sequence[str]) -> tuple[list[Value], list[str]]:
        """Read rows and check each against its checksum.

        Returns:
            The values, in the order of the keys, and the keys that are not there or not readable.

        Raises:
            NotReadyError: TransferQueue gave no answer.

        """
        values, absent = await self.life.read(keys)
        self.read_count += len(values)
        return values, absent

    def batches(self, keys: Sequence[str]) -> Iterator[list[str]]:
        """Cut keys into runs whose values are read at a time, to bound memory."""
        return self.life.batches(keys)

    async def delete(self, keys: Sequence[str], *, incarnation: str | None = None) -> int:
        """Remove rows. Keys that are not there are ignored; under a hold, they go when it is over.

        Args:
            keys: Their keys.
            incarnation: The store that they are to be removed from; None = whichever this is.

        Returns:
            How many were there and are gone.

        Raises:
            NotReadyError: TransferQueue gave no answer. Delete again.

        """
        return await self._uninterrupted(self._delete(keys, incarnation))

    async def hold_deletions(self, hold_id: str, hold_s: float, *, unix_time_s: float) -> None:
        """Hold deletions back until they are released, or so many seconds have passed.

        Raises:
            NotReadyError: it had to be written down, and the disk refused.

        """
        self.hold.begin(hold_id, hold_s)
        await self.write_down_hold(self.life, hold_id, unix_time_s + hold_s)

    async def release_deletions(self, hold_id: str) -> int:
        """End a hold, if it is on. Returns how many rows were deleted only now.

        Raises:
            NotReadyError: TransferQueue gave no answer, or the disk refused.

        """
        if self.hold.hold_id != hold_id:
            return 0
        await self.write_down_hold(self.life, "", 0.0)
        self.hold.end(hold_id)
        return await self._delete_noted()

    async def write_down_hold(self, life: Life, hold_id: str, until_unix_s: float) -> None:
        """Let a hold, or that there is none, outlive this process where restored rows depend on it.

        Of a life whose place another has taken, nothing is written: the log is the other's.

        Raises:
            NotReadyError: the disk refused.

        """
        if _depends_on_a_hold(life):
            await self._uninterrupted(self._write_down_hold(life, hold_id, until_unix_s))

    async def keep_hold(self) -> None:
        """Delete what was noted under holds that are over, again and again."""
        while True:
            await self.hold.until_due()
            try:
                await self._delete_noted()
            except NotReadyError as error:
                _log.warning("noted_deletions_failed", error=str(error))
                await asyncio.sleep(_RETRY_S)

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[Life]:
        """Keep all writes waiting meanwhile; puts gather in `waiting`."""
        async with self._write_lock:
            self.is_quiet = True
            try:
                yield self.life
            finally:
                self.is_quiet = False

    def begin_life(self, life: Life) -> Life:
        """Let another life take the place of this one, within `quiet`. Returns the one that was."""
        before, self.life = self.life, life
        # They were rows of the life that is over, whatever the new ones' keys are.
        self.hold.forget(self.hold.noted)
        return before

    async def close(self) -> None:
        """Wait for the writes under way; each ends by the deadlines of its calls."""
        await asyncio.gather(*self._writes, return_exceptions=True)

    async def _take_turn(self, put: Put) -> None:
        """Write a put with those that wait behind it, unless an earlier turn has written it."""
        async with self._write_lock:
            if put.outcome.done():
                return
            puts = self.waiting.take()
            try:
                await self._put_all(puts)
            except NotReadyError as error:
                for failed in puts:
                    failed.fail(error)
            finally:
                fail_unfinished(puts)

    async def _put_all(self, puts: Sequence[Put]) -> None:
        life = self.life
        fresh: dict[str, Row] = {}
        accepted: list[Put] = []
        for put in puts:
            try:
                own = fresh_rows(put.rows, self.catalogue, fresh)
                self._require_room_for(own)
            except WireError as error:
                put.fail(error)
                continue
            life.reserve(own)
            fresh.update((row.value.key, row) for row in own)
            accepted.append(put)
        if fresh:
            await life.write(list(fresh.values()))
        confirmed = await life.confirm([key for put in accepted for key in put.keys])
        for put in accepted:
            if confirmed or await life.confirm(put.keys):
                put.succeed(life.incarnation)
            else:
                put.fail(NotReadyError("TransferQueue's catalogue does not confirm the rows"))
        self.written_count += len(fresh)

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

    async def _delete(self, keys: Sequence[str], incarnation: str | None) -> int:
        if not self.hold.is_on:
            async with self._write_lock:
                if incarnation not in (None, self.incarnation):
                    return 0
                if not self.hold.is_on:  # It may have begun meanwhile.
                    count = await self.life.delete(keys)
                    self.deleted_count += count
                    return count
        if incarnation in (None, self.incarnation):
            self.hold.note(key for key in keys if key in self.catalogue)
        return 0

    async def _delete_noted(self) -> int:
        noted, incarnation = self.hold.noted, self.incarnation
        count = await self.delete(noted, incarnation=incarnation)
        if not self.hold.is_on:
            self.hold.forget(noted)
        return count

    async def _write_down_hold(self, life: Life, hold_id: str, until_unix_s: float) -> None:
        async with self._write_lock:  # Nor does another life begin meanwhile.
            if life is self.life and _depends_on_a_hold(life):
                assert life.log is not None
                noted = replace(life.log.identity, hold_id=hold_id, held_until_unix_s=until_unix_s)
                await asyncio.to_thread(life.log.identify, noted)

    async def _uninterrupted(self, write: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.create_task(write)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await lasting(task)


def _depends_on_a_hold(life: Life) -> bool:
    """Whether its rows were restored, and the ledger does not know them yet."""
    return life.log is not None and bool(life.log.identity.hold_id)
