"""Fills TransferQueue again with what the log has, after a restart.

Reading and parsing happen in a thread while TransferQueue takes the batch before, so that two
batches are in memory at a time. Knows nothing of files, nor of gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from headrace.errors import UsageError, WireError
from headrace.log import get_logger
from headrace.rpc.calls import Stopped
from headrace.store.log import StoreLog
from headrace.store.row import Row, inspect
from headrace.store.store import TrajectoryStore
from headrace.trajectory.chunks import Value

BATCH_BYTES = 8 * 2**20
BATCH_ROWS = 1024

_log = get_logger()


@dataclass
class _Batch:
    """Rows that go into one put."""

    rows: dict[str, Row] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    """Keys of values that are whole, but that this program does not take for trajectories."""
    size_bytes: int = 0

    def add(self, value: Value) -> None:
        self.size_bytes += len(value.data)
        try:
            self.rows[value.key] = inspect(value)
        except WireError as error:
            self.refused.append(value.key)
            _log.warning("store_log_row_refused", key=value.key, error=str(error))

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= BATCH_BYTES or len(self.rows) >= BATCH_ROWS


async def refill(
    store: TrajectoryStore,
    log: StoreLog,
    *,
    stopping: asyncio.Event,
    tell: Callable[[str], None],
) -> None:
    """Put everything that the log has into an empty store.

    Args:
        store: The store, before it serves.
        log: Its log, just opened.
        stopping: Ends the refill when set.
        tell: Is told how far it is, in words.

    Raises:
        Stopped: `stopping` was set.
        UsageError: the disk does not let the log be read.
        NotReadyError: TransferQueue gave no answer.

    """
    values = log.recover()
    refused: list[str] = []
    batch = await asyncio.to_thread(_next_batch, values)
    while batch.rows or batch.refused:
        if stopping.is_set():
            raise Stopped("told to stop while refilling TransferQueue")
        tell(f"TransferQueue is being refilled from the log: {len(store.catalogue)} rows so far")
        rows, refused = list(batch.rows.values()), refused + batch.refused
        reading = asyncio.create_task(asyncio.to_thread(_next_batch, values))
        try:
            if rows:
                await store.restore(rows)
        finally:
            batch = await reading
    await asyncio.to_thread(log.forget, refused)
    _log.info(
        "store_log_opened",
        store_incarnation=log.incarnation,
        row_count=len(log),
        live_bytes=log.live_bytes,
        size_bytes=log.size_bytes,
        torn_bytes=log.torn_bytes,
        damaged_count=log.damaged_count,
    )


def _next_batch(values: Iterator[Value]) -> _Batch:
    batch = _Batch()
    try:
        for value in values:
            batch.add(value)
            if batch.is_full:
                break
    except OSError as error:
        raise UsageError(f"the store's log cannot be read: {error}") from error
    return batch
