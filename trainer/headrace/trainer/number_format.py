"""The number format that a model computes in, and that its weights are published in.

The weights that are trained are float32 whatever it is: at the usual learning rates an update is
smaller than a step of bfloat16, and would be rounded away. It stands where transformers has it, in
the model's configuration.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch

TRAINED: Final = torch.float32
"""Of the weights that are trained, their gradients and the optimizer."""


def set_format(model: Any, dtype: torch.dtype) -> None:
    """Say what a model computes in."""
    model.config.dtype = dtype


def format_of(model: Any) -> torch.dtype:
    """Say what a model computes in: float32, unless its configuration names another format."""
    name = str(model.config.dtype or TRAINED)  # transformers writes it down as a word, too
    found: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return found


def computing(model: Any) -> AbstractContextManager[Any]:
    """Be in the model's number format for as long as the block runs."""
    dtype = format_of(model)
    if dtype == TRAINED:
        return nullcontext()
    return torch.autocast(model.device.type, dtype)


def published(model: Any) -> dict[str, torch.Tensor]:
    """Give the weights as they are published, in this machine's memory; tied ones are one tensor."""
    dtype = format_of(model)
    made: dict[int, torch.Tensor] = {}
    state = model.state_dict(keep_vars=True)
    for tensor in state.values():
        if id(tensor) not in made:
            value = tensor.detach()
            made[id(tensor)] = (value.to(dtype) if value.is_floating_point() else value).cpu()
    return {name: made[id(tensor)] for name, tensor in state.items()}
