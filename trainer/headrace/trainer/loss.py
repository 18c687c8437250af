"""The policy-gradient loss, and what it is averaged over.

Pure functions of tensors; knows nothing of models or trajectories. [N, T] as in `batch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to this before exp, so that one wild token gives no infinity."""
KL_LIMIT = 10.0
"""The k3 estimate is clamped to this, as the peers do."""


def loss_weights(
    loss_mask: torch.Tensor, mode: Literal["token-mean", "seq-mean-token-mean"]
) -> torch.Tensor:
    """Give each token its share of the mean over the whole batch of an update.

    The loss of any part of the batch is the sum of its tokens' losses times these, so that
    gradients of micro-batches add up to the same, however the batch is cut.

    Args:
        loss_mask: [N, T] bool, of the whole update.
        mode: `token-mean`: every token counts the same. `seq-mean-token-mean`: every sequence
            that has tokens counts the same, and so do the tokens within one.

    Returns:
        [N, T] float32, of sum 1, or of zeros if there are no tokens.

    """
    mask = loss_mask.float()
    if mode == "token-mean":
        return mask / mask.sum().clamp(min=1.0)
    counts = mask.sum(dim=1, keepdim=True)
    sequences = (counts > 0).sum().clamp(min=1)
    return mask / counts.clamp(min=1.0) / sequences


@dataclass(frozen=True)
class ClippedLoss:
    """PPO's clipped surrogate per token, all [N, T]."""

    loss: torch.Tensor
    """To be minimised."""
    is_clipped: torch.Tensor
    """bool: whether the clipped branch was taken, where the gradient is zero."""
    log_ratio: torch.Tensor
    """log of policy over behaviour policy."""


def clipped_loss(
    logprobs: torch.Tensor,
    behaviour_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> ClippedLoss:
    """Compute PPO's clipped surrogate (arXiv 1707.06347, equation 7) with the ratio per token.

    The ratio is taken to the policy that sampled the tokens, so that no further weight is needed.
    Different limits up and down: DAPO, arXiv 2503.14476, section 3.1.

    Args:
        logprobs: [N, T], of the policy, with gradient.
        behaviour_logprobs: [N, T], of the policy that sampled.
        advantages: [N], one per sequence.
        clip_low: the ratio is clipped at 1 - this.
        clip_high: the ratio is clipped at 1 + this.

    """
    log_ratio = (logprobs - behaviour_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    advantage = advantages[:, None]
    plain = -advantage * ratio
    clipped = -advantage * ratio.clamp(1 - clip_low, 1 + clip_high)
    return ClippedLoss(torch.maximum(plain, clipped), clipped > plain, log_ratio)


def kl_estimate(
    logprobs: torch.Tensor, reference_logprobs: torch.Tensor, kind: Literal["k1", "k3"]
) -> torch.Tensor:
    """Estimate KL(policy || reference) per token, from tokens that the policy sampled.

    k1 = log p - log q; k3 = q/p - 1 - log(q/p), never negative. J. Schulman, "Approximating KL
    divergence", http://joschu.net/blog/kl-approx.html. Shapes: [N, T].
    """
    if kind == "k1":
        return logprobs - reference_logprobs
    log_ratio = (reference_logprobs - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (log_ratio.exp() - 1 - log_ratio).clamp(max=KL_LIMIT)
