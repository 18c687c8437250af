"""Turns what a handler raises into the status that the caller sees.

A `WireError` becomes a status with its reason. Anything else that was not foreseen is
logged here with its traceback, and the caller learns nothing of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import grpc

from headrace.errors import WireError
from headrace.log import get_logger
from headrace.rpc.interceptors.around import Around
from headrace.rpc.status import to_status

if TYPE_CHECKING:
    from headrace.rpc.interceptors.around import Context

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

log = get_logger()


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """The only place where an exception becomes a status."""

    def __init__(self) -> None:
        self._around = Around(_Mapped)

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_Request, _Response] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        """Guard the method's handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return self._around(handler_call_details.method, handler)


class _Mapped:
    """What one call's handler raises becomes the call's status. A class costs less per call."""

    __slots__ = ("_context", "_method")

    def __init__(self, method: str, context: Context) -> None:
        self._method = method
        self._context = context

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, grpc.aio.AbortError) or not isinstance(error, Exception):
            return
        if isinstance(error, WireError):
            await self._context.abort_with_status(to_status(error))
        # What nobody foresaw must neither leak nor go unseen.
        if isinstance(error, NotImplementedError) and _is_unimplemented(self._context):
            await self._context.abort(grpc.StatusCode.UNIMPLEMENTED, "not implemented")
        log.error("handler_failed", method=self._method, exc_info=error)
        await self._context.abort(grpc.StatusCode.INTERNAL, "internal error")


def _is_unimplemented(context: Context) -> bool:
    """Whether a generated servicer said that it has no such method."""
    return context.code() is grpc.StatusCode.UNIMPLEMENTED
