"""Metrics that mirror what a process knows anyway, read when they are asked for.

A scrape comes on a thread of its own, the state belongs to the event loop. So the loop reads it,
in one turn: all values of a scrape are of one instant. Knows nothing of what is read.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

ANSWER_S: Final = 2.0
"""How long a scrape waits for a busy event loop."""


class Mirror(Collector):
    """Reads state on an event loop.

    Args:
        loop: The loop that the state belongs to.
        answer_s: How long to wait for it.

    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, answer_s: float = ANSWER_S) -> None:
        self._loop = loop
        self._answer_s = answer_s
        self._readers: list[Callable[[], Iterable[Metric]]] = []

    def add(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Have `read` called at each scrape, on the loop. It must be quick."""
        self._readers.append(read)

    def collect(self) -> Iterator[Metric]:
        """Read. A loop that does not answer in time gives nothing but the news that it did not."""
        found: concurrent.futures.Future[list[Metric]] = concurrent.futures.Future()
        metrics: list[Metric] = []
        answered = True
        try:
            self._loop.call_soon_threadsafe(self._read, found)
            metrics = found.result(self._answer_s)
        except (TimeoutError, RuntimeError):  # busy; or closed: the process is going away
            answered = False
        yield gauge(
            "headrace_loop_answered", "Whether the event loop answered this scrape.", answered
        )
        yield from metrics

    def _read(self, found: concurrent.futures.Future[list[Metric]]) -> None:
        try:
            found.set_result([metric for read in self._readers for metric in read()])
        except Exception as error:  # belongs to the scrape, which fails with it
            found.set_exception(error)


def gauge(name: str, help_: str, value: float) -> Metric:
    """Give a value that may go up and down."""
    return GaugeMetricFamily(name, help_, value=float(value))


def gauges(name: str, help_: str, label: str, values: Mapping[str, float]) -> Metric:
    """Give such values by one label."""
    family = GaugeMetricFamily(name, help_, labels=[label])
    for key, value in values.items():
        family.add_metric([key], float(value))
    return family


def counter(name: str, help_: str, value: float) -> Metric:
    """Give a value that only goes up. Its series is called `{name}_total`."""
    return CounterMetricFamily(name, help_, value=float(value))


def counters(name: str, help_: str, label: str, values: Mapping[str, float]) -> Metric:
    """Give such values by one label."""
    family = CounterMetricFamily(name, help_, labels=[label])
    for key, value in values.items():
        family.add_metric([key], float(value))
    return family
