"""The engines without a worker: prompts in, tokens out, and nothing is done with those.

They are used with the same settings and in the same way as the worker's: batches of as many
sequences, each token's log-probability, vLLM in a process of its own and token by token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from headrace.config.rollout import TorchEngine
    from headrace.config.vllm import VllmEngine


class BareEngine(Protocol):
    """Generates."""

    async def generate(self, prompts: Sequence[Sequence[int]], *, most_tokens: int) -> int:
        """Sample a response to each, and return how many tokens they have."""
        ...

    async def close(self) -> None:
        """Give up all resources."""
        ...


class BareTorch:
    """The sampler on a thread, batch after batch.

    Args:
        config: The engine's section.
        directory: The weights.
        eos_id: Ends a response.

    """

    def __init__(self, config: TorchEngine, directory: Path, *, eos_id: int) -> None:
        import torch

        from headrace.rollout.engines.model import build_model

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = build_model(directory, device=device, dtype=torch.float32)
        self._size = config.max_batch_sequences
        self._eos_id = eos_id
        self._seed = 0
        self._is_given_up = False

    async def generate(self, prompts: Sequence[Sequence[int]], *, most_tokens: int) -> int:
        """Sample a response to each, and return how many tokens they have."""
        try:
            return await asyncio.to_thread(self._generate, prompts, most_tokens)
        except asyncio.CancelledError:
            self._is_given_up = True  # the thread is waited for
            raise

    def _generate(self, prompts: Sequence[Sequence[int]], most_tokens: int) -> int:
        from headrace.rollout.engines import sampler

        made = 0
        for begin in range(0, len(prompts), self._size):
            if self._is_given_up:
                break
            batch = []
            for prompt in prompts[begin : begin + self._size]:
                self._seed += 1
                batch.append(
                    sampler.Prompt(
                        token_ids=tuple(prompt),
                        temperature=1.0,
                        max_new_tokens=most_tokens,
                        seed=self._seed,
                    )
                )
            pieces = sampler.sample(
                self._model, batch, eos_id=self._eos_id, aborted=lambda _index: self._is_given_up
            )
            made += sum(len(piece.token_ids) for piece in pieces)
        return made

    async def close(self) -> None:
        """Do nothing."""


class BareVllm:
    """`AsyncLLM` itself, with the arguments that the worker's has."""

    def __init__(self, llm: Any, *, eos_id: int) -> None:
        self._llm = llm
        self._eos_id = eos_id
        self._count = 0

    @classmethod
    async def start(
        cls, config: VllmEngine, directory: Path, *, max_length: int, eos_id: int
    ) -> BareVllm:
        """Start vLLM."""
        from vllm.v1.engine.async_llm import AsyncLLM

        from headrace.rollout.engines.vllm_args import make_config

        own = await asyncio.to_thread(make_config, config, directory, max_length=max_length, seed=0)
        llm = await asyncio.to_thread(AsyncLLM.from_vllm_config, own, disable_log_stats=True)
        return cls(llm, eos_id=eos_id)

    async def generate(self, prompts: Sequence[Sequence[int]], *, most_tokens: int) -> int:
        """Sample a response to each, and return how many tokens they have."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            max_tokens=most_tokens,
            stop_token_ids=[self._eos_id],
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            skip_clone=True,
        )
        return sum(await asyncio.gather(*(self._one(prompt, params) for prompt in prompts)))

    async def _one(self, prompt: Sequence[int], params: Any) -> int:
        from vllm.inputs.engine import tokens_input

        self._count += 1
        made = 0
        async for output in self._llm.generate(
            tokens_input(list(prompt)), params, str(self._count)
        ):
            made += len(output.outputs[0].token_ids)
        return made

    async def close(self) -> None:
        """End vLLM's process."""
        if (reading := self._llm.output_handler) is not None:
            reading.cancel()  # it would print that the process has ended
        await asyncio.to_thread(self._llm.shutdown)
        await asyncio.sleep(0)  # it has the loop close its sockets
