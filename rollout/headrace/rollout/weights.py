"""Follows the published weights: asks for newer ones, has them loaded, says what is confirmed.

Knows nothing of leases. What it names as `current` was checked by this very worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from headrace.log import get_logger
from headrace.rollout.ask import REFUSALS, Peer
from headrace.rollout.changes import Changes
from headrace.rollout.engines.base import Engine, EngineError
from headrace.rollout.pause import Pause
from headrace.rpc.calls import Stopped
from headrace.v1 import prompt_pb2, replay_pb2

if TYPE_CHECKING:
    from headrace.v1 import replay_pb2_grpc

POLL_S: Final = 5.0
"""How long one call waits for newer weights."""

log = get_logger()


class Weights:
    """The weights the worker has.

    Args:
        engine: Loads and checks them.
        replay: The ledger.
        stub: The same.
        changes: Notified when there are other ones.
        pause: Between failures.
        sleep: How time passes.

    """

    def __init__(
        self,
        engine: Engine,
        *,
        replay: Peer,
        stub: replay_pb2_grpc.ReplayBufferServiceAsyncStub,
        changes: Changes,
        pause: Pause,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.current: prompt_pb2.PublishedWeights | None = None
        """Loaded and confirmed; None before the first."""
        self._engine = engine
        self._replay = replay
        self._stub = stub
        self._changes = changes
        self._pause = pause
        self._sleep = sleep

    def refuse(self) -> None:
        """Note that the ledger does not know the current ones: the newest are loaded anew."""
        self.current = None
        self._changes.notify()

    async def run(self) -> None:
        """Follow until the run is over or the worker stops."""
        while True:
            try:
                answer = await self._replay.ask(
                    self._stub.AwaitWeights, self._request(), timeout_s=POLL_S + 10
                )
            except Stopped:
                return
            except REFUSALS as error:
                log.warning("no_news_of_weights", error=str(error))
                await self._hold_back()
                continue
            if answer.ended:
                return
            if answer.HasField("weights"):
                await self._load(answer.weights)

    def _request(self) -> replay_pb2.AwaitWeightsRequest:
        newer_than = self.current.id if self.current is not None else None
        return replay_pb2.AwaitWeightsRequest(newer_than=newer_than, wait_s=POLL_S)

    async def _load(self, weights: prompt_pb2.PublishedWeights) -> None:
        try:
            await self._engine.load(weights)
        except EngineError as error:
            # Pruned meanwhile, most likely: the next answer names newer ones.
            log.warning("weights_not_loaded", version=weights.id.version, error=str(error))
            await self._hold_back()
            return
        self._pause.succeed()
        self.current = weights
        self._changes.notify()
        log.info("weights_loaded", lineage=weights.id.lineage, version=weights.id.version)

    async def _hold_back(self) -> None:
        self._pause.fail()
        await self._sleep(self._pause.left_s)
