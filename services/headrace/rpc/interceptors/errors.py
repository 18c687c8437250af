"""Turns what a handler raises into the status that the caller sees.

A `WireError` becomes a status with its reason. Anything else that was not foreseen is
logged here with its traceback, and the caller learns nothing of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import grpc

from headrace.errors import WireError
from headrace.log import get_logger
from headrace.rpc.interceptors.around import around
from headrace.rpc.status import to_status

if TYPE_CHECKING:
    from headrace.rpc.interceptors.around import Context

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

log = get_logger()


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """The only place where an exception becomes a status."""

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
        method = handler_call_details.method
        return around(handler, lambda context: _mapped(method, context))


@asynccontextmanager
async def _mapped(method: str, context: Context) -> AsyncIterator[None]:
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except WireError as error:
        await context.abort_with_status(to_status(error))
    except Exception as error:  # what nobody foresaw must neither leak nor go unseen
        if isinstance(error, NotImplementedError) and _is_unimplemented(context):
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not implemented")
        log.exception("handler_failed", method=method)
        await context.abort(grpc.StatusCode.INTERNAL, "internal error")


def _is_unimplemented(context: Context) -> bool:
    """Whether a generated servicer said that it has no such method."""
    return context.code() is grpc.StatusCode.UNIMPLEMENTED
