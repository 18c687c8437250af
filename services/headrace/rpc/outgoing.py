"""Interceptors that complete the details of every call that a channel makes.

Knows the kinds of calls and channels, not what is filled in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

Fill = Callable[[Any], Any]
"""Completes a call's details. Both flavours are named tuples, of types without a common base."""


class _Filling:
    def __init__(self, fill: Fill) -> None:
        self._fill = fill


class _UnaryUnary(_Filling, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        return await continuation(self._fill(client_call_details), request)


class _UnaryStream(_Filling, grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        return await continuation(self._fill(client_call_details), request)


class _StreamUnary(_Filling, grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        return await continuation(self._fill(client_call_details), request_iterator)


class _StreamStream(_Filling, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        return await continuation(self._fill(client_call_details), request_iterator)


def aio_interceptors(fill: Fill) -> list[grpc.aio.ClientInterceptor]:
    """Return the interceptors for an asynchronous channel, which wants one object per kind."""
    return [_UnaryUnary(fill), _UnaryStream(fill), _StreamUnary(fill), _StreamStream(fill)]


class SyncInterceptor(
    _Filling,
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """The interceptor for a synchronous channel."""

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """Complete the call's details."""
        return continuation(self._fill(client_call_details), request)

    def intercept_stream_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        """Complete the call's details."""
        return continuation(self._fill(client_call_details), request_iterator)

    intercept_unary_stream = intercept_unary_unary
    intercept_stream_stream = intercept_stream_unary
