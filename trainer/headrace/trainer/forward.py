"""Log-probabilities of given tokens under a causal LM.

Knows how a transformers model is called; knows nothing of losses.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils.checkpoint import checkpoint

from headrace.trainer.batch import Batch
from headrace.trainer.number_format import computing

CHUNK_LOGITS: Final = 2**26
"""Logits that are turned into log-probabilities at once: 256 MiB in float32."""


@dataclass(frozen=True)
class TokenScores:
    """What the model says of the last K places of a batch; the places before are prompt only."""

    logprobs: torch.Tensor
    """[N, K], of the token that is there, after temperature."""
    entropy: torch.Tensor
    """[N, K] nats, of the distribution after temperature, without gradient."""


def score(model: Any, batch: Batch) -> TokenScores:
    """Run the model over the batch, and score the tokens from `batch.first_place` on.

    The logits are divided by the temperature that the tokens were sampled with: the behaviour
    policy is the distribution after temperature. Of all that is made of the logits, [N, K, V], no
    more is held at once than of a few places; for the gradient it is made again.
    """
    keep = batch.token_ids.shape[1] - 1 - batch.first_place
    logits = _logits(model, batch.token_ids[:, :-1], keep)
    targets = batch.token_ids[:, -keep:]
    width = max(1, CHUNK_LOGITS // (logits.shape[0] * logits.shape[2]))
    chunks = [
        checkpoint(
            _score, some, wanted, batch.temperature, use_reentrant=False, preserve_rng_state=False
        )
        for some, wanted in zip(logits.split(width, 1), targets.split(width, 1), strict=True)
    ]
    logprobs, entropy = (torch.cat(parts, dim=1) for parts in zip(*chunks, strict=True))
    return TokenScores(logprobs, entropy)


def _score(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give log-probabilities and entropy of some places, in float32 at least."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    log_sums = logits.logsumexp(dim=-1)
    chosen = logits.gather(-1, targets[:, :, None]).squeeze(-1)
    with torch.no_grad():
        entropy = log_sums - (logits.softmax(dim=-1) * logits).sum(dim=-1)
    return chosen - log_sums, entropy


def _logits(model: Any, token_ids: torch.Tensor, keep: int) -> torch.Tensor:
    """Get the logits of the last `keep` places, [N, keep, V], in the model's number format."""
    options: dict[str, Any] = {"use_cache": False}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = keep
    with computing(model):
        logits: torch.Tensor = model(input_ids=token_ids, **options).logits[:, -keep:]
    return logits
