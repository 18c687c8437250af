"""Takes all rows from the store's part of a checkpoint, as another life of the store.

    hashes ──► fresh TransferQueue ◄── its checkpoint ──► each row by CRC32C ──► log ──► new life
               └──────────── the old one serves on ────────────┘                  └ at once ┘

Up to the last step, which is one write, a failure or a kill leaves the store as it was. Where the
number of storage units is another one, TransferQueue refuses its checkpoint: then a second one, with
as many as there were, takes it, and the rows are put from there. So nothing here has to know what
is in TransferQueue's files. They are pickles: who can write a checkpoint can run code in the store.

Under a hold: the ledger does not know the new life before the coordinator has told it. Until the
hold is over, rows are not swept, and the life is not registered. If none is on - a store that was
killed has forgotten it - one begins, of the name of the restoring.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import crc32c

from headrace import failpoints
from headrace.checkpoint.storage import DamagedError, fetch
from headrace.errors import CannotResumeError, NotReadyError, StoreFullError, UsageError
from headrace.log import get_logger
from headrace.rpc.lasting import lasting
from headrace.rpc.waits import Waits
from headrace.store import index, succession
from headrace.store.backend import Backend
from headrace.store.index import Header, IndexedRow
from headrace.store.life import READ_BATCH_BYTES, Life
from headrace.store.queue import CONTROLLER_FILE, RefusedError, TransferQueue
from headrace.store.row import inspect
from headrace.store.saver import FOLDER, waiting_for_storage
from headrace.store.scratch import Scratch
from headrace.store.store import TrajectoryStore
from headrace.trajectory.chunks import Value
from headrace.v1.resume_pb2 import CheckpointPart

BATCH_ROWS = 4096

_log = get_logger()


@dataclass(frozen=True)
class Starting:
    """How a TransferQueue is started, and restored rows begin."""

    run_id: str
    unit_count: int
    timeout_s: float
    waits: Waits
    hold_s: float
    """How long deletions are held where nobody has said it."""

    async def backend(self, *, unit_count: int = 0) -> Backend:
        """Start one, with another number of units if one is given."""
        return await Backend.start(
            f"headrace_store_{self.run_id}_{uuid4().hex[:6]}",
            unit_count=unit_count or self.unit_count,
            timeout_s=self.timeout_s,
            waits=self.waits,
        )


class RowRestorer:
    """Restores one store's rows.

    Args:
        store: The store.
        backend: Its TransferQueue. The one that is in use; this closes those that were.
        starting: How others are started.
        scratch: Where the checkpoint's files are copied to.

    """

    def __init__(
        self, store: TrajectoryStore, backend: Backend, *, starting: Starting, scratch: Scratch
    ) -> None:
        self.backend = backend
        self.restored_count = 0
        """Rows restored last."""
        self.begun = asyncio.Event()
        """Set when a new life has begun."""
        self._store = store
        self._starting = starting
        self._scratch = scratch
        self._one_at_a_time = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._restoring: set[asyncio.Task[None]] = set()

    async def restore(self, restore_id: str, part: CheckpointPart, *, unix_time_s: float) -> None:
        """Take a part's rows, unless that was done under this id.

        It runs to its end even if its caller goes away; a repeat waits for it.

        Raises:
            CannotResumeError: a file is missing or damaged.
            StoreFullError: the rows do not fit.
            NotReadyError: TransferQueue gave no answer, or the disk refused.
                After each of them the store is as it was.

        """
        task = self._run(self._restore(restore_id, part, unix_time_s))
        self._restoring.add(task)
        task.add_done_callback(self._restoring.discard)
        await lasting(task)

    async def close(self) -> None:
        """Give up what is under way, and stop TransferQueue."""
        for task in self._restoring:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.backend.close()

    def _run(self, what: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(what)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _restore(self, restore_id: str, part: CheckpointPart, unix_time_s: float) -> None:
        async with self._one_at_a_time:
            if self._store.life.restore_id == restore_id:
                return
            self._hold(restore_id)
            try:
                async with self._scratch.folder() as folder:
                    size_bytes = sum(file.size_bytes for file in part.files)
                    with waiting_for_storage(self._starting.waits, size_bytes):
                        await asyncio.to_thread(_fetch, part, folder)
                    header, rows = await asyncio.to_thread(_read, folder / FOLDER)
                    self._require_room_for(header)
                    failpoints.reach("store.restoring")
                    await self._begin(restore_id, header, rows, folder / FOLDER, unix_time_s)
                failpoints.reach("store.restored")
            except OSError as error:
                raise NotReadyError(f"the rows could not be restored: {error}") from error

    async def _begin(
        self,
        restore_id: str,
        header: Header,
        rows: Sequence[IndexedRow],
        folder: Path,
        unix_time_s: float,
    ) -> None:
        """Make a life of the files, and put it in the place of the one that is."""
        fresh = await self._starting.backend()
        older = self._store.life.log
        life = Life(uuid4().hex, fresh.queue, self._store.now, restore_id=restore_id)
        try:
            if older is not None:
                named = replace(
                    older.identity,
                    store_incarnation=life.incarnation,
                    rows=f"{succession.PREFIX}{life.incarnation[:8]}",
                    restore_id=restore_id,
                )
                life.log = await asyncio.to_thread(succession.begin_beside, older, named)
            async with self._source(fresh, header, folder) as source:
                lost = await _fill(life, source, rows)
            await self._put_in_place(life, fresh, unix_time_s)
        except BaseException:
            await fresh.close()
            if life.log is not None:
                await asyncio.to_thread(succession.discard, life.log)
            raise
        _log.info(
            "rows_restored",
            restore_id=restore_id,
            store_incarnation=life.incarnation,
            row_count=len(life.catalogue),
            raw_bytes=life.catalogue.held_bytes,
            unreadable_count=len(lost),
        )

    @asynccontextmanager
    async def _source(
        self, fresh: Backend, header: Header, folder: Path
    ) -> AsyncIterator[TransferQueue]:
        """Give a TransferQueue that has loaded the checkpoint: the fresh one, if that takes it."""
        if header.storage_units == self._starting.unit_count:
            await _load(fresh, header, folder)
            await fresh.queue.open_probe()
            yield fresh.queue
            return
        await fresh.queue.open_probe()
        passing = await self._starting.backend(unit_count=header.storage_units)
        try:
            await _load(passing, header, folder)
            yield passing.queue
        finally:
            await passing.close()

    async def _put_in_place(self, life: Life, backend: Backend, unix_time_s: float) -> None:
        store = self._store
        async with store.quiet() as before:
            self._hold(life.restore_id)
            # From here on nothing is awaited: what one write has put in place is so for all.
            if life.log is not None:
                assert before.log is not None
                life.log.identity = replace(
                    life.log.identity,
                    hold_id=store.hold.hold_id,
                    held_until_unix_s=unix_time_s + store.hold.left_s,
                )
                succession.take_over(life.log, before.log)
            store.begin_life(life)
            backend, self.backend = self.backend, backend
            self.restored_count = len(life.catalogue)
            self.begun.set()
        self._run(_end(before, backend))

    def _hold(self, restore_id: str) -> None:
        """See to it that deletions are held: the caller's hold may have gone with a process."""
        if not self._store.hold.is_on:
            _log.info("held_by_restoring", hold_id=restore_id, hold_s=self._starting.hold_s)
            self._store.hold.begin(restore_id, self._starting.hold_s)

    def _require_room_for(self, header: Header) -> None:
        capacity_bytes = self._store.capacity_bytes
        if header.raw_bytes > capacity_bytes:
            raise StoreFullError(
                f"the checkpoint's rows have {header.raw_bytes} bytes, the store takes "
                f"{capacity_bytes}: set store.capacity_bytes to at least as much",
                extra_bytes=str(header.raw_bytes),
                free_bytes=str(capacity_bytes),
                capacity_bytes=str(capacity_bytes),
            )


