"""How far the feed is, as metrics, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from headrace.feeder.demand import Feed
from headrace.feeder.supply import Supply
from headrace.rpc.mirror import counter, gauge


class FeedMetrics:
    """Reads one feed and what it is fed from. Used on the event loop."""

    def __init__(self, feed: Feed, supply: Supply) -> None:
        self._feed = feed
        self._supply = supply

    def read(self) -> Iterator[Metric]:
        """Give all there is."""
        rows = self._supply.row_count or 0
        yield gauge("headrace_feeder_rows", "Rows of the data set; 0 for a stream.", rows)
        yield gauge("headrace_feeder_cursor", "The next ordinal.", self._feed.cursor)
        yield gauge("headrace_feeder_epoch", "The epoch of the next row.", self._feed.epoch)
        read, registered = self._supply.read_count, self._feed.registered_count
        yield counter("headrace_feeder_rows_read", "Rows read.", read)
        yield counter("headrace_feeder_rows_registered", "Rows registered.", registered)
