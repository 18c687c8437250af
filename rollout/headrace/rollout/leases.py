"""Asks for work: one call for as many groups as there is room for.

Knows nothing of what becomes of a group. A call is never given up, since its answer may hold
leases: when newer weights come while one waits, another one is made with those, and whichever is
granted something is welcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from headrace.errors import WeightsUnknownError
from headrace.log import get_logger
from headrace.rollout.ask import REFUSALS, Peer
from headrace.rollout.changes import Changes
from headrace.rollout.pause import Pause
from headrace.rollout.weights import Weights
from headrace.rpc.calls import Stopped
from headrace.rpc.waits import Waits
from headrace.v1 import prompt_pb2, replay_pb2

if TYPE_CHECKING:
    from headrace.v1 import replay_pb2_grpc

log = get_logger()


class Leases:
    """Takes leases as long as there is room.

    Args:
        worker_id: The name to lease under.
        weights: What the worker has.
        room: How many more groups there is room for.
        most_per_call: So that the answer fits into a message.
        wait_s: How long one call waits for work. A worker that goes home waits for the answer.
        accept: Takes leases, with the weights that they were asked for with; never fails.
        go_home: Called when the ledger says that the worker is to end.
        pause: Between failures.
        changes: Notified when room, weights or anything else may have changed.

    """

    def __init__(
        self,
        *,
        worker_id: str,
        weights: Weights,
        room: Callable[[], int],
        most_per_call: int,
        wait_s: float,
        accept: Callable[[Sequence[prompt_pb2.Lease], prompt_pb2.WeightsId], None],
        go_home: Callable[[], None],
        replay: Peer,
        stub: replay_pb2_grpc.ReplayBufferServiceAsyncStub,
        pause: Pause,
        changes: Changes,
        waits: Waits,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.blocked_by = ""
        """Why the last call got nothing."""
        self._worker_id = worker_id
        self._weights = weights
        self._room = room
        self._most_per_call = most_per_call
        self._wait_s = wait_s
        self._accept = accept
        self._go_home = go_home
        self._replay = replay
        self._stub = stub
        self._pause = pause
        self._changes = changes
        self._waits = waits
        self._sleep = sleep
        self._calls: dict[asyncio.Task[None], str] = {}
        """Calls under way, with the checksum of the weights they name."""
        self._broken: BaseException | None = None
        """What a call failed with that was not foreseen, or that only the user can change."""

    async def run(self) -> None:
        """Lease whenever there is room, while the run is on.

        Raises:
            UsageError: The ledger does not speak with this worker.

        """
        while True:
            if self._pause.left_s > 0:
                with self._waits.waiting(
                    "pause after a failure", owner="worker", ends_when="its time is over"
                ):
                    await self._sleep(self._pause.left_s)
            if self._broken is not None:
                raise self._broken
            weights, room = self._weights.current, self._room()
            if weights is not None and room > 0 and self._is_free(weights):
                self._start_call(weights, min(room, self._most_per_call))
            await self._changes.wait()

    def _is_free(self, weights: prompt_pb2.PublishedWeights) -> bool:
        """Whether there is something to be asked with these weights, and no call does already."""
        return not self._weights.ended and weights.checksum not in self._calls.values()

    async def settle(self) -> None:
        """Wait for the calls under way, so that no lease is granted to nobody."""
        if self._calls:
            await asyncio.wait(self._calls)

    def _start_call(self, weights: prompt_pb2.PublishedWeights, count: int) -> None:
        call = asyncio.create_task(self._call(weights, count), name="lease call")
        self._calls[call] = weights.checksum
        call.add_done_callback(self._end_call)

    def _end_call(self, call: asyncio.Task[None]) -> None:
        del self._calls[call]
        if not call.cancelled():
            self._broken = self._broken or call.exception()
        self._changes.notify()

    async def _call(self, weights: prompt_pb2.PublishedWeights, count: int) -> None:
        request = replay_pb2.LeasePromptsRequest(
            worker_id=self._worker_id,
            max_count=count,
            weights=weights.id,
            weights_checksum=weights.checksum,
            wait_s=self._wait_s,
        )
        try:
            answer = await self._replay.ask(
                self._stub.LeasePrompts, request, timeout_s=self._wait_s + 10
            )
        except Stopped:
            return
        except WeightsUnknownError as error:
            log.warning("weights_refused", version=weights.id.version, error=str(error))
            self._pause.fail()
            if self._weights.current is weights:
                self._weights.refuse()
            return
        except REFUSALS as error:
            log.warning("no_lease", error=str(error))
            self._pause.fail()
            return
        if answer.ended:
            self._weights.note_end(True)
        self.blocked_by = answer.blocked_by
        if answer.go_home:
            self._go_home()
        self._accept(answer.leases, weights.id)
