"""A vLLM engine over tiny models that are made on the spot, and what transformers says of them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import probed
import pytest
import torch

from headrace.config.vllm import VllmEngine as VllmConfig
from headrace.rollout.engines.base import Response, Sample, SampleRequest
from headrace.rollout.engines.vllm_engine import VllmEngine
from headrace.rpc.waits import Waits
from headrace.tokenizer.load import load_tokenizer

MARKS = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    # vLLM's own, and those of what it imports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed context:ResourceWarning"),
]
POSITIONS = 2048
TEMPERATURE = 0.7
EOS = load_tokenizer(probed.settings()).eos_id

_ROPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": POSITIONS,
}  # fmt: skip
_GPT2 = {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": POSITIONS}
MODELS: dict[str, dict[str, Any]] = {
    f"{architecture}-{'tied' if tied else 'untied'}": {
        "architecture": architecture,
        "options": {**options, "tie_word_embeddings": tied},
    }
    for architecture, options in (("gpt2", _GPT2), ("qwen3", _ROPE), ("llama", _ROPE))
    for tied in (True, False)
}


def make_model(name: str, seed: int, *, endless: bool = False, **others: Any) -> Any:
    """Make a model; an `endless` one never stops by itself (a GPT-2 with an untied head)."""
    model = probed.trained(probed.settings(seed, **MODELS[name], **others))
    if endless:
        with torch.no_grad():
            # All that comes out of the last norm points this way, and the stop token's row away.
            way = torch.ones_like(model.transformer.ln_f.bias) / model.config.n_embd**0.5
            model.transformer.ln_f.bias += 10 * way
            model.lm_head.weight -= model.lm_head.weight @ way[:, None] * way
            model.lm_head.weight[EOS] = -100 * way
    return model


def settings(**options: Any) -> VllmConfig:
    return VllmConfig(kind="vllm", threads=1, kv_cache_memory_bytes=2**26, **options)


@asynccontextmanager
async def running(
    *,
    partial: bool = False,
    receives: bool = False,
    silence_s: float = 120,
    waits: Waits | None = None,
    **options: Any,
) -> AsyncIterator[Any]:
    """Give an engine, without weights."""
    engine = VllmEngine(
        settings(**options), eos_id=EOS, seed=1, max_length=POSITIONS, partial=partial,
        receives=receives, silence_s=silence_s,
        waits=waits or Waits(stall_after_s=600),
    )  # fmt: skip
    await engine.start()
    from vllm.envs import disable_envs_cache

    try:
        yield engine
    finally:
        await engine.close()
        disable_envs_cache()  # the next test may have another environment
        gc.collect()  # so that what vLLM leaves unclosed is complained of here, where it is known


def request(
    session: int, *, limit: int = 24, prompt: Sequence[int] = (), response: Response | None = None
) -> SampleRequest:
    return SampleRequest(
        uid="e0r0", session=session, attempt=1,
        prompt_token_ids=prompt or [5, 6, 7][: 1 + session % 3],
        temperature=TEMPERATURE, max_response_length=limit, response=response or Response(),
    )  # fmt: skip


async def grown(requests: Sequence[SampleRequest], count: int) -> None:
    """Wait until each response has so many tokens."""
    async with asyncio.timeout(120):
        while not all(len(asked.response.token_ids) >= count for asked in requests):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def spans(asked: SampleRequest) -> list[tuple[int, int, int]]:
    """Version, begin and end of each of a response's spans."""
    return [(span.version, span.begin, span.end) for span in asked.response.weight_spans]


async def sampled(engine: Any, requests: Sequence[SampleRequest]) -> list[Sample]:
    async with asyncio.timeout(300):
        return list(await asyncio.gather(*engine.generate(requests)))


def gap(model: Any, asked: SampleRequest, *, begin: int = 0, end: int | None = None) -> float:
    """The largest difference of a response's log-probabilities to what a model says of them."""
    prompt, response = asked.prompt_token_ids, asked.response
    ids = torch.tensor([[*prompt, *response.token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    logp = torch.log_softmax(logits / asked.temperature, dim=-1)
    wanted = logp.gather(-1, torch.tensor(response.token_ids)[:, None])[:, 0]
    found = torch.tensor(response.logprobs)
    return float((found - wanted)[begin:end].abs().max())
