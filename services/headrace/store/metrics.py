"""What the store holds and has done, as metrics, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from headrace.rpc.mirror import counter, gauge
from headrace.store.log import StoreLog
from headrace.store.store import TrajectoryStore
from headrace.store.sweep import Sweeper


class StoreMetrics:
    """Reads one store. Used on the event loop."""

    def __init__(self, store: TrajectoryStore, sweeper: Sweeper, log: StoreLog | None) -> None:
        self._store = store
        self._sweeper = sweeper
        self._log = log

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
        if self._log is not None:
            yield from _read_log(self._log)


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
