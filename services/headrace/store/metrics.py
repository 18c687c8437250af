"""What the store holds and has done, as metrics, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from headrace.rpc.mirror import counter, gauge
from headrace.store.log import StoreLog
from headrace.store.restorer import RowRestorer
from headrace.store.saver import RowSaver, Saved
from headrace.store.store import TrajectoryStore
from headrace.store.sweep import Sweeper


class StoreMetrics:
    """Reads one store. Used on the event loop."""

    def __init__(
        self, store: TrajectoryStore, sweeper: Sweeper, saver: RowSaver, restorer: RowRestorer
    ) -> None:
        self._store = store
        self._sweeper = sweeper
        self._saver = saver
        self._restorer = restorer

    def read(self) -> Iterator[Metric]:
        """Give all there is."""
        store = self._store
        yield gauge("headrace_store_rows", "Trajectories held.", len(store.catalogue))
        yield gauge("headrace_store_bytes", "Their bytes.", store.catalogue.held_bytes)
        yield gauge("headrace_store_capacity_bytes", "The most it holds.", store.capacity_bytes)
        yield counter("headrace_store_rows_put", "Trajectories written.", store.written_count)
        yield counter("headrace_store_rows_read", "Trajectories read.", store.read_count)
        yield counter(
            "headrace_store_rows_deleted",
            "Trajectories removed, swept included.",
            store.deleted_count,
        )
        swept = self._sweeper.swept_count
        yield counter("headrace_store_rows_swept", "Trajectories that nobody referred to.", swept)
        held = len(store.hold.noted)
        yield gauge("headrace_store_deletions_held", "Deletions held back.", held)
        restored = self._restorer.restored_count
        yield gauge("headrace_store_restored_rows", "Trajectories of the last restore.", restored)
        yield from _read_save(self._saver.last)
        if store.life.log is not None:
            yield from _read_log(store.life.log)


def _read_save(saved: Saved | None) -> Iterator[Metric]:
    rows, raw, files, locked_s, wait_s = 0, 0, 0, 0.0, 0.0
    if saved is not None:
        rows, raw, files = saved.row_count, saved.raw_bytes, saved.file_bytes
        locked_s, wait_s = saved.locked_s, saved.longest_put_wait_s
    yield gauge("headrace_store_saved_rows", "Trajectories in the last checkpoint.", rows)
    yield gauge("headrace_store_saved_bytes", "Their bytes.", raw)
    yield gauge("headrace_store_saved_file_bytes", "Bytes of the files for them.", files)
    yield gauge(
        "headrace_store_save_locked_seconds", "For how long no put was written then.", locked_s
    )
    yield gauge("headrace_store_save_longest_put_wait_seconds", "The longest of a put.", wait_s)


def _read_log(log: StoreLog) -> Iterator[Metric]:
    yield gauge("headrace_store_log_bytes", "Size of the log's files.", log.size_bytes)
    live = log.live_bytes
    yield gauge("headrace_store_log_live_bytes", "What of it is rows that are held.", live)
    yield counter(
        "headrace_store_log_refused", "Writes that the disk has refused.", log.refused_count
    )
    yield counter(
        "headrace_store_log_damaged", "Places found that are no whole row.", log.damaged_count
    )
