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
    Guard: TypeAlias = Callable[[str, Context], AbstractAsyncContextManager[None]]
    """By the method's name."""

_MAKERS: dict[tuple[bool, bool], Callable[..., Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""By (request streaming, response streaming)."""


class Around:
    """Handlers inside `guard(method, context)`, each made once for all calls of its method."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._made: dict[str, tuple[Handler, Handler]] = {}

    def __call__(self, method: str, handler: Handler) -> Handler:
        """Return a handler that runs `handler` inside the guard."""
        made = self._made.get(method)
        if made is None or made[0] is not handler:
            made = self._made[method] = handler, around(method, handler, self._guard)
        return made[1]


def around(method: str, handler: Handler, guard: Guard) -> Handler:
    """Return a handler that runs `handler` inside `guard(method, context)`."""
    kind = (handler.request_streaming, handler.response_streaming)
    behavior = _behavior(handler)
    make = _generator if inspect.isasyncgenfunction(behavior) else _coroutine
    return _MAKERS[kind](
        make(method, behavior, guard),
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


def _coroutine(method: str, behavior: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    """Guard a method that returns its answer, or writes its answers to the context."""

    async def guarded(request: object, context: Context) -> object:
        async with guard(method, context):
            return await behavior(request, context)

    return guarded


def _generator(method: str, behavior: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    """Guard a method that yields its answers."""

    async def guarded(request: object, context: Context) -> AsyncIterator[object]:
        # A caller that goes away ends this generator; the method's own must end with it, now.
        async with guard(method, context), aclosing(behavior(request, context)) as responses:
            async for response in responses:
                yield response

    return guarded
