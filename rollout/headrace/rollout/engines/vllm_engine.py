"""The engine that has a vLLM of its own.

vLLM is started with the first weights. Later ones come into the running one:

    shut the gate ─► (drain) ─► freeze ─► replace ─► thaw ─► probe ─► open the gate

Either the sequences under way are drained, each finished by the weights it began with; or they go
on with the new ones behind what they have (`partial`). No sequence is given back before the probe
has found that vLLM computes with its weights what the trainer does. A vLLM that is dead, or whose
weights are not certain, is ended, and the next load starts another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.config.vllm import VllmEngine as VllmEngineConfig
from headrace.errors import UsageError
from headrace.rollout.engines import probe, vllm_args
from headrace.rollout.engines.base import (
    EngineError,
    EngineLoad,
    EngineLostError,
    EngineStatus,
    Sample,
    SampleRequest,
)
from headrace.rollout.engines.gate import Gate
from headrace.rollout.engines.held import held
from headrace.rollout.engines.mean_length import MeanLength
from headrace.rollout.engines.probe import Probe, ProbeError
from headrace.rollout.engines.receiver import Sender
from headrace.rollout.engines.vllm_failure import lost, one_line
from headrace.rollout.engines.vllm_keeper import Keeper
from headrace.rollout.engines.vllm_whole import check_whole, label_of
from headrace.rollout.engines.weights import WEIGHTS_NAME, confirm, read_tensors
from headrace.rpc.waits import Waits
from headrace.v1 import prompt_pb2

if TYPE_CHECKING:
    from headrace.rollout.engines.vllm_life import Life, Piece

_START_S: Final = 1800.0
"""A start that takes longer is a stall: a large model is read, compiled and warmed up in it. One
that takes twice as long is given up, and another tried."""


class VllmEngine:
    """Samples with vLLM.

    Args:
        config: The engine's section.
        eos_id: The token that ends a response.
        seed: What is drawn follows from it, and from what else was sampled before and beside.
        max_length: The most tokens of a prompt with its response.
        partial: Whether sequences under way go on with newer weights.
        receives: Whether the trainer may send weights to vLLM's processes.
        tmpdir: Where files of weights are linked to while vLLM reads them; None = the system's
            folder for temporary files.
        silence_s: A vLLM that gives no token for so long, though it should, is dead.
        waits: Where it is named what is waited for.

    """

    kind = "vllm"

    def __init__(
        self,
        config: VllmEngineConfig,
        *,
        eos_id: int,
        seed: int,
        max_length: int,
        partial: bool,
        receives: bool = False,
        tmpdir: Path | None = None,
        silence_s: float,
        waits: Waits,
    ) -> None:
        self._config = config
        self._eos_id = eos_id
        self._seed = seed
        self._max_length = max_length
        self._partial = partial
        self._receives = receives
        self._tmpdir = tmpdir
        self._silence_s = silence_s
        self._waits = waits
        self._keeper = Keeper(self.kind, silence_s=silence_s, waits=waits)
        self._weights = prompt_pb2.WeightsId()
        self._gate = Gate()
        self._agreed = asyncio.Event()
        """That the weights are what the trainer computes with."""
        self._under_way: set[asyncio.Task[Sample]] = set()
        self._load = EngineLoad()
        self._length = MeanLength(max_length)
        self._generated = 0
        self._aborted = 0
        self._probe_gap: float | None = None

    @property
    def _life(self) -> Life | None:
        return self._keeper.life

    async def start(self) -> None:
        """Import vLLM, and have it check what is configured; it is started with the first weights.

        Raises:
            UsageError: It cannot be imported, or the arguments are wrong.

        """
        with self._waits.waiting("vLLM to be imported", owner="vllm", stall_after_s=_START_S):
            await asyncio.to_thread(vllm_args.prepare, self._config)

    async def close(self) -> None:
        """Abort what is under way, and end vLLM's processes."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._keeper.end()

    def when_lost(self, tell: Callable[[], None]) -> None:
        """Have `tell` called when vLLM has died by itself."""
        self._keeper.when_lost(tell)

    def status(self) -> EngineStatus:
        """Say what was done so far."""
        return EngineStatus(
            generated_token_count=self._generated,
            aborted_token_count=self._aborted,
            probe_gap=self._probe_gap,
            held_back_s=self._gate.shut_s,
            room=self._room(),
            load=self._load,
        )

    def _room(self) -> int | None:
        if self._life is None:
            return None
        if self._gate.is_shut:
            return 0
        fitting = int(self._life.kv_token_count / self._length.tokens)
        return max(1, min(fitting, self._life.max_sequences))

    async def load(self, weights: prompt_pb2.PublishedWeights) -> None:
        """Take weights, and confirm by the probe that vLLM has them.

        Raises:
            EngineError: They are not what was published; the old ones stay. Or they cannot be
                loaded, or vLLM finds other log-probabilities with them; then vLLM is ended.
            UsageError: vLLM cannot do what is configured.

        """
        await self._keeper.ended()
        async with held(Path(weights.uri), parent=self._tmpdir) as files:
            await asyncio.to_thread(confirm, weights, at=files)
            wanted = await asyncio.to_thread(probe.read, files)
            with self._gate.shut():
                if not self._partial:
                    await self._drain()
                update = {"path": str(files / WEIGHTS_NAME)}
                if (life := self._life) is None:
                    taking = self._start_life(files, weights.id)
                else:
                    taking = self._update_life(life, update, weights.id, self._silence_s)
                await self._confirmed(taking, wanted, weights.id.version)

    async def receive(self, weights: prompt_pb2.PublishedWeights, sender: Sender) -> None:
        """Take weights that the trainer sends to vLLM's processes; all but the file is here.

        Raises:
            EngineError: As `load` does; or vLLM or the trainer cannot, and the old ones stay.

        """
        life = self._life
        if life is None:
            raise EngineError("vLLM is not running: it starts with a file")
        directory = await asyncio.to_thread(confirm, weights, without=[WEIGHTS_NAME])
        update = await asyncio.to_thread(read_tensors, directory)
        wanted = await asyncio.to_thread(probe.read, directory)
        try:
            await self._join(life, sender)
            with self._gate.shut():
                if not self._partial:
                    await self._drain()
                await sender.send(weights.id)
                taking = self._update_life(life, update, weights.id, sender.timeout_s)
                await self._confirmed(taking, wanted, weights.id.version)
        except BaseException:
            await sender.close()
            raise

    async def _join(self, life: Life, sender: Sender) -> None:
        """Have vLLM's processes in one group with the trainer's, if they are not."""
        if life.has_joined and sender.is_open:
            return
        invitation = await sender.open(life.model_process_count)
        try:
            async with asyncio.timeout(sender.timeout_s):
                await self._keeper.within(life, life.join(invitation))
        except Exception as error:
            # What waits in NCCL waits for good: several processes, for the one that failed.
            hangs = isinstance(error, TimeoutError) or life.model_process_count > 1
            if hangs or life is not self._life:
                await self._keeper.end()
                raise lost(error, "vLLM did not join the trainer") from error
            raise EngineError(f"vLLM did not join the trainer: {one_line(error)}") from error

    async def _confirmed(self, taking: Awaitable[None], wanted: Probe | None, version: int) -> None:
        """Take weights, and compare. A vLLM whose weights are not certain is ended."""
        try:
            await taking
            await self._compare(wanted)
        except (UsageError, asyncio.CancelledError):
            await self._keeper.end()
            raise
        except Exception as error:  # whatever vLLM raises: its weights are not certain
            await self._keeper.end()
            raise lost(error, f"version {version} was not loaded") from error
        self._agreed.set()

    async def _drain(self) -> None:
        if self._gate.inside:
            ends_when = f"those that version {self._weights.version} began are done"
            with self._waits.waiting("sequences to end", owner="vllm", ends_when=ends_when):
                await self._gate.empty()

    async def _start_life(self, directory: Path, weights: prompt_pb2.WeightsId) -> None:
        # Imported here: it takes long, and is done in `start`.
        from headrace.rollout.engines.vllm_life import Life
        from headrace.rollout.engines.vllm_stats import kept_in

        with self._waits.waiting(
            "vLLM to start", owner="vllm", ends_when="the model is loaded", stall_after_s=_START_S
        ):
            config = await asyncio.to_thread(
                vllm_args.make_config,
                self._config,
                directory,
                max_length=self._max_length,
                seed=self._seed,
                receives=self._receives,
            )
            async with asyncio.timeout(2 * _START_S):
                life = await Life.start(config, kept_in(self._load), label_of(weights))
        self._keeper.have(life)
        self._weights = weights
        self._gate.places = life.max_sequences + life.max_sequences // 4

    async def _update_life(
        self, life: Life, update: Mapping[str, Any], weights: prompt_pb2.WeightsId, timeout_s: float
    ) -> None:
        ends_when = f"version {weights.version} is loaded"
        with self._waits.waiting("vLLM to take weights", owner="vllm", ends_when=ends_when):
            async with asyncio.timeout(timeout_s):
                await self._keeper.within(life, self._replace(life, update, weights))

    async def _replace(
        self, life: Life, update: Mapping[str, Any], weights: prompt_pb2.WeightsId
    ) -> None:
        await life.freeze()
        self._agreed.clear()
        await life.replace_weights(update, label_of(weights))
        # What the old ones made has long been taken: it came before the first answer.
        self._weights = weights
        await life.thaw()

    async def _compare(self, wanted: Probe | None) -> None:
        """See that vLLM computes what the trainer does, if the trainer says what that is."""
        self._probe_gap = None
        life = self._life
        if wanted is not None and life is not None:
            async with asyncio.timeout(self._silence_s):
                found = await self._keeper.within(life, life.score(wanted.sequences))
            try:
                self._probe_gap = wanted.check(
                    found,
                    # What is quantized is no number format that anything is known of.
                    dtype=self._config.quantization or self._config.dtype,
                    tolerance=self._config.logprob_tolerance,
                )
            except ProbeError as error:
                self._probe_gap = error.mean
                raise
        if life is None or life is not self._life:
            raise EngineLostError("vLLM died with its new weights")

    def generate(self, requests: Sequence[SampleRequest]) -> list[asyncio.Future[Sample]]:
        """Sample each as soon as there is a place for it."""
        futures: list[asyncio.Future[Sample]] = []
        for request in requests:
            task = asyncio.create_task(self._sample(request), name=f"sample {request.uid}")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            futures.append(task)
        return futures

    async def _sample(self, request: SampleRequest) -> Sample:
        async with self._gate.entered():
            life = self._life
            if life is None:
                raise EngineLostError("vLLM was lost before it began with this sequence")
            begun = len(request.response.token_ids)
            try:
                with self._keeper.inside():
                    sample = await self._stream(life, request)
            except BaseException as error:
                self._aborted += len(request.response.token_ids) - begun
                if isinstance(error, EngineError):
                    raise
                if life.is_dead:
                    self._keeper.lose(life, "died")
                if life is not self._life:
                    raise lost(error, "vLLM was lost") from error
                if isinstance(error, Exception):
                    raise EngineError(one_line(error)) from error
                raise
        self._length.add(len(request.prompt_token_ids) + len(sample.response.token_ids))
        return sample

    async def _stream(self, life: Life, request: SampleRequest) -> Sample:
        """Put what vLLM makes behind what there is of a response, until it is done.

        What new weights make is not shown to anybody before they are known to be right.
        """
        response = request.response
        begun = len(response.token_ids)
        last: Piece | None = None
        prompt = [*request.prompt_token_ids, *response.token_ids]
        if (most := max(prompt)) >= life.vocab_size:  # vLLM would die of it
            raise EngineError(f"token {most} of the prompt is none of the {life.vocab_size} it has")
        pieces = life.sample(
            prompt,
            temperature=request.temperature,
            max_tokens=request.max_response_length - begun,
            stop_id=self._eos_id,
        )
        async with aclosing(pieces):
            async for last in pieces:
                weights = self._weights
                if not self._agreed.is_set():
                    await self._agreed.wait()
                if life is not self._life:
                    raise EngineLostError("vLLM was lost before its weights were known to be right")
                response.extend(last.token_ids, last.logprobs, weights)
                self._generated += len(last.token_ids)
        return Sample(response, check_whole(request, begun, last, stop_id=self._eos_id))
