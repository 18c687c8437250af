"""Makes the engine that is configured. Imports the packages of no other."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from headrace.config.config import Config
from headrace.config.rollout import ScriptedEngine as ScriptedEngineConfig
from headrace.config.rollout import TorchEngine as TorchEngineConfig
from headrace.config.vllm import VllmEngine as VllmEngineConfig
from headrace.config.vllm_server import VllmServerEngine as VllmServerEngineConfig
from headrace.errors import UsageError
from headrace.rollout.engines.base import Engine
from headrace.rpc.waits import Waits
from headrace.tokenizer.tokenizer import Tokenizer


def make_engine(
    config: Config, tokenizer: Tokenizer, *, waits: Waits, batch_ended: Callable[[float], None]
) -> Engine:
    """Make the engine of `rollout.engine`. `batch_ended` is told the seconds of each batch.

    Raises:
        UsageError: Its packages are missing, or its device or arguments cannot be used.

    """
    section = config.rollout.engine
    if isinstance(section, VllmEngineConfig):
        return _make_vllm(section, config, tokenizer, waits)
    if isinstance(section, VllmServerEngineConfig):
        return _make_vllm_server(section, config, tokenizer, waits)
    if isinstance(section, ScriptedEngineConfig):
        return _make_scripted(section, config, tokenizer)
    return _make_torch(section, config, tokenizer, batch_ended)


def _make_scripted(section: ScriptedEngineConfig, config: Config, tokenizer: Tokenizer) -> Engine:
    from headrace.rollout.engines.scripted import ScriptedEngine

    return ScriptedEngine(
        section,
        vocab_size=tokenizer.vocab_size,
        eos_id=tokenizer.eos_id,
        partial=config.rollout.partial_rollout,
    )


def _make_torch(
    section: TorchEngineConfig,
    config: Config,
    tokenizer: Tokenizer,
    batch_ended: Callable[[float], None],
) -> Engine:
    try:
        from headrace.rollout.engines.torch_engine import TorchEngine
    except ImportError as error:
        raise UsageError(
            "rollout.engine.kind: torch needs packages that are not installed: "
            f"pip install 'headrace[rollout]' ({error})"
        ) from error
    return TorchEngine(
        section,
        eos_id=tokenizer.eos_id,
        seed=config.trainer.seed,
        partial=config.rollout.partial_rollout,
        batch_ended=batch_ended,
    )


def _make_vllm(
    section: VllmEngineConfig, config: Config, tokenizer: Tokenizer, waits: Waits
) -> Engine:
    from headrace.rollout.engines.vllm_engine import VllmEngine

    return VllmEngine(
        section,
        eos_id=tokenizer.eos_id,
        # Several workers must not draw the same for a prompt that goes round among them.
        seed=secrets.randbits(31),
        max_length=config.data.max_prompt_length + config.data.max_response_length,
        partial=config.rollout.partial_rollout,
        receives=config.weights.transport == "nccl",
        tmpdir=config.weights.tmpdir,
        silence_s=config.rollout.max_generation_s,
        waits=waits,
    )


def _make_vllm_server(
    section: VllmServerEngineConfig, config: Config, tokenizer: Tokenizer, waits: Waits
) -> Engine:
    try:
        from headrace.rollout.engines.vllm_server.make import make
    except ImportError as error:
        raise UsageError(
            "rollout.engine.kind: vllm_server needs packages that are not installed: "
            f"pip install 'headrace[rollout]' ({error})"
        ) from error
    return make(
        section,
        eos_id=tokenizer.eos_id,
        max_length=config.data.max_prompt_length + config.data.max_response_length,
        partial=config.rollout.partial_rollout,
        max_generation_s=config.rollout.max_generation_s,
        waits=waits,
    )
