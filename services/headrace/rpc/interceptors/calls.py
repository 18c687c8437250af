"""Counts, times and logs every call that a server answers.

Knows nothing of what the calls do. Must stand outside the `ErrorInterceptor`, so that it
sees the code that the caller sees.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from structlog.contextvars import bind_contextvars

from headrace.log import get_logger
from headrace.rpc.interceptors.around import around

if TYPE_CHECKING:
    from headrace.rpc.interceptors.around import Context

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Control messages take milliseconds, long polls seconds."""

log = get_logger()


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Metrics `headrace_rpc_*` and a debug line for each call; a warning for one that failed.

    Args:
        registry: Where the metrics are registered.
        now: Seconds of a monotonic clock.

    """

    def __init__(
        self, registry: CollectorRegistry, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = now
        self._started = Counter(
            "headrace_rpc_started", "Calls begun.", ["method"], registry=registry
        )
        self._handled = Counter(
            "headrace_rpc_handled", "Calls ended.", ["method", "code"], registry=registry
        )
        self._seconds = Histogram(
            "headrace_rpc_seconds",
            "Time from the begin of a call to its end.",
            ["method"],
            registry=registry,
            buckets=BUCKETS_S,
        )
        self._in_flight = Gauge(
            "headrace_rpc_in_flight", "Calls begun and not ended.", ["method"], registry=registry
        )

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_Request, _Response] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        """Guard the method's handler."""
        handler = await continuation(handler_call_details)
        if handler is None:  # no such method: its name is the caller's invention, not a label
            return None
        method = handler_call_details.method
        return around(handler, lambda context: self._observed(method, context))

    @asynccontextmanager
    async def _observed(self, method: str, context: Context) -> AsyncIterator[None]:
        bind_contextvars(method=method)  # each call is a task with a context of its own
        begun = self._now()
        self._started.labels(method).inc()
        self._in_flight.labels(method).inc()
        code = grpc.StatusCode.CANCELLED
        try:
            yield
            code = context.code() or grpc.StatusCode.OK
        except grpc.aio.AbortError:
            code = context.code() or grpc.StatusCode.UNKNOWN
            raise
        finally:  # left with neither: the caller went away, or its deadline has passed
            self._in_flight.labels(method).dec()
            self._handled.labels(method, code.name).inc()
            seconds = self._now() - begun
            self._seconds.labels(method).observe(seconds)
            _log(method, seconds, code)


def _log(method: str, seconds: float, code: grpc.StatusCode) -> None:
    expected = code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)
    write = log.debug if expected else log.warning
    write("rpc_ended", method=method, seconds=round(seconds, 6), code=code.name)
