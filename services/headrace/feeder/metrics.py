"""How far the feed is, as metrics, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from headrace.feeder.demand import Feed
from headrace.feeder.prompts import Prompts
from headrace.rpc.mirror import counter, gauge


class FeedMetrics:
    """Reads one feed and its data set. Used on the event loop."""

    def __init__(self, feed: Feed, prompts: Prompts) -> None:
        self._feed = feed
        self._prompts = prompts

    def read(self) -> Iterator[Metric]:
        """Give all there is."""
        rows, cursor = len(self._prompts), self._feed.cursor
        yield gauge("headrace_feeder_rows", "Rows of the data set.", rows)
        yield gauge("headrace_feeder_cursor", "The next ordinal.", cursor)
        yield gauge("headrace_feeder_epoch", "The epoch of the next row.", cursor // rows)
        read, registered = self._prompts.read_count, self._feed.registered_count
        yield counter("headrace_feeder_rows_read", "Rows read.", read)
        yield counter("headrace_feeder_rows_registered", "Rows registered.", registered)
