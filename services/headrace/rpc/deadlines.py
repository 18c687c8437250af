"""Fills in the deadline of a call that names none.

A service configuration could say it, but its time-out fires too early
(https://github.com/grpc/grpc/issues/34547), so interceptors do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc

DEFAULT_TIMEOUT_S: Final = 10.0
"""The deadline of a call that names none."""


def _filled(details: Any) -> Any:  # both flavours are named tuples, of types without a common base
    """Return the call's details with a deadline."""
    if details.timeout is not None:
        return details
    return details._replace(timeout=DEFAULT_TIMEOUT_S)


class _UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        return await continuation(_filled(client_call_details), request)


class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        return await continuation(_filled(client_call_details), request)


class _StreamUnary(grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        return await continuation(_filled(client_call_details), request_iterator)


class _StreamStream(grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        return await continuation(_filled(client_call_details), request_iterator)


def aio_interceptors() -> list[grpc.aio.ClientInterceptor]:
    """Return the interceptors for an asynchronous channel, which wants one object per kind."""
    return [_UnaryUnary(), _UnaryStream(), _StreamUnary(), _StreamStream()]


class SyncInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """The interceptor for a synchronous channel."""

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """Fill in the deadline."""
        return continuation(_filled(client_call_details), request)

    def intercept_stream_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        """Fill in the deadline."""
        return continuation(_filled(client_call_details), request_iterator)

    intercept_unary_stream = intercept_unary_unary
    intercept_stream_stream = intercept_stream_unary
