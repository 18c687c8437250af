"""The replay buffer and the store, as the coordinator asks them: until they answer.

Each wait is registered under the one who can end it. Knows nothing of what the answers are for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import grpc

from headrace.rpc.calls import persist, poll
from headrace.rpc.waits import Waiting, Waits
from headrace.v1 import replay_pb2, resume_pb2, store_pb2

if TYPE_CHECKING:
    from headrace.v1.replay_pb2_grpc import ReplayBufferServiceAsyncStub
    from headrace.v1.store_pb2_grpc import TrajectoryStoreServiceAsyncStub

REPLAY: Final = "replay buffer"
STORE: Final = "store"
POLL_S: Final = 10.0
"""How long one poll of a phase waits."""
ANSWER_S: Final = 10.0
"""How much longer the answer to a poll may take."""
KEYS_PER_CALL: Final = 65_536
"""The most keys that a question to the store, or a report of lost ones, may have."""
LOOK_AGAIN_S: Final = 0.2

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class Peers:
    """Those whom the coordinator asks.

    Args:
        replay: The replay buffer.
        store: The store.
        waits: Where waits are registered.
        stopping: Ends every wait.
        work_s: How long writing or restoring a part may take.

    Every method raises what `persist` raises: a WireError for a refusal, Stopped, and what has no
    reason of ours as it came.

    """

    def __init__(
        self,
        replay: ReplayBufferServiceAsyncStub,
        store: TrajectoryStoreServiceAsyncStub,
        *,
        waits: Waits,
        stopping: asyncio.Event,
        work_s: float,
    ) -> None:
        self.replay = replay
        self.store = store
        self._waits = waits
        self._stopping = stopping
        self._work_s = work_s

    async def status(self) -> replay_pb2.GetReplayStatusResponse:
        """Ask where the run is."""
        return await self.ask_replay(
            self.replay.GetReplayStatus, replay_pb2.GetReplayStatusRequest(), "the run's state"
        )

    async def store_status(self) -> store_pb2.GetStoreStatusResponse:
        """Ask what the store holds, once it has started."""
        request = store_pb2.GetStoreStatusRequest()
        with self.waiting("the store's start", owner=STORE, ends_when="it serves"):
            while True:
                status = await self._poll(self.store.GetStoreStatus, request, STORE, ANSWER_S)
                if status.store_incarnation:
                    return status
                await asyncio.sleep(LOOK_AGAIN_S)

    async def ask_replay(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[_Request, _Response],
        request: _Request,
        name: str,
    ) -> _Response:
        """Ask the replay buffer something that it answers at once."""
        return await self._ask(method, request, name, REPLAY)

    async def ask_store(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[_Request, _Response],
        request: _Request,
        name: str,
    ) -> _Response:
        """Ask the store something that it answers at once."""
        return await self._ask(method, request, name, STORE)

    async def work_of_replay(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[_Request, _Response],
        request: _Request,
        name: str,
    ) -> _Response:
        """Have the replay buffer do something that takes its time."""
        return await self._work(method, request, name, REPLAY)

    async def work_of_store(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[_Request, _Response],
        request: _Request,
        name: str,
    ) -> _Response:
        """Have the store do something that takes its time."""
        return await self._work(method, request, name, STORE)

    async def _ask(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[_Request, _Response],
        request: _Request,
        name: str,
        owner: str,
    ) -> _Response:
        return await persist(
            method,
            request,
            waits=self._waits,
            name=name,
            owner=owner,
            stopping=self._stopping,
        )

    async def _work(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[_Request, _Response],
        request: _Request,
        name: str,
        owner: str,
    ) -> _Response:
        with self.waiting(name, owner=owner, ends_when="it is done", stall_after_s=self._work_s):
            return await self._poll(method, request, owner, self._work_s)

    async def advance(
        self,
        resume_id: str,
        phase: resume_pb2.ResumePhase.ValueType,
        *,
        wait_for: str = "",
        owner: str = REPLAY,
        blocked: Callable[[str], None] = lambda _: None,
    ) -> resume_pb2.ResumeState:
        """Wait until a phase of a resume has begun.

        Args:
            resume_id: The resume.
            phase: The phase.
            wait_for: What the phase before waits for, in words.
            owner: Who can end that.
            blocked: Told what it waits for, as the replay buffer says it.

        """
        request = replay_pb2.AdvanceResumeRequest(resume_id=resume_id, phase=phase, wait_s=POLL_S)
        with self.waiting(wait_for or "the next phase", owner=owner, ends_when="") as wait:
            while True:
                answer = await self._poll(
                    self.replay.AdvanceResume, request, REPLAY, POLL_S + ANSWER_S
                )
                if answer.state.phase >= phase:
                    blocked("")
                    return answer.state
                wait.ends_when = answer.blocked_by
                blocked(answer.blocked_by)

    @contextmanager
    def waiting(
        self, name: str, *, owner: str, ends_when: str, stall_after_s: float | None = None
    ) -> Iterator[Waiting]:
        """Register a wait; see `Waits.waiting`."""
        with self._waits.waiting(
            name, owner=owner, ends_when=ends_when, stall_after_s=stall_after_s
        ) as wait:
            yield wait

    async def _poll(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[_Request, _Response],
        request: _Request,
        owner: str,
        timeout_s: float,
    ) -> _Response:
        return await poll(
            method,
            request,
            waits=self._waits,
            owner=owner,
            timeout_s=timeout_s,
            stopping=self._stopping,
        )
