"""What the trainer needs memory for, estimated before anything of it is built. Opens no file."""

from __future__ import annotations

from typing import Final

from headrace.config.config import Config

LOGITS_COPIES: Final = 3
"""The logits of a forward pass, their gradients by pieces, and those in one piece."""
MANY_BYTES: Final = 16 * 2**30
"""More than this for logits alone is probably not meant."""


def logits_bytes(config: Config, vocabulary: int) -> int:
    """Estimate the memory for the logits of one forward and backward pass, all responses long."""
    groups = config.data.train_batch_size // config.trainer.parameter_sync_step
    most = groups * config.rollout.n
    sequences = min(config.trainer.micro_batch_size or most, most)
    places = sequences * config.data.max_response_length
    return LOGITS_COPIES * places * vocabulary * (2 if config.model.dtype == "bfloat16" else 4)


def warnings(config: Config, vocabulary: int) -> list[str]:
    """Say that a pass takes more memory than there probably is."""
    need = logits_bytes(config, vocabulary)
    if need <= MANY_BYTES:
        return []
    value = config.trainer.micro_batch_size
    what = "null, all sequences of an update" if value is None else str(value)
    return [
        f"trainer.micro_batch_size = {what}: the logits of a pass take about {need / 2**30:.0f} GiB "
        f"(responses of {config.data.max_response_length} tokens, a vocabulary of {vocabulary}); "
        "set it lower: it does not change the gradient"
    ]
