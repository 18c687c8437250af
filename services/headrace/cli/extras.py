"""What a whole run on this machine needs installed, found without importing any of it."""

from __future__ import annotations

from importlib.util import find_spec

from headrace.config.config import Config
from headrace.config.rollout import TorchEngine
from headrace.config.vllm import INSTALL, VllmEngine
from headrace.errors import UsageError


def check_installed(config: Config) -> None:
    """See that every process of a run finds its packages.

    Raises:
        UsageError: one of them would not; the message names the extra that brings all.

    """
    if isinstance(config.rollout.engine, VllmEngine) and find_spec("vllm") is None:
        raise UsageError(f"rollout.engine.kind: vllm needs vLLM, which is not installed: {INSTALL}")
    missing = [package for package in _needed(config) if find_spec(package) is None]
    if missing:
        raise UsageError(
            f"`headrace run` starts every process here, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed: pip install 'headrace[local]'"
        )


def _needed(config: Config) -> list[str]:
    """Name the top-level modules of the extras `store`, `trainer` and `rollout`."""
    needed = ["transfer_queue", "torch", "transformers", "safetensors", "pebble"]
    if isinstance(config.rollout.engine, TorchEngine):
        needed.append("numpy")
    if config.trainer.tensorboard:
        needed.append("tensorboard")
    return needed
