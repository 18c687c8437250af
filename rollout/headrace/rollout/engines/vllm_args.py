"""With which arguments and environment vLLM is started, and why.

What the user may say is in `headrace.config.vllm`. Imports vLLM only to check or make arguments.
`python -m` it with an engine's section, in JSON, on its standard input, and it prints what is
wrong with that.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from headrace.config.suggest import suggest
from headrace.config.vllm import VllmEngine
from headrace.errors import UsageError
from headrace.rollout.engines.base import EngineError
from headrace.rollout.engines.vllm_import import import_vllm

CPU_KV_BYTES: Final = 2**30
CPU_BLOCK_TOKENS: Final = 32
"""The least that vLLM is quick with; its own 128 lets shorter prompts share nothing."""

_PLUGINS: Final = "vllm.logits_processors"
"""By this name packages tell vLLM of theirs."""
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",  # the weights are here; nothing may be asked of the network
    "VLLM_NO_USAGE_STATS": "1",  # nor told
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    # Not fork: a process with gRPC's threads in it cannot be forked.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_CPU_ENVIRONMENT: Final = {
    # Otherwise the first request with log-probabilities waits for a compiler for 40 s, though
    # nothing else is compiled.
    "TORCH_COMPILE_DISABLE": "1",
}


def prepare(config: VllmEngine) -> None:
    """Import vLLM in the environment that it needs, and have it check the arguments.

    Environment variables that are set already stay.

    Raises:
        UsageError: vLLM cannot be imported, or does not take the arguments.

    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import_vllm()
    if _is_cpu():
        for name, value in _CPU_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if config.threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(config.threads)
            os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    _check_arguments(config)
    _check_plugins()


def _check_plugins() -> None:
    """See that no package brings what vLLM would load by itself, and draw otherwise with."""
    if found := entry_points(group=_PLUGINS):
        names = ", ".join(sorted(f"{each.name} ({each.value})" for each in found))
        raise UsageError(
            f"vLLM would change what it draws by the logits processors that packages here bring: "
            f"{names}; remove those packages"
        )


def _check_arguments(config: VllmEngine) -> None:
    """See whether vLLM knows the names, and whether the values are of its types.

    Whether they fit the model is seen when it is there.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    types = {field.name: field.type for field in dataclasses.fields(AsyncEngineArgs)}
    given = config.engine_args | {"quantization": config.quantization}
    wrong = [line for name, value in given.items() if (line := _problem(name, value, types))]
    if wrong:
        raise UsageError("\n".join(wrong))
    try:
        AsyncEngineArgs(model=os.curdir, **_arguments(config))
    except Exception as error:  # pydantic's, and whatever else its parts raise
        raise _refused(error) from error


def make_config(
    config: VllmEngine, directory: Path, *, max_length: int, seed: int, receives: bool = False
) -> Any:
    """Make vLLM's `VllmConfig` for a model.

    Args:
        config: The engine's section.
        directory: Its weights, with `config.json`.
        max_length: The most tokens of a prompt with its response.
        seed: What is drawn follows from this and from what was drawn before.
        receives: Whether it may be sent weights by the trainer.

    Raises:
        EngineError: The directory is gone.
        UsageError: vLLM refuses the arguments, or the model.

    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    try:
        return AsyncEngineArgs(
            **_arguments(config, receives=receives),
            model=str(directory),
            max_model_len=config.max_model_len or max_length,
            seed=seed,
        ).create_engine_config()
    except Exception as error:  # pydantic's, and whatever else its parts raise
        if not (directory / "config.json").exists():
            raise EngineError(f"{directory}: gone while vLLM was reading it") from error
        raise _refused(error) from error


def _is_cpu() -> bool:
    """Whether the vLLM that is installed is for CPUs."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _arguments(config: VllmEngine, *, receives: bool = False) -> dict[str, Any]:
    from vllm.config import WeightTransferConfig

    backend, extension = _way(receives=receives)
    cpu = _is_cpu()
    kv_bytes = config.kv_cache_memory_bytes
    defaults = {"block_size": CPU_BLOCK_TOKENS} if cpu else {}
    return defaults | config.engine_args | {
        "dtype": config.dtype,
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
        "quantization": config.quantization,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        # On CPUs vLLM would take gpu_memory_utilization of all the memory there is.
        "kv_cache_memory_bytes": CPU_KV_BYTES if cpu and kv_bytes is None else kv_bytes,
        "enforce_eager": cpu if config.enforce_eager is None else config.enforce_eager,
        # Temperature is in the log-probabilities that it reports, and nothing else is in either,
        # whatever the model's own generation_config.json says.
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "skip_tokenizer_init": True,
        "weight_transfer_config": WeightTransferConfig(backend=backend),
        "worker_extension_cls": extension,
        "disable_log_stats": True,  # its own loggers; ours is another
    }  # fmt: skip


def _way(*, receives: bool) -> tuple[str, str]:
    """Name vLLM's way of weight transfer, and what has vLLM import it."""
    if receives:
        from headrace.rollout.engines import vllm_nccl

        return vllm_nccl.BACKEND, vllm_nccl.EXTENSION
    from headrace.rollout.engines import vllm_weights

    return vllm_weights.BACKEND, vllm_weights.EXTENSION


def _problem(name: str, value: Any, types: dict[str, Any]) -> str | None:
    """Say in a line what is wrong with an argument, if anything is."""
    key = (
        f"rollout.engine.engine_args.{name}" if name != "quantization" else f"rollout.engine.{name}"
    )
    if name not in types:
        meant = suggest(name, list(types))
        return f"{key}: vLLM has no such argument" + (f"; did you mean {meant}?" if meant else "")
    if isinstance(types[name], str):  # not evaluated: what vLLM does with it is the check
        return None
    try:
        TypeAdapter(types[name]).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"{key} = {value!r}: vLLM says: {first['msg']}"
    except PydanticSchemaGenerationError:  # a type that pydantic does not know
        return None
    return None


def _refused(error: Exception) -> UsageError:
    """Make a user's mistake of what vLLM says of its arguments."""
    text = re.sub(r"For further information visit \S+", "", str(error))
    return UsageError(f"vLLM refuses rollout.engine: {' '.join(text.split())[:500]}")


if __name__ == "__main__":
    try:
        section = VllmEngine.model_validate_json(sys.stdin.read())
        prepare(section)
    except UsageError as error:
        print(error)  # noqa: T201
        sys.exit(2)
