"""One life of vLLM: from its start with a directory of weights to the end of its processes.

Speaks vLLM's language; knows nothing of versions that were published, groups and the worker.

    worker ── AsyncLLM ── engine core (a process) ── vLLM's workers (one process per GPU)
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import multiprocessing
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, Self

import psutil
from vllm.distributed.weight_transfer.base import (
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
)
from vllm.envs import enable_envs_cache
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from headrace.rollout.engines.receiver import Invitation
from headrace.rollout.engines.vllm_weights import OWNER_VARIABLE

_SHUTDOWN_S: Final = 2.0
"""For what vLLM's processes do at their end; nothing of it is needed."""
_END_S: Final = 30.0
"""For all of vLLM's own end. What it has not ended by then is killed."""
_CORE_NAME: Final = "EngineCore"
"""How the names of vLLM's processes begin, as multiprocessing has them."""


class Piece(NamedTuple):
    """Some more tokens of a sequence, at least one."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """Of each token, under the distribution that it was drawn from."""
    end: str | None
    """With the last piece, why there is no other: `stop`, `length`, or what vLLM calls it."""
    labels: Sequence[tuple[str, int]]
    """With the last piece, the weights that made the sequence: label and how many tokens."""


class Life:
    """A vLLM that runs."""

    def __init__(self, llm: AsyncLLM, processes: Sequence[psutil.Process]) -> None:
        self._llm = llm
        self._processes = processes
        self._names = count()
        self._now = asyncio.get_running_loop().time
        self._running = 0
        self._frozen = False
        self._last_sign = 0.0
        self.has_joined = False
        """Whether its processes are in a group that the trainer sends weights to."""

    @classmethod
    async def start(cls, config: Any, stats: type[StatLoggerBase], label: str) -> Self:
        """Start vLLM with a directory of weights, which are called `label` from then on.

        Args:
            config: Its `VllmConfig`.
            stats: What is told of each step.
            label: The name of the weights.

        Raises:
            Exception: Whatever vLLM raises. Its processes are gone then.

        """
        os.environ[OWNER_VARIABLE] = str(os.getpid())
        starting = asyncio.create_task(
            asyncio.to_thread(
                AsyncLLM.from_vllm_config,
                config,
                stat_loggers=[stats],
                disable_log_stats=True,  # vLLM's own loggers
            )
        )
        try:
            llm = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await cls._abandon(starting)
            raise
        except Exception:
            await asyncio.to_thread(_kill, _cores())
            raise
        life = cls(llm, _with_descendants(_cores()))
        enable_envs_cache()  # it looks one up with each token
        _freeze_heap()
        try:
            await llm.update_weight_version(label)
        except BaseException:
            await life.close()
            raise
        return life

    @classmethod
    async def _abandon(cls, starting: asyncio.Task[AsyncLLM]) -> None:
        """End a start. Its thread comes to its end, with an error, when its processes are gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                while not starting.done():
                    await asyncio.to_thread(_kill, _cores())
                    await asyncio.wait([starting], timeout=0.2)
        if starting.done() and starting.exception() is None:
            await cls(starting.result(), _with_descendants(_cores())).close()

    @property
    def kv_token_count(self) -> int:
        """Tokens whose keys and values fit into memory."""
        config = self._llm.vllm_config.cache_config
        return int(config.num_gpu_blocks) * int(config.block_size)

    @property
    def model_process_count(self) -> int:
        """Processes that have a part of the model each."""
        config = self._llm.vllm_config.parallel_config
        return int(config.world_size) * int(config.data_parallel_size)

    @property
    def vocab_size(self) -> int:
        """Tokens that the model knows."""
        return int(self._llm.model_config.get_vocab_size())

    @property
    def max_sequences(self) -> int:
        """Sequences that are in a batch at most."""
        return int(self._llm.vllm_config.scheduler_config.max_num_seqs)

    async def sample(
        self, prompt: Sequence[int], *, temperature: float, max_tokens: int, stop_id: int
    ) -> AsyncGenerator[Piece, None]:
        """Sample one sequence. Whoever leaves off early aborts it.

        Raises:
            Exception: Whatever vLLM raises.

        """
        params = SamplingParams(
            temperature=temperature,
            max_tokens=max_tokens,
            stop_token_ids=[stop_id],
            ignore_eos=True,  # the model's own may be another one
            logprobs=0,  # of the tokens drawn only
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            skip_clone=True,
        )
        outputs = self._llm.generate(tokens_input(list(prompt)), params, str(next(self._names)))
        self._running += 1
        if self._running == 1:
            self._last_sign = self._now()
        try:
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    self._last_sign = self._now()
                    yield _piece(output)
        finally:
            self._running -= 1

    async def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each token after the first, at temperature 1.

        Raises:
            Exception: Whatever vLLM raises.

        """
        return list(await asyncio.gather(*(self._score(each) for each in sequences)))

    async def _score(self, sequence: Sequence[int]) -> list[float]:
        params = SamplingParams(
            max_tokens=1,
            prompt_logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        found: Sequence[Any] = ()
        async for output in self._llm.generate(
            tokens_input(list(sequence)), params, str(next(self._names))
        ):
            found = output.prompt_logprobs or ()
        return [at[token].logprob for token, at in zip(sequence[1:], found[1:], strict=True)]

    async def freeze(self) -> None:
        """Have no sequence go on, and forget all keys and values: they are of the old weights."""
        self._frozen = True
        await self._llm.pause_generation(mode="keep", clear_cache=True)

    async def join(self, invitation: Invitation) -> None:
        """Have its processes join a group of the trainer's.

        Raises:
            Exception: Whatever vLLM raises. If one process fails, others may be waiting for it.

        """
        self.has_joined = False
        await self._llm.init_weight_transfer_engine(
            WeightTransferInitRequest(
                {
                    "nccl_unique_id_b64": base64.b64encode(invitation.nccl_unique_id).decode(),
                    "rank_offset": 1,
                    "world_size": self.model_process_count + 1,
                    "packed": True,
                    "packed_buffer_size_bytes": invitation.packed_buffer_bytes,
                    "packed_num_buffers": invitation.packed_buffer_count,
                }
            )
        )
        self.has_joined = True

    async def replace_weights(self, update: Mapping[str, Any], label: str) -> None:
        """Take other weights while frozen, and see that vLLM calls them so.

        Args:
            update: Where they come from, as the way of transfer knows it.
            label: Their name.

        Raises:
            Exception: Whatever vLLM raises. It is of no more use then.

        """
        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(dict(update)))
        await self._llm.finish_weight_update(weight_version=label)
        found = await self._llm.get_weight_version()
        if found != label:
            msg = f"vLLM has weights {found} after an update to {label}"
            raise RuntimeError(msg)

    async def thaw(self) -> None:
        """Have the sequences go on."""
        await self._llm.resume_generation()
        self._last_sign = self._now()
        self._frozen = False

    @property
    def is_dead(self) -> bool:
        """Whether it has died."""
        return bool(self._llm.errored) or not all(map(_is_alive, self._processes))

    @property
    def silent_s(self) -> float:
        """For how many seconds it has given no token, though it had sequences."""
        return self._now() - self._last_sign if self._running and not self._frozen else 0.0

    async def close(self) -> None:
        """End its processes, for sure."""
        with contextlib.suppress(Exception):  # what is left is killed below
            async with asyncio.timeout(_END_S):
                await asyncio.to_thread(self._llm.shutdown, _SHUTDOWN_S)
            await asyncio.sleep(0)  # it has the loop close its sockets
            self._llm.engine_core.resources.ctx.destroy(linger=0)
        await asyncio.to_thread(_kill, self._processes)


def _freeze_heap() -> None:
    """Spare Python's collector what vLLM has made: to look through it takes half a second.

    It would do that with every few ten thousand tokens.
    """
    gc.unfreeze()  # what is left of an earlier life goes
    gc.collect()
    gc.freeze()


def _piece(output: Any) -> Piece:
    made = output.outputs[0]
    pairs = zip(made.token_ids, made.logprobs or (), strict=True)
    return Piece(
        made.token_ids,
        [at[token].logprob for token, at in pairs],
        made.finish_reason,
        [(span.version, span.end - span.start) for span in made.weight_versions or ()],
    )


def _cores() -> list[psutil.Process]:
    """Find the processes that vLLM has started from here."""
    found = []
    for child in multiprocessing.active_children():
        if child.name.startswith(_CORE_NAME) and child.pid is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(child.pid))
    return found


def _with_descendants(cores: Sequence[psutil.Process]) -> list[psutil.Process]:
    found = list(cores)
    for core in cores:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += core.children(recursive=True)
    return found


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in _with_descendants(processes):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=5)
