"""Writes the store's part of a checkpoint: all rows, as they were at one moment.

    hold ──► quiet: TransferQueue writes into a folder here ──► list of rows, hashes, upload ──► part
             └ puts wait: `locked_s` ┘                          └ puts go on ┘

The folder is on the store's own disk, and is gone afterwards. Knows nothing of manifests, nor of
what else is in a checkpoint.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from headrace import failpoints
from headrace.checkpoint.storage import Storage, write_part
from headrace.errors import NotReadyError, SnapshotFailedError, UsageError
from headrace.log import get_logger
from headrace.rpc.lasting import lasting
from headrace.rpc.waits import Waiting, Waits
from headrace.store import index
from headrace.store.index import Header, IndexedRow
from headrace.store.life import Life
from headrace.store.queue import CHECKPOINT_BYTES_PER_S, CONTROLLER_FILE
from headrace.store.scratch import Scratch
from headrace.store.store import TrajectoryStore
from headrace.v1.resume_pb2 import CheckpointPart

PART = "store"
FOLDER = "transfer_queue"
"""What the part is called in a checkpoint's directory."""
STALL_S = 300.0
"""For how long a storage may give no sign, beside the time that the bytes take."""

_log = get_logger()


@dataclass(frozen=True, slots=True)
class Saved:
    """What was written."""

    part: CheckpointPart
    """Its files."""
    row_count: int
    """Rows in it."""
    raw_bytes: int
    """Bytes of their values."""
    locked_s: float
    """Seconds for which puts were held up."""
    longest_put_wait_s: float
    """The longest that one put waited, in seconds."""
    store_incarnation: str
    """The store that they were in."""

    @property
    def file_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.part.files)


@dataclass(frozen=True, slots=True)
class _Moment:
    """What was true while nobody wrote."""

    header: Header
    rows: list[IndexedRow]
    locked_s: float


class RowSaver:
    """Saves one store's rows.

    Args:
        store: The store.
        scratch: Where TransferQueue writes.
        run_id: The run.
        owner: This process.
        unit_count: TransferQueue's storage units.
        waits: Where the wait for the storage is registered.

    """

    def __init__(
        self,
        store: TrajectoryStore,
        *,
        scratch: Scratch,
        run_id: str,
        owner: str,
        unit_count: int,
        waits: Waits,
    ) -> None:
        self.last: Saved | None = None
        """What was saved last."""
        self._store = store
        self._scratch = scratch
        self._run_id = run_id
        self._owner = owner
        self._unit_count = unit_count
        self._waits = waits
        self._version = version("transferqueue")
        self._under_way: dict[str, asyncio.Task[Saved]] = {}

    async def save(self, uri: str, hold_id: str) -> Saved:
        """Write the part into a checkpoint's directory.

        It runs to its end even if its caller goes away. Where it is written already, it is written
        anew after that.

        Raises:
            SnapshotFailedError: it could not be written. Nothing is left of it, as far as the
                storage allows.

        """
        while uri in self._under_way:
            await asyncio.wait([self._under_way[uri]])
        task = asyncio.create_task(self._save(uri, hold_id))
        self._under_way[uri] = task
        task.add_done_callback(lambda _: self._under_way.pop(uri))
        return await lasting(task)

    async def settle(self, limit_s: float = 5.0) -> None:
        """Wait until nothing is being written into a checkpoint, or for so long."""
        if self._under_way:
            await asyncio.wait(list(self._under_way.values()), timeout=limit_s)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _save(self, uri: str, hold_id: str) -> Saved:
        try:
            async with self._scratch.folder() as folder:
                moment = await self._write_here(folder, hold_id)
                failpoints.reach("store_part.saved")
                with waiting_for_storage(self._waits, moment.header.raw_bytes):
                    part = await asyncio.to_thread(self._upload, uri, folder, moment)
        except (NotReadyError, OSError, UsageError) as error:
            await asyncio.to_thread(_take_back, uri)
            raise SnapshotFailedError(f"the store's rows could not be saved: {error}") from error
        saved = Saved(
            part=part,
            row_count=moment.header.row_count,
            raw_bytes=moment.header.raw_bytes,
            locked_s=moment.locked_s,
            longest_put_wait_s=self._store.waiting.longest_s,
            store_incarnation=moment.header.store_incarnation,
        )
        self.last = saved
        _log.info(
            "rows_saved",
            uri=uri,
            row_count=saved.row_count,
            raw_bytes=saved.raw_bytes,
            file_bytes=saved.file_bytes,
            locked_s=round(saved.locked_s, 3),
            longest_put_wait_s=round(saved.longest_put_wait_s, 3),
        )
        return saved

    async def _write_here(self, folder: Path, hold_id: str) -> _Moment:
        store = self._store
        async with store.quiet() as life:
            began_s = store.now()
            store.waiting.measure()
            if store.hold.hold_id != hold_id:
                raise SnapshotFailedError(f"deletions are not held any more for {hold_id!r}")
            writing = life.queue.save(
                folder,
                size_bytes=life.catalogue.held_bytes,
                metadata={"run_id": self._run_id, "transfer_queue": self._version},
            )
            _, rows = await asyncio.gather(writing, asyncio.to_thread(_rows_of, life))
            locked_s = store.now() - began_s
        header = Header(
            run_id=self._run_id,
            store_incarnation=life.incarnation,
            storage_units=self._unit_count,
            transfer_queue=self._version,
            row_count=len(rows),
            raw_bytes=sum(row.size_bytes for row in rows),
        )
        return _Moment(header, rows, locked_s)

    def _upload(self, uri: str, folder: Path, moment: _Moment) -> CheckpointPart:
        index.write(folder, moment.header, moment.rows)
        # It is a third then, and of small rows it would be the larger part.
        index.pack(folder / CONTROLLER_FILE)
        part = write_part(uri, name=PART, owner=self._owner, source=folder, target=FOLDER)
        failpoints.reach("store_part.written")
        return part


def _rows_of(life: Life) -> list[IndexedRow]:
    """List what is confirmed; nobody puts or deletes meanwhile."""
    return [
        IndexedRow(key, entry.size_bytes, entry.crc32c) for key, entry in life.catalogue.confirmed()
    ]


def waiting_for_storage(waits: Waits, size_bytes: int) -> AbstractContextManager[Waiting]:
    """Be in a wait for files to be copied; it is no stall for as long as a slow storage takes."""
    return waits.waiting(
        "files of a checkpoint",
        owner="checkpoint.storage",
        ends_when="all of them are copied, or the storage fails",
        stall_after_s=STALL_S + size_bytes / CHECKPOINT_BYTES_PER_S,
    )


def _take_back(uri: str) -> None:
    with suppress(OSError, UsageError):
        Storage(uri).remove_tree(FOLDER)
