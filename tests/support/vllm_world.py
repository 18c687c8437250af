"""A vLLM engine over tiny models that are made on the spot, and what transformers says of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import probed
import pytest
import torch

from headrace.config.vllm import VllmEngine as VllmConfig
from headrace.rollout.engines.base import Sample, SampleRequest
from headrace.rollout.engines.vllm_args import prepare_environment
from headrace.rpc.waits import Waits
from headrace.tokenizer.load import load_tokenizer

MARKS = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    # vLLM's own, and those of what it imports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
POSITIONS = 512
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


def make_model(name: str, seed: int, *, endless: bool = False) -> Any:
    """Make a model; an `endless` one never stops by itself (it must have an untied head)."""
    model = probed.trained(probed.settings(seed, **MODELS[name]))
    if endless:
        with torch.no_grad():
            model.lm_head.weight[EOS] = 0
            model.lm_head.weight.mul_(0.1)
    return model


def settings(**options: Any) -> VllmConfig:
    return VllmConfig(kind="vllm", threads=1, kv_cache_memory_bytes=2**26, **options)


@asynccontextmanager
async def running(
    *, partial: bool = False, silence_s: float = 120, waits: Waits | None = None, **options: Any
) -> AsyncIterator[Any]:
    """Give an engine, without weights."""
    config = settings(**options)
    prepare_environment(config)
    from headrace.rollout.engines.vllm_engine import VllmEngine

    engine = VllmEngine(
        config, eos_id=EOS, seed=1, max_length=POSITIONS, partial=partial, silence_s=silence_s,
        waits=waits or Waits(stall_after_s=600),
    )  # fmt: skip
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def request(session: int, *, limit: int = 24, uid: str = "e0r0") -> SampleRequest:
    return SampleRequest(
        uid=uid, session=session, attempt=1, prompt_token_ids=[5, 6, 7][: 1 + session % 3],
        temperature=TEMPERATURE, max_response_length=limit,
    )  # fmt: skip


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
