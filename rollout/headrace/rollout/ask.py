"""Asking a peer. Only its absence is a wait of its own.

A worker always has a long poll open, and what it waits for then is named where its work is
looked at as a whole (`worker.py`); so a call counts as a wait only once a try has failed.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import grpc

from headrace.errors import WireError
from headrace.rpc.calls import Stopped, persist
from headrace.rpc.failures import failure_of, is_worth_repeating
from headrace.rpc.waits import Waits

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

REFUSALS = (WireError, grpc.aio.AioRpcError)
"""What an answered call may have failed with."""


class Peer:
    """Calls one peer until it answers.

    Args:
        owner: Its name.
        waits: Where its absence is registered.
        stopping: Ends the waiting when set.

    """

    def __init__(self, owner: str, *, waits: Waits, stopping: asyncio.Event) -> None:
        self._owner = owner
        self._waits = waits
        self._stopping = stopping

    async def ask(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[_Request, _Response],
        request: _Request,
        *,
        timeout_s: float = 10.0,
    ) -> _Response:
        """Return the answer, however long the peer is away.

        Raises:
            UsageError: The peer does not speak with this process.
            WireError: The peer refuses.
            grpc.aio.AioRpcError: The same, without a reason of ours.
            Stopped: `stopping` was set before there was an answer.

        """
        if self._stopping.is_set():
            raise Stopped(f"told to stop before asking {self._owner}")
        try:
            return await method(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as failed:
            if not is_worth_repeating(failed):
                raise failure_of(failed, self._owner) from failed
        return await persist(
            method,
            request,
            waits=self._waits,
            name=f"{self._owner} to answer",
            owner=self._owner,
            timeout_s=timeout_s,
            stopping=self._stopping,
        )
