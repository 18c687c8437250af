"""The engine in the worker's own process: transformers, torch, batches of what is waiting.

One thread owns the model. It samples a batch, and takes new weights only between two of them,
so that a batch is made by one version from beginning to end. With `partial` new weights end the
batch under way between two tokens, and what is unfinished goes on in the next one, as a prompt that
is so much longer. Reading and checking files happens beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from headrace.config.rollout import TorchEngine as TorchEngineConfig
from headrace.errors import UsageError
from headrace.log import get_logger
from headrace.rollout.engines import probe, sampler
from headrace.rollout.engines.base import EngineError, EngineStatus, Sample, SampleRequest
from headrace.rollout.engines.model import build_model, read_state, replace_state, score
from headrace.rollout.engines.probe import Probe, ProbeError
from headrace.rollout.engines.weights import confirm
from headrace.v1 import prompt_pb2
from headrace.v1.trajectory_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP

_FLUSH_S: Final = 0.25
"""How often tokens and sequences that are done are handed over: a short batch at once, a long one
as it goes."""


class _Waiting(NamedTuple):
    """A sequence that is waiting for a batch, or in one."""

    request: SampleRequest
    future: asyncio.Future[Sample]
    begun_with: int
    """Tokens that were in its response before this engine got it."""

    @property
    def sampled_count(self) -> int:
        """Tokens that this engine has sampled."""
        return len(self.request.response.token_ids) - self.begun_with


log = get_logger()


class TorchEngine:
    """Samples all waiting sequences together, up to `max_batch_sequences`.

    Args:
        config: The engine's section.
        eos_id: The token that ends a response.
        seed: What a sequence draws is a function of (seed, uid, session, attempt); which tokens
            come of it depends on the weights, too.
        partial: Whether new weights take over in the middle of sequences.
        batch_ended: Told how many seconds each batch took.

    """

    kind = "torch"

    def __init__(
        self,
        config: TorchEngineConfig,
        *,
        eos_id: int,
        seed: int,
        partial: bool = False,
        batch_ended: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._partial = partial
        self._swap_waits = False
        self._batch_ended = batch_ended
        self._eos_id = eos_id
        self._seed = seed
        self._device = _device(config.device)
        self._dtype = getattr(torch, config.dtype)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._batches: asyncio.Task[None] | None = None
        self._closing = False
        self._model: Any = None
        self._weights: prompt_pb2.WeightsId | None = None
        self._generated = 0
        self._aborted = 0
        self._probe_gap: float | None = None

    async def start(self) -> None:
        """Start the loop that makes batches."""
        if self._config.threads is not None:
            torch.set_num_threads(self._config.threads)
        self._batches = asyncio.create_task(self._run_batches(), name="engine batches")

    async def close(self) -> None:
        """Abort what is under way and end the thread."""
        self._closing = True
        if self._batches is not None:
            self._batches.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._batches
        for each in self._waiting:
            each.future.cancel()
        self._waiting.clear()
        await asyncio.to_thread(self._thread.shutdown)

    def when_lost(self, tell: Callable[[], None]) -> None:
        """Do nothing: it cannot be lost without the worker."""

    def status(self) -> EngineStatus:
        """Say what was done so far."""
        return EngineStatus(self._generated, self._aborted, self._probe_gap)

    async def load(self, weights: prompt_pb2.PublishedWeights) -> None:
        """Read and check beside the batches, swap between two of them, or two tokens of one.

        Raises:
            EngineError: The weights are not what was published, do not fit the model, or give
                other log-probabilities than the trainer's.

        """
        directory = await asyncio.to_thread(confirm, weights)
        wanted = await asyncio.to_thread(probe.read, directory)
        state = await asyncio.to_thread(read_state, directory) if self._model is not None else None
        loop = asyncio.get_running_loop()
        self._swap_waits = self._partial
        await loop.run_in_executor(self._thread, self._swap, directory, state, wanted, weights.id)

    def _swap(
        self, directory: Path, state: Any, wanted: Probe | None, weights: prompt_pb2.WeightsId
    ) -> None:
        """Take weights if they agree with the trainer. Runs on the engine's thread."""
        self._swap_waits = False
        if state is None:
            model = build_model(directory, device=self._device, dtype=self._dtype)
            self._compare(model, wanted)
            self._model = model
        else:
            before = replace_state(self._model, state)
            try:
                self._compare(self._model, wanted)
            except EngineError:
                replace_state(self._model, before)
                raise
        self._weights = weights

    def _compare(self, model: Any, wanted: Probe | None) -> None:
        self._probe_gap = None
        if wanted is None:
            return
        try:
            found = score(model, wanted.sequences)
        except Exception as error:  # whatever torch raises: these weights cannot be used
            raise EngineError(f"the probe cannot be scored: {_one_line(error)}") from error
        try:
            self._probe_gap = wanted.check(
                found, dtype=self._config.dtype, tolerance=self._config.logprob_tolerance
            )
        except ProbeError as error:
            self._probe_gap = error.mean
            raise

    def generate(self, requests: Sequence[SampleRequest]) -> list[asyncio.Future[Sample]]:
        """Queue sequences for the next batch with room."""
        assert self._model is not None, "weights are loaded before the first request"
        loop = asyncio.get_running_loop()
        limit = getattr(self._model.config, "max_position_embeddings", None)
        futures = []
        for request in requests:
            future: asyncio.Future[Sample] = loop.create_future()
            futures.append(future)
            need = len(request.prompt_token_ids) + request.max_response_length
            if limit is not None and need > limit:
                future.set_exception(
                    EngineError(
                        f"prompt and response take up to {need} positions, the model has {limit}"
                    )
                )
            else:
                begun_with = len(request.response.token_ids)
                self._waiting.append(_Waiting(request, future, begun_with))
        self._wake.set()
        return futures

    async def _run_batches(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            batch = self._take()
            if not batch:
                self._wake.clear()
                continue
            begun = time.monotonic()
            try:
                await loop.run_in_executor(self._thread, self._sample_batch, batch, loop)
            except Exception as error:  # whatever torch raises is these sequences' error
                log.error("batch_failed", sequences=len(batch), error=repr(error), exc_info=True)
                for each in batch:
                    _settle(each.future, EngineError(_one_line(error)))
            # What new weights have interrupted goes on with them, before anything else.
            self._waiting.extendleft(each for each in reversed(batch) if not each.future.done())
            self._batch_ended(time.monotonic() - begun)

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < self._config.max_batch_sequences:
            each = self._waiting.popleft()
            if each.future.done():
                self._aborted += each.sampled_count
            else:
                batch.append(each)
        return batch

    def _sample_batch(self, batch: list[_Waiting], loop: asyncio.AbstractEventLoop) -> None:
        """Run on the engine's thread, hand results to the loop's."""
        weights = self._weights
        assert weights is not None
        growth = _Growth(
            lambda pieces: loop.call_soon_threadsafe(self._grow, batch, pieces, weights),
            stops=lambda: self._swap_waits,
        )
        pieces = sampler.sample(
            self._model,
            [self._prompt(each.request) for each in batch],
            eos_id=self._eos_id,
            # Reading a future's state is safe on any thread.
            aborted=lambda index: self._closing or batch[index].future.cancelled(),
            wish=growth.wish,
        )
        for piece in pieces:
            growth.add(piece)
        growth.hand_over()

    def _grow(
        self, batch: list[_Waiting], pieces: list[sampler.Piece], weights: prompt_pb2.WeightsId
    ) -> None:
        """Take what has been sampled. Runs on the loop's thread, in one turn per hand-over."""
        for piece in pieces:
            each = batch[piece.index]
            each.request.response.extend(piece.token_ids, piece.logprobs, weights)
            self._generated += len(piece.token_ids)
            if piece.aborted:
                self._aborted += each.sampled_count
            elif piece.over:
                reason = FINISH_REASON_STOP if piece.stopped else FINISH_REASON_LENGTH
                _settle(each.future, Sample(each.request.response, reason))

    def _prompt(self, request: SampleRequest) -> sampler.Prompt:
        return sampler.Prompt(
            token_ids=(*request.prompt_token_ids, *request.response.token_ids),
            temperature=request.temperature,
            max_new_tokens=request.max_response_length - len(request.response.token_ids),
            seed=request.seed(self._seed),
            drawn=len(request.response.token_ids),
        )


class _Growth:
    """Pieces on their way from the engine's thread to the loop's, a few times a second.

    Args:
        deliver: Takes them, in order.
        stops: Whether the batch is to end.

    """

    def __init__(
        self, deliver: Callable[[list[sampler.Piece]], object], *, stops: Callable[[], bool]
    ) -> None:
        self._deliver = deliver
        self._stops = stops
        self._pieces: list[sampler.Piece] = []
        self._delivered = time.monotonic()
        self._shown = False

    def add(self, piece: sampler.Piece) -> None:
        """Take a piece."""
        self._pieces.append(piece)

    def wish(self) -> sampler.Wish:
        """Say what is wanted of the batch now; hand over what was wanted at the last step."""
        if self._shown:
            self.hand_over()
        if self._stops():
            return sampler.Wish.STOP
        self._shown = time.monotonic() - self._delivered > _FLUSH_S
        return sampler.Wish.SHOW if self._shown else sampler.Wish.GO_ON

    def hand_over(self) -> None:
        """Hand over all that is there."""
        self._deliver(self._pieces)
        self._pieces, self._delivered = [], time.monotonic()


def _settle(future: asyncio.Future[Sample], outcome: Sample | EngineError) -> None:
    if future.done():  # aborted at the last moment
        return
    if isinstance(outcome, EngineError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _device(name: str) -> Any:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"rollout.engine.device = {name} cannot be used ({_one_line(error)}): "
            "set it to auto or cpu"
        ) from error
    return device


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
