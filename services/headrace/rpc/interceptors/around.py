"""Puts a context manager around a method's handler, whichever of the four kinds it is.

Knows nothing of what the context manager is for.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

if TYPE_CHECKING:
    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    Guard: TypeAlias = Callable[[Context], AbstractAsyncContextManager[None]]

_MAKERS: dict[tuple[bool, bool], Callable[..., Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""By (request streaming, response streaming)."""


def around(handler: Handler, guard: Guard) -> Handler:
    """Return a handler that runs `handler` inside `guard(context)`."""
    kind = (handler.request_streaming, handler.response_streaming)
    behavior = _behavior(handler)
    if inspect.isasyncgenfunction(behavior):
        guarded: Callable[..., Any] = _generator(behavior, guard)
    else:
        guarded = _coroutine(behavior, guard)
    return _MAKERS[kind](
        guarded,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _behavior(handler: Handler) -> Callable[..., Any]:
    """Return the servicer's own method."""
    behaviors = (
        handler.unary_unary,
        handler.unary_stream,
        handler.stream_unary,
        handler.stream_stream,
    )
    return next(behavior for behavior in behaviors if behavior is not None)


def _coroutine(behavior: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    """Guard a method that returns its answer, or writes its answers to the context."""

    async def guarded(request: object, context: Context) -> object:
        async with guard(context):
            return await behavior(request, context)

    return guarded


def _generator(behavior: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    """Guard a method that yields its answers."""

    async def guarded(request: object, context: Context) -> AsyncIterator[object]:
        # A caller that goes away ends this generator; the method's own must end with it, now.
        async with guard(context), aclosing(behavior(request, context)) as responses:
            async for response in responses:
                yield response

    return guarded
