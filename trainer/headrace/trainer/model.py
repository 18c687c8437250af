"""The policy: a transformers causal LM from a directory, or built from the configuration.

Knows transformers' Auto classes; knows nothing of training.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer

from headrace.config.model import ModelConfig
from headrace.errors import UsageError
from headrace.tokenizer import Tokenizer
from headrace.trainer.number_format import TRAINED, set_format

FROM_TOKENIZER = ("vocab_size", "eos_token_id", "pad_token_id", "bos_token_id")
"""Options of a model configuration that follow from the tokenizer."""


def build_model(config: ModelConfig, tokenizer: Tokenizer, *, max_length: int) -> Any:
    """Build the policy, on the CPU and in evaluation mode.

    It stays in evaluation mode while it is trained: with dropout it would be another
    distribution than the one that the workers sample from. Its weights are float32, and it
    computes in the configured number format: see `headrace.trainer.number_format`.

    Args:
        config: what to build.
        tokenizer: names the vocabulary and the special tokens.
        max_length: the longest sequence, in tokens, that the model will be given.

    Raises:
        UsageError: it cannot be built so.

    """
    # Bars for files of a few parameters would fill the log.
    transformers.utils.logging.disable_progress_bar()
    if config.path is not None:
        model = _from_directory(config.path)
    else:
        model = _from_options(config, tokenizer)
    _check_sizes(model, tokenizer, max_length=max_length)
    set_format(model, getattr(torch, config.dtype))
    if config.enable_gradient_checkpointing:
        _checkpoint_layers(model)
    return model.eval()


def pick_device(name: str) -> torch.device:
    """Find the device that the configuration names; `auto` takes CUDA if it is there.

    Raises:
        UsageError: there is no such device.

    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        reason = _one_line(error)
        raise UsageError(
            f"trainer.device = {name!r} cannot be used: {reason}; use auto, cpu or cuda"
        ) from error
    return device


def _from_directory(directory: Path) -> Any:
    if not (directory / "config.json").is_file():
        raise UsageError(
            f"model.path = {directory} has no config.json: give a Hugging Face model directory, "
            "or model.architecture to build a model"
        )
    try:
        return AutoModelForCausalLM.from_pretrained(directory, dtype=TRAINED, local_files_only=True)
    except Exception as error:  # whatever the library raises here is about the user's files
        raise UsageError(
            f"model.path = {directory} cannot be loaded as a causal language model: "
            f"{_one_line(error)}"
        ) from error


def _from_options(config: ModelConfig, tokenizer: Tokenizer) -> Any:
    architecture = config.architecture
    assert architecture is not None
    known = transformers.CONFIG_MAPPING.keys()
    if architecture not in known:
        raise UsageError(
            f"model.architecture = {architecture!r} is not a model type of transformers "
            f"{transformers.__version__}{_suggestion(architecture, known)}"
        )
    config_class = transformers.CONFIG_MAPPING[architecture]
    _check_options(config.options, config_class, architecture)
    special = {
        "vocab_size": tokenizer.vocab_size,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
        # Nothing of ours begins with it, but the default lies outside of a small vocabulary.
        "bos_token_id": tokenizer.eos_id,
    }
    torch.manual_seed(config.seed)
    try:
        model_config = config_class(**config.options, **special)
        return AutoModelForCausalLM.from_config(model_config, dtype=TRAINED)
    except Exception as error:  # whatever the library raises here is about the user's options
        raise UsageError(
            f"model.architecture = {architecture!r} with model.options cannot be built as a causal "
            f"language model: {_one_line(error)}"
        ) from error


def _checkpoint_layers(model: Any) -> None:
    """Have each layer compute its activations again for its gradient, instead of keeping them.

    What transformers offers for it works in training mode only, and would bring dropout.
    """
    layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
    if not layers:
        raise UsageError(
            f"model.enable_gradient_checkpointing: transformers has no such layers for "
            f"{model.config.model_type!r}: set it to false"
        )
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _check_options(options: Iterable[str], config_class: Any, architecture: str) -> None:
    """Refuse what the library would silently ignore."""
    parameters = {
        *inspect.signature(config_class.__init__).parameters,
        *inspect.signature(PreTrainedConfig.__init__).parameters,
    } - {"self", "args", "kwargs"}
    known = parameters | set(config_class.attribute_map)
    for name in options:
        if name in FROM_TOKENIZER:
            raise UsageError(f"model.options.{name} follows from model.tokenizer: leave it out")
        if name not in known:
            raise UsageError(
                f"model.options.{name} is not an option of {architecture!r}"
                f"{_suggestion(name, known)}"
            )


def _check_sizes(model: Any, tokenizer: Tokenizer, *, max_length: int) -> None:
    vocabulary = model.get_input_embeddings().weight.shape[0]
    if tokenizer.vocab_size > vocabulary:
        raise UsageError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model of model.path only "
            f"{vocabulary}: set model.tokenizer to the tokenizer of that model"
        )
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and max_length > positions:
        raise UsageError(
            f"data.max_prompt_length + data.max_response_length = {max_length} is more than the "
            f"{positions} positions of the model: lower them, or take a model with more positions"
        )


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
