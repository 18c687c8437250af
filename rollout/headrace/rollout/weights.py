"""Follows the published weights: asks for newer ones, has them loaded, says what is confirmed.

Weights that the trainer serves are got from it first. While it is away, the ledger is asked before
each try whether they are still wanted. Weights with which the engine does not compute what the
trainer does are not taken; they, or later ones, are tried again. Knows nothing of leases. What it
names as `current` was checked by this very worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from headrace.log import get_logger
from headrace.rollout.ask import REFUSALS, Peer
from headrace.rollout.changes import Changes
from headrace.rollout.direct import DirectWay
from headrace.rollout.download import DownloadError, Downloads, TrainerAwayError
from headrace.rollout.engines.base import Engine, EngineError
from headrace.rollout.engines.probe import ProbeError
from headrace.rollout.pause import Pause
from headrace.rpc.calls import Stopped
from headrace.rpc.waits import Waiting, Waits
from headrace.v1 import prompt_pb2, replay_pb2
from headrace.weights.transfer import GRPC_URI

if TYPE_CHECKING:
    from headrace.v1 import replay_pb2_grpc

POLL_S: Final = 5.0
"""How long one call waits for newer weights."""
END_PAUSE_S: Final = 2.0
"""Pause between two looks at whether a run that is over goes on."""

log = get_logger()


class Weights:
    """The weights the worker has.

    Args:
        engine: Loads and checks them.
        replay: The ledger.
        stub: The same.
        downloads: Gets what the trainer serves; None if the workers share a directory with it.
        direct: Takes them without files; None if that is not configured, or not for this engine.
        waits: Where the trainer's absence is registered.
        changes: Notified when there are other ones.
        lost: Called when the engine has none any more.
        pause: Between failures.
        sleep: How time passes.

    """

    def __init__(
        self,
        engine: Engine,
        *,
        replay: Peer,
        stub: replay_pb2_grpc.ReplayBufferServiceAsyncStub,
        downloads: Downloads | None,
        direct: DirectWay | None,
        waits: Waits,
        changes: Changes,
        lost: Callable[[], None],
        pause: Pause,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.current: prompt_pb2.PublishedWeights | None = None
        """Loaded and confirmed; None before the first, and if the engine has lost them."""
        self.ended = False
        """The run is over: there are no others, unless a resume goes back behind the end."""
        self.refused_as = ""
        """Why the last ones could not be loaded; empty if they were."""
        self._engine = engine
        self._replay = replay
        self._stub = stub
        self._downloads = downloads
        self._direct = direct
        self._waits = waits
        self._changes = changes
        self._lost = lost
        self._pause = pause
        self._sleep = sleep

    def refuse(self) -> None:
        """Note that the ledger does not know the current ones: the newest are loaded anew."""
        self.current = None
        self._changes.notify()

    def lose(self) -> None:
        """Note that the engine has none: nothing is leased until it has taken some again."""
        self.current = None
        self._changes.notify()
        self._lost()

    async def run(self) -> None:
        """Follow until the worker stops."""
        while await self._follow():
            await self._sleep(END_PAUSE_S)

    async def _follow(self) -> bool:
        """Follow until the run is over or the worker stops; say whether it is over."""
        with ExitStack() as trouble:
            wait: Waiting | None = None
            while (weights := await self._newest()) is not None:
                try:
                    await self._take(weights)
                except (TrainerAwayError, ProbeError) as error:
                    name, ends_when = _wanted(error, weights.id.version)
                    if wait is None or wait.name != name:
                        trouble.close()
                        wait = trouble.enter_context(self._waits.waiting(name, owner="trainer"))
                    wait.ends_when = f"{ends_when}; last: {error}"
                    await self._hold_back()
                else:
                    trouble.close()
                    wait = None
        return self.ended

    async def _newest(self) -> prompt_pb2.PublishedWeights | None:
        """Wait for other ones than the current; None once there is nothing to wait for."""
        while True:
            newer_than = self.current.id if self.current is not None else None
            request = replay_pb2.AwaitWeightsRequest(newer_than=newer_than, wait_s=POLL_S)
            try:
                answer = await self._replay.ask(
                    self._stub.AwaitWeights, request, timeout_s=POLL_S + 10
                )
            except Stopped:
                return None
            except REFUSALS as error:
                log.warning("no_news_of_weights", error=str(error))
                await self._hold_back()
                continue
            self.note_end(answer.ended)
            if answer.ended:
                return None
            if answer.HasField("weights"):
                return answer.weights

    def note_end(self, ended: bool) -> None:
        """Note whether the run is over, as the ledger last said."""
        if ended != self.ended:
            self.ended = ended
            self._changes.notify()

    async def _take(self, weights: prompt_pb2.PublishedWeights) -> None:
        """Have them here, and loaded.

        Raises:
            TrainerAwayError: They could not be got.
            ProbeError: The engine does not compute with them what the trainer does.

        """
        try:
            await self._load(weights)
        except (EngineError, DownloadError) as error:
            log.warning("weights_not_loaded", version=weights.id.version, error=str(error))
            self.refused_as = str(error)
            if isinstance(error, EngineError) and error.weights_lost:
                self.lose()
            if isinstance(error, ProbeError):
                raise
            # Pruned meanwhile, most likely: the next answer names newer ones.
            await self._hold_back()
            return
        self._pause.succeed()
        self.current, self.refused_as = weights, ""
        log.info(
            "weights_loaded",
            lineage=weights.id.lineage,
            version=weights.id.version,
            probe_gap=self._engine.status().probe_gap,
        )

    async def _load(self, weights: prompt_pb2.PublishedWeights) -> None:
        """Have the engine take them. It may have room again then, also if it did not."""
        try:
            await self._bring(weights)
        finally:
            self._changes.notify()

    async def _bring(self, weights: prompt_pb2.PublishedWeights) -> None:
        if weights.uri != GRPC_URI:
            await self._engine.load(weights)
            return
        if self._downloads is None:
            raise DownloadError(
                "the trainer serves its weights: set weights.transport: grpc for this worker, too"
            )
        # An engine without weights starts with files.
        direct = self._direct if self.current is not None else None
        if direct is not None and await direct.take(weights, self.lose):
            return
        here = await self._downloads.get(weights)
        try:
            await self._engine.load(here)
        except EngineError:
            await self._downloads.distrust(weights)
            raise

    async def _hold_back(self) -> None:
        self._pause.fail()
        await self._sleep(self._pause.left_s)


def _wanted(error: TrainerAwayError | ProbeError, version: int) -> tuple[str, str]:
    """Name the wait for what an error says is not there, and say what ends it."""
    if isinstance(error, TrainerAwayError):
        return "weights to arrive", f"it gives version {version}"
    return "weights that agree", f"the engine agrees with it on version {version} or a later one"
