"""Looks at a run from outside, and writes down all that it is told.

Speaks gRPC by the protos alone: no client code of headrace's is between it and the answers. The
history is append-only and lies outside of the system, for the judge.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from history import Entry

from headrace.v1 import replay_pb2 as pb
from headrace.v1 import replay_pb2_grpc

if TYPE_CHECKING:
    from headrace.v1.replay_pb2_grpc import ReplayBufferServiceAsyncStub

_Answer = TypeVar("_Answer")

OUTAGES = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,  # by one that stops
    grpc.StatusCode.ABORTED,  # by a replay buffer that was fenced: the newer one will answer
)
AGAIN_S = 0.05
RECONNECT = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
]


class Watcher:
    """Asks the replay buffer, again and again if nobody answers.

    Args:
        channel: To the replay buffer.
        outage_s: How long nobody may answer.

    Attributes:
        told: The position up to which it was told of every event.

    """

    def __init__(self, channel: grpc.aio.Channel, *, outage_s: float) -> None:
        self.history: list[Entry] = []
        self.told = 0
        self.replay: ReplayBufferServiceAsyncStub = replay_pb2_grpc.ReplayBufferServiceStub(channel)
        self._channel = channel
        self._outage_s = outage_s

    async def close(self) -> None:
        await self._channel.close()

    # -- writing down

    def _note(self, call: str, request: Any, answer: Any, error: str = "") -> None:
        self.history.append(Entry(time.monotonic(), call, request, answer, error))

    async def call(self, name: str, request: Any, *, timeout_s: float = 5.0) -> Any:
        """Call the replay buffer until it answers; write down each try."""
        method = getattr(self.replay, name)

        async def once() -> Any:
            return await method(request, timeout=timeout_s)

        return await self._insist(name, request, once)

    async def _insist(
        self, name: str, request: Any, once: Callable[[], Awaitable[_Answer]]
    ) -> _Answer:
        given_up = time.monotonic() + self._outage_s
        while True:
            try:
                answer = await once()
            except grpc.aio.AioRpcError as failed:
                self._note(name, request, None, f"{failed.code().name}: {failed.details()}")
                if failed.code() not in OUTAGES or time.monotonic() > given_up:
                    raise
                await asyncio.sleep(AGAIN_S)
            else:
                self._note(name, request, answer)
                return answer

    # -- looking

    async def audit(self) -> pb.AuditResponse:
        answer: pb.AuditResponse = await self.call("Audit", pb.AuditRequest())
        return answer

    async def status(self) -> pb.GetReplayStatusResponse:
        answer: pb.GetReplayStatusResponse = await self.call(
            "GetReplayStatus", pb.GetReplayStatusRequest()
        )
        return answer

    async def keep_auditing(self, every_s: float = 0.5) -> None:
        """Audit for ever."""
        while True:
            await self.audit()
            await asyncio.sleep(every_s)

    async def keep_watching(self) -> None:
        """Be told of every event as soon as it is acknowledged, for ever."""
        request = pb.WatchEventsRequest()
        while True:
            try:
                async for answer in self.replay.WatchEvents(request):
                    self._note("WatchEvents", request, answer)
                    self.told = int(answer.events[-1].position)
                    request = pb.WatchEventsRequest(after_position=self.told)
            except grpc.aio.AioRpcError as failed:
                self._note(
                    "WatchEvents", request, None, f"{failed.code().name}: {failed.details()}"
                )
                if failed.code() not in OUTAGES:
                    raise
            await asyncio.sleep(AGAIN_S)
