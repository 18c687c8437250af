"""A transformers causal LM from a weight directory, and later versions of its weights.

Knows nothing of versions and checksums: the directory was checked before.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from headrace.rollout.engines.base import EngineError
from headrace.rollout.engines.weights import WEIGHTS_NAME


def build_model(directory: Path, *, device: Any, dtype: Any) -> Any:
    """Build the model of `config.json` with the weights beside it, in evaluation mode.

    Raises:
        EngineError: Not a model that transformers knows, or the weights do not fit it.

    """
    try:
        config = AutoConfig.from_pretrained(directory)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        raise EngineError(f"{directory}: no causal LM can be built: {error}") from error
    model = model.to(device=device).eval()
    # The sampler pads by its mask. Otherwise a padding token that was sampled is warned about.
    model.config.pad_token_id = None
    replace_state(model, read_state(directory))
    return model


def read_state(directory: Path) -> dict[str, Any]:
    """Read the weights of a directory, onto the CPU.

    Raises:
        EngineError: Not a readable safetensors file.

    """
    path = directory / WEIGHTS_NAME
    try:
        state: dict[str, Any] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise EngineError(f"{path}: {error}") from error
    return state


@torch.no_grad()
def replace_state(model: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Copy weights into the model, all of them or none, and return those that were there.

    A tensor may be left out of `state` if the model ties it to one that is there.

    Raises:
        EngineError: A weight is missing, unknown, or of another shape.

    """
    own = model.state_dict()
    problems = [f"unknown weight {name}" for name in state.keys() - own.keys()]
    problems += [
        f"{name} has shape {tuple(value.shape)}, the model wants {tuple(own[name].shape)}"
        for name, value in state.items()
        if name in own and value.shape != own[name].shape
    ]
    given = {own[name].data_ptr() for name in state.keys() & own.keys()}
    problems += [
        f"missing weight {name}"
        for name in own.keys() - state.keys()
        if own[name].data_ptr() not in given
    ]
    if problems:
        raise EngineError(f"weights do not fit the model: {'; '.join(sorted(problems)[:5])}")
    before = {name: own[name].clone() for name in state}
    for name, value in state.items():
        own[name].copy_(value)
    return before


@torch.no_grad()
def score(model: Any, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """Per sequence, the log-probability of each token after the first, at temperature 1."""
    longest = max(map(len, sequences))
    # Padded on the right, where nothing but padding sees it.
    padded = [[*token_ids, *[0] * (longest - len(token_ids))] for token_ids in sequences]
    ids_bl = torch.tensor(padded, device=model.device)
    logits_blv = model(input_ids=ids_bl, use_cache=False).logits[:, :-1]
    logp_blv = torch.log_softmax(logits_blv.float(), dim=-1)
    logp_bl = logp_blv.gather(-1, ids_bl[:, 1:, None])[:, :, 0].tolist()
    return [
        found[: len(token_ids) - 1] for found, token_ids in zip(logp_bl, sequences, strict=True)
    ]
