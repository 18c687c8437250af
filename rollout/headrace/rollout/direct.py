"""Takes weights straight from the trainer's GPU into the engine, where both can; else says why not.

    small files ─► Engine.receive ─► taken        or: not this time, and files are got as always

After a failure it is left alone for a while, longer each time. Knows nothing of NCCL.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from headrace.log import get_logger
from headrace.rollout.download import Downloads
from headrace.rollout.engines.base import EngineError
from headrace.rollout.engines.receiver import Receiver, Sender
from headrace.rollout.pause import Pause
from headrace.v1 import prompt_pb2
from headrace.weights.tensors import WEIGHTS_NAME

FIRST_PAUSE_S: Final = 60.0
LONGEST_PAUSE_S: Final = 3600.0

log = get_logger()


class DirectWay:
    """The way around the files.

    Args:
        engine: Receives.
        sender: Sends.
        downloads: Gets the small files of a version.
        now: Seconds of a monotonic clock.

    """

    def __init__(
        self,
        engine: Receiver,
        sender: Sender,
        downloads: Downloads,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._sender = sender
        self._downloads = downloads
        self._now = now
        self._pause = Pause(
            now=now, jitter=lambda: 1.0, first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S
        )
        self._last_reason = ""

    async def take(self, weights: prompt_pb2.PublishedWeights, lost: Callable[[], None]) -> bool:
        """Have the engine take a version, if it can be had so.

        Args:
            weights: The version.
            lost: Called if the engine has no weights any more after it was tried.

        Returns:
            Whether it has it.

        Raises:
            DownloadError, TrainerAwayError, UsageError: The small files cannot be got.

        """
        if self._pause.left_s > 0:
            return False
        begun = self._now()
        here = await self._downloads.get(weights, without=[WEIGHTS_NAME])
        try:
            await self._engine.receive(here, self._sender)
        except EngineError as error:
            self._pause.fail()
            self._say(weights.id.version, str(error))
            if error.weights_lost:
                lost()
            return False
        self._pause.succeed()
        self._last_reason = ""
        seconds = round(self._now() - begun, 3)
        log.info("weights_received", version=weights.id.version, seconds=seconds)
        return True

    def _say(self, version: int, reason: str) -> None:
        """Warn, once for a reason."""
        say = log.info if reason == self._last_reason else log.warning
        self._last_reason = reason
        say(
            "weights_not_received",
            version=version,
            reason=reason,
            effect="they are got as files",
            next_try_s=round(self._pause.left_s),
        )