async def _load(backend: Backend, header: Header, folder: Path) -> None:
    try:
        await backend.queue.load(folder, size_bytes=header.raw_bytes)
    except RefusedError as error:
        raise CannotResumeError(
            f"the store's part, written by TransferQueue {header.transfer_queue}, cannot be used: "
            f"{error}"
        ) from error


async def _fill(life: Life, source: TransferQueue, rows: Sequence[IndexedRow]) -> list[str]:
    """Give a life the rows that its index names, each read back; return those that are not there.

    A row that is not there was not readable when it was saved: the files are whole.
    """
    lost: list[str] = []
    for batch in _batches(rows):
        found = await source.read_what_is_there([row.key for row in batch])
        values = [
            Value(row.key, data, row.crc32c)
            for row in batch
            if (data := found.get(row.key)) is not None and crc32c.crc32c(data) == row.crc32c
        ]
        lost += {row.key for row in batch} - {value.key for value in values}
        if not values:
            continue
        if source is life.queue:
            life.adopt(values)
        else:
            await life.take([inspect(value) for value in values])
            _, unread = await life.read([value.key for value in values])
            if unread:
                raise NotReadyError(f"TransferQueue does not give back {unread[0]}")
        if life.log is not None:
            await asyncio.to_thread(life.log.append, values)
    if source is life.queue:
        # Reserved or half written when it was saved: confirmed to nobody.
        strangers = set(await source.keys()) - {row.key for row in rows} | set(lost)
        if strangers:
            await source.clear(list(strangers))
    if lost:
        _log.warning("rows_unreadable_in_checkpoint", row_count=len(lost), keys=lost[:100])
    return lost


async def _end(life: Life, backend: Backend) -> None:
    """Let go of a life that is over."""
    await backend.close()
    if life.log is not None:
        await asyncio.to_thread(succession.discard, life.log)


def _batches(rows: Sequence[IndexedRow]) -> Iterator[list[IndexedRow]]:
    batch: list[IndexedRow] = []
    size_bytes = 0
    for row in rows:
        if batch and (size_bytes + row.size_bytes > READ_BATCH_BYTES or len(batch) == BATCH_ROWS):
            yield batch
            batch, size_bytes = [], 0
        batch.append(row)
        size_bytes += row.size_bytes
    if batch:
        yield batch


def _fetch(part: CheckpointPart, folder: Path) -> None:
    """Copy the part here, every hash checked."""
    needed = f"{FOLDER}/{index.NAME}"
    if needed not in {file.path for file in part.files}:
        raise CannotResumeError(f"the store's part in {part.uri} has no {needed}")
    try:
        fetch(part, folder)
    except (DamagedError, UsageError) as error:
        raise CannotResumeError(f"the store's part cannot be used: {error}") from error


def _read(folder: Path) -> tuple[Header, list[IndexedRow]]:
    try:
        header, rows = index.read(folder)
        index.unpack(folder / CONTROLLER_FILE)
    except (ValueError, FileNotFoundError) as error:
        raise CannotResumeError(f"the store's part cannot be used: {error}") from error
    return header, rows
