"""An engine without a model: lengths, latencies and failures by seed.

For tests and for trying a set-up. Imports no torch; of weights it reads the manifest only.
Every outcome is a function of (seed, uid, session, attempt), and of how long what it goes on behind
is. A response grows while time passes.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.config.rollout import ScriptedEngine as ScriptedEngineConfig
from headrace.rollout.engines.base import EngineError, EngineStatus, Sample, SampleRequest
from headrace.rollout.engines.weights import confirm_manifest
from headrace.v1 import prompt_pb2
from headrace.v1.trajectory_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP

_TICK_S: Final = 0.05
"""How often a response grows."""


@dataclass(frozen=True, slots=True)
class Script:
    """What becomes of one sequence."""

    latency_s: float
    fails: bool
    hangs: bool
    token_ids: list[int]
    """Those that follow what it goes on behind."""
    logprobs: list[float]
    stops: bool


def script(
    config: ScriptedEngineConfig, request: SampleRequest, *, vocab_size: int, eos_id: int
) -> Script:
    """Write down what becomes of a sequence.

    Latency is exponential, and so much per token. The length is uniform from `min_tokens` to the
    request's limit; a sequence shorter than that ends with the stop token. One that goes on behind
    a prefix is as long as those are that have not stopped within it: interrupted or not, lengths
    come as often.
    """
    draw = random.Random(request.seed(config.seed))
    latency_s = -math.log(1 - draw.random()) * config.mean_latency_s
    fails = draw.random() < config.failure_rate
    hangs = draw.random() < config.hang_rate
    limit, begun_with = request.max_response_length, len(request.response.token_ids)
    length = draw.randint(max(min(config.min_tokens, limit), begun_with + 1), limit)
    stops = length < limit
    length -= begun_with
    latency_s += length * config.token_latency_s
    token_ids = [_other_than(eos_id, draw.randrange(vocab_size - 1)) for _ in range(length)]
    if stops:
        token_ids[-1] = eos_id
    logprobs = [math.log(1 - draw.random()) for _ in token_ids]
    return Script(latency_s, fails, hangs, token_ids, logprobs, stops)


def _other_than(eos_id: int, below: int) -> int:
    return below if below < eos_id else below + 1


class ScriptedEngine:
    """Plays scripts.

    Args:
        config: The engine's section.
        vocab_size: Token ids are below this; at least 2.
        eos_id: The token that ends a response.
        partial: Whether new weights take over in the middle of sequences.
        sleep: How time passes.

    """

    kind = "scripted"

    def __init__(
        self,
        config: ScriptedEngineConfig,
        *,
        vocab_size: int,
        eos_id: int,
        partial: bool = False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config = config
        self._partial = partial
        self._vocab_size = vocab_size
        self._eos_id = eos_id
        self._sleep = sleep
        self._failing_file = Path(config.failing_file) if config.failing_file else None
        self._weights: prompt_pb2.WeightsId | None = None
        self._playing: set[asyncio.Future[Sample]] = set()
        self._generated = 0
        self._aborted = 0

    async def start(self) -> None:
        """Do nothing: there is nothing to get ready."""

    async def close(self) -> None:
        """Abort what is under way."""
        for future in list(self._playing):
            future.cancel()
        await asyncio.gather(*self._playing, return_exceptions=True)

    async def load(self, weights: prompt_pb2.PublishedWeights) -> None:
        """Take `load_latency_s`, and check the manifest.

        Raises:
            EngineError: The manifest is not what was published.

        """
        await self._sleep(self._config.load_latency_s)
        await asyncio.to_thread(confirm_manifest, weights)
        self._weights = weights.id

    def generate(self, requests: Sequence[SampleRequest]) -> list[asyncio.Future[Sample]]:
        """Play each sequence's script."""
        assert self._weights is not None, "weights are loaded before the first request"
        futures: list[asyncio.Future[Sample]] = []
        for request in requests:
            future = asyncio.ensure_future(self._play(request, self._weights))
            self._playing.add(future)
            future.add_done_callback(self._playing.discard)
            futures.append(future)
        return futures

    def when_lost(self, tell: Callable[[], None]) -> None:
        """Do nothing: it cannot be lost without the worker."""

    def status(self) -> EngineStatus:
        """Say what was done so far."""
        return EngineStatus(self._generated, self._aborted)

    async def _play(self, request: SampleRequest, weights: prompt_pb2.WeightsId) -> Sample:
        script_ = script(self._config, request, vocab_size=self._vocab_size, eos_id=self._eos_id)
        length, begun_with = len(script_.token_ids), len(request.response.token_ids)
        ticks = max(1, min(length, math.ceil(script_.latency_s / _TICK_S)))
        try:
            for tick in range(ticks):
                if script_.latency_s:
                    await self._sleep(script_.latency_s / ticks)
                if tick == ticks - 1:
                    await self._fail_or_hang(script_, request)
                if self._partial:
                    weights = self._weights or weights
                new = slice(tick * length // ticks, (tick + 1) * length // ticks)
                request.response.extend(script_.token_ids[new], script_.logprobs[new], weights)
                self._generated += new.stop - new.start
        except BaseException:
            self._aborted += len(request.response.token_ids) - begun_with
            raise
        reason = FINISH_REASON_STOP if script_.stops else FINISH_REASON_LENGTH
        return Sample(request.response, reason)

    async def _fail_or_hang(self, script_: Script, request: SampleRequest) -> None:
        if self._failing_file is not None and self._failing_file.exists():
            raise EngineError(f"scripted: {self._failing_file} is there")
        if script_.fails:
            raise EngineError(
                f"scripted failure of {request.uid} session {request.session} "
                f"attempt {request.attempt}"
            )
        if script_.hangs:
            await asyncio.get_running_loop().create_future()
