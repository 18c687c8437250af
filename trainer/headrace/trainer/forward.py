"""Log-probabilities of given tokens under a causal LM.

Knows how a transformers model is called; knows nothing of losses.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from headrace.trainer.batch import Batch


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
    policy is the distribution after temperature.
    """
    keep = batch.token_ids.shape[1] - 1 - batch.first_place
    logits = _logits(model, batch.token_ids[:, :-1], keep) / batch.temperature
    targets = batch.token_ids[:, -keep:]
    log_sums = logits.logsumexp(dim=-1)
    chosen = logits.gather(-1, targets[:, :, None]).squeeze(-1)
    with torch.no_grad():
        entropy = log_sums - (logits.softmax(dim=-1) * logits).sum(dim=-1)
    return TokenScores(chosen - log_sums, entropy)


def _logits(model: Any, token_ids: torch.Tensor, keep: int) -> torch.Tensor:
    """Get the logits of the last `keep` places: [N, keep, V], at least float32."""
    options: dict[str, Any] = {"use_cache": False}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = keep
    logits: torch.Tensor = model(input_ids=token_ids, **options).logits[:, -keep:]
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
