"""Calls that outlive the peer's outages.

Which failures are worth another try is in `headrace.rpc.failures`. Knows nothing of what the
calls are about.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from headrace.errors import HeadraceError
from headrace.log import get_logger
from headrace.rpc.failures import detail_of, failure_of, is_worth_repeating

if TYPE_CHECKING:
    from headrace.rpc.waits import Waits

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Result = TypeVar("_Result")

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0

log = get_logger()


class Stopped(HeadraceError):  # noqa: N818 (not a failure)
    """The process was told to stop while it waited."""


async def persist(
    method: grpc.aio.UnaryUnaryMultiCallable[_Request, _Response],
    request: _Request,
    *,
    waits: Waits,
    name: str,
    owner: str,
    timeout_s: float = 10.0,
    ends_when: str = "",
    stopping: asyncio.Event | None = None,
    jitter: Callable[[], float] = random.random,
) -> _Response:
    """Call a method that is safe to repeat, until it is answered.

    Args:
        method: A method of a stub.
        request: Sent again unchanged each time.
        waits: Where the wait is registered.
        name: What is waited for, in words.
        owner: The process that answers.
        timeout_s: Deadline of each try. A long poll needs more than its own wait.
        ends_when: What ends the wait, in words; empty = that the owner answers. How the last try
            failed is added to it.
        stopping: Ends the wait when set.
        jitter: Uniform in [0, 1).

    Raises:
        UsageError: The peer does not speak with this process: its token, its certificates, its
            run or its version of the protocol is not what it has to be.
        WireError: The answer was a refusal that another try would not change.
        grpc.aio.AioRpcError: The same, without a reason of ours.
        Stopped: `stopping` was set before an answer came.

    """
    pauses = _pauses(jitter)
    ends_when, trouble = ends_when or f"{owner} answers", ""
    with waits.waiting(name, owner=owner, ends_when=ends_when) as wait:
        while True:
            try:
                return await _unless_stopped(_call(method, request, timeout_s), stopping, name)
            except grpc.aio.AioRpcError as failed:
                if not is_worth_repeating(failed):
                    raise failure_of(failed, owner) from failed
                detail = detail_of(failed)
                if detail != trouble:
                    trouble = detail
                    log.info("call_failed", waiting_for=name, owner=owner, detail=detail)
                    wait.ends_when = f"{ends_when} (the last try failed: {detail})"
            await _unless_stopped(asyncio.sleep(next(pauses)), stopping, name)


async def poll(
    method: grpc.aio.UnaryUnaryMultiCallable[_Request, _Response],
    request: _Request,
    *,
    waits: Waits,
    owner: str,
    timeout_s: float,
    stopping: asyncio.Event | None = None,
) -> _Response:
    """Ask once more in a wait that the caller has registered, and that may take many polls.

    Only the owner's absence is a wait of its own, with the process's usual limit.

    Raises:
        UsageError, WireError, grpc.aio.AioRpcError, Stopped: As `persist`.

    """
    name = f"{owner} to answer"
    try:
        return await _unless_stopped(_call(method, request, timeout_s), stopping, name)
    except grpc.aio.AioRpcError as failed:
        if not is_worth_repeating(failed):
            raise failure_of(failed, owner) from failed
    return await persist(
        method,
        request,
        waits=waits,
        name=name,
        owner=owner,
        timeout_s=timeout_s,
        stopping=stopping,
    )


async def _call(
    method: grpc.aio.UnaryUnaryMultiCallable[_Request, _Response],
    request: _Request,
    timeout_s: float,
) -> _Response:
    return await method(request, timeout=timeout_s)


async def _unless_stopped(
    work: Coroutine[Any, Any, _Result], stopping: asyncio.Event | None, name: str
) -> _Result:
    """Return what `work` returns; end it when `stopping` is set first.

    Raises:
        Stopped: It was.

    """
    if stopping is None:
        return await work
    if stopping.is_set():
        work.close()
        raise Stopped(f"told to stop while waiting for {name}")
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Stopped(f"told to stop while waiting for {name}")
    finally:
        task.cancel()
        stop.cancel()


def _pauses(jitter: Callable[[], float]) -> Iterator[float]:
    """Yield seconds between tries: half to all of a bound that doubles each time."""
    bound_s = FIRST_PAUSE_S
    while True:
        yield bound_s * (0.5 + 0.5 * jitter())
        bound_s = min(2 * bound_s, LONGEST_PAUSE_S)
