"""A process's waits as metrics. Needs no event loop: they are seen while it hangs, too."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from headrace.rpc.mirror import counters, gauge
from headrace.rpc.waits import Waits


class WaitMetrics(Collector):
    """Mirrors waits."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def collect(self) -> Iterator[Metric]:
        """Read."""
        running = self._waits.snapshot()
        yield counters(
            "headrace_wait_seconds",
            "Seconds spent in waits, those under way included.",
            "name",
            self._waits.waited_s,
        )
        longest: dict[tuple[str, str], float] = {}
        for wait in running:  # the longest comes first
            longest.setdefault((wait.name, wait.owner), wait.elapsed_s)
        current = GaugeMetricFamily(
            "headrace_wait_current_seconds",
            "Age of the longest wait of this name that is under way.",
            labels=["name", "owner"],
        )
        for key, elapsed_s in longest.items():
            current.add_metric(list(key), elapsed_s)
        yield current
        stalled = sum(wait.stalled for wait in running)
        yield gauge("headrace_waits_stalled", "Waits past their limit.", stalled)
