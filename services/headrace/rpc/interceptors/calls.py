"""Counts, times and logs every call that a server answers.

Knows nothing of what the calls do. Must stand outside the `ErrorInterceptor`, so that it
sees the code that the caller sees.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeVar

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from structlog.contextvars import bind_contextvars

from headrace.log import get_logger
from headrace.rpc.interceptors.around import Around

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

        self._methods: dict[str, _Method] = {}
        self._around = Around(self._observed)

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
        return self._around(handler_call_details.method, handler)

    def _observed(self, name: str, context: Context) -> _Observed:
        method = self._methods.get(name)
        if method is None:
            method = self._methods[name] = _Method(
                name,
                started=self._started.labels(name),
                in_flight=self._in_flight.labels(name),
                seconds=self._seconds.labels(name),
                handled={},
            )
        return _Observed(self, method, context)

    def begin(self, method: _Method) -> float:
        """Count a call that begins; return when that was."""
        method.started.inc()
        method.in_flight.inc()
        return self._now()

    def end(self, method: _Method, begun: float, code: grpc.StatusCode) -> None:
        """Count a call that ended."""
        method.in_flight.dec()
        handled = method.handled.get(code)
        if handled is None:
            handled = method.handled[code] = self._handled.labels(method.name, code.name)
        handled.inc()
        seconds = self._now() - begun
        method.seconds.observe(seconds)
        _log(method.name, seconds, code)


@dataclass(frozen=True)
class _Method:
    """The metrics of a method, looked up once."""

    name: str
    started: Counter
    in_flight: Gauge
    seconds: Histogram
    handled: dict[grpc.StatusCode, Counter]


class _Observed:
    """One call, from its begin to its end. A class costs less per call than a generator."""

    __slots__ = ("_begun", "_calls", "_context", "_method")

    def __init__(self, calls: CallInterceptor, method: _Method, context: Context) -> None:
        self._calls = calls
        self._method = method
        self._context = context

    async def __aenter__(self) -> None:
        bind_contextvars(method=self._method.name)  # each call is a task with a context of its own
        self._begun = self._calls.begin(self._method)

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if error is None:
            code = self._context.code() or grpc.StatusCode.OK
        elif isinstance(error, grpc.aio.AbortError):
            code = self._context.code() or grpc.StatusCode.UNKNOWN
        else:  # the caller went away, or its deadline has passed
            code = grpc.StatusCode.CANCELLED
        self._calls.end(self._method, self._begun, code)


def _log(method: str, seconds: float, code: grpc.StatusCode) -> None:
    expected = code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)
    write = log.debug if expected else log.warning
    write("rpc_ended", method=method, seconds=round(seconds, 6), code=code.name)
