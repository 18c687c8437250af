"""Keeps the history of a run from outside: every event that the replay buffer shows, once.

What was shown must never be gone or other later: that is what an acknowledgement means. Goes on
through every death of the replay buffer. Knows nothing of what the events mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import grpc

from headrace.rpc.channel import open_channel
from headrace.rpc.security import Security
from headrace.v1 import prompt_pb2, replay_pb2, replay_pb2_grpc

RETRY_S: Final = 0.1
LOOK_EVERY_S: Final = 0.25


class Recorder:
    """Watches one run.

    Args:
        address: Gives the replay buffer's address, once it is known.

    Attributes:
        events: All that were shown, in order.
        statuses: What the replay buffer said of itself now and then.
        contradictions: Events that were gone, or other, when they were shown again.

    """

    def __init__(self, address: Callable[[], str | None]) -> None:
        self._address = address
        self.events: list[prompt_pb2.LedgerEvent] = []
        self.statuses: list[replay_pb2.GetReplayStatusResponse] = []
        self.contradictions: list[str] = []

    @property
    def last(self) -> replay_pb2.GetReplayStatusResponse:
        """The newest status; an empty one before the first."""
        return self.statuses[-1] if self.statuses else replay_pb2.GetReplayStatusResponse()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again(self._watch))
            group.create_task(self._again(self._look))

    async def audit(self, *, patience_s: float = 30.0) -> replay_pb2.AuditResponse:
        """Have the run audit itself, once everything up to then is recorded."""
        async with asyncio.timeout(patience_s), open_channel(await self._known(), Security()) as at:
            stub = replay_pb2_grpc.ReplayBufferServiceStub(at)
            answer = await stub.Audit(replay_pb2.AuditRequest(), timeout=patience_s)
            while self._position < answer.position:  # noqa: ASYNC110 (no event for it)
                await asyncio.sleep(RETRY_S)
            return answer

    @property
    def _position(self) -> int:
        return self.events[-1].position if self.events else 0

    async def _known(self) -> str:
        while (address := self._address()) is None:  # noqa: ASYNC110 (no event for it)
            await asyncio.sleep(RETRY_S)
        return address

    async def _again(self, look: Callable[[str], Awaitable[None]]) -> None:
        """Go on after each death of the replay buffer."""
        while True:
            try:
                await look(await self._known())
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    self.contradictions.append(
                        f"the journal ends before position {self._position}, which was shown: "
                        f"{error.details()}"
                    )
                    return
            await asyncio.sleep(RETRY_S)

    async def _watch(self, address: str) -> None:
        async with open_channel(address, Security()) as channel:
            stub = replay_pb2_grpc.ReplayBufferServiceStub(channel)
            # The last one again: it must be what it was.
            after = max(0, self._position - 1)
            async for message in stub.WatchEvents(
                replay_pb2.WatchEventsRequest(after_position=after)
            ):
                for event in message.events:
                    self._take(event)

    def _take(self, event: prompt_pb2.LedgerEvent) -> None:
        if event.position <= self._position:
            before = self.events[event.position - self.events[0].position]
            if before != event:
                self.contradictions.append(f"event {event.position} was {before}, and is {event}")
            return
        if event.position != self._position + 1:
            self.contradictions.append(f"event {event.position} follows {self._position}")
        self.events.append(event)

    async def _look(self, address: str) -> None:
        async with open_channel(address, Security()) as channel:
            stub = replay_pb2_grpc.ReplayBufferServiceStub(channel)
            while True:
                request = replay_pb2.GetReplayStatusRequest()
                self.statuses.append(await stub.GetReplayStatus(request, timeout=5))
                await asyncio.sleep(LOOK_EVERY_S)
