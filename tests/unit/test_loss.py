"""The loss: what it is averaged over, where it is clipped, and the estimators of its KL."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch

from headrace.trainer.loss import clipped_loss, kl_estimate, loss_weights

MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)


def test_token_mean_counts_every_token_the_same() -> None:
    weights = loss_weights(MASK, "token-mean")
    assert torch.equal(weights, MASK / 4)


def test_sequence_mean_counts_every_sequence_with_tokens_the_same() -> None:
    weights = loss_weights(MASK, "seq-mean-token-mean")
    assert weights.sum(dim=1).tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert weights[0].tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 0])


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_a_batch_without_tokens_has_no_loss(
    mode: Literal["token-mean", "seq-mean-token-mean"],
) -> None:
    weights = loss_weights(torch.zeros(2, 3, dtype=torch.bool), mode)
    assert torch.equal(weights, torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # on-policy: the plain policy gradient
        (1.5, 2.0, -2.0 * 1.3, 0.0),  # good, and already likelier than the limit
        (0.5, 2.0, -2.0 * 0.5, -2.0 * 0.5),  # good, and less likely: pull it up
        (0.5, -2.0, 2.0 * 0.8, 0.0),  # bad, and already less likely than the limit
        (1.5, -2.0, 2.0 * 1.5, 2.0 * 1.5),  # bad, and likelier: push it down
    ],
)
def test_the_ratio_is_clipped_only_where_it_has_gone_far_enough(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    behaviour = torch.tensor([[-1.0]])
    logprobs = torch.tensor([[-1.0 + math.log(ratio)]], requires_grad=True)
    terms = clipped_loss(
        logprobs, behaviour, torch.tensor([advantage]), clip_low=0.2, clip_high=0.3
    )
    terms.loss.sum().backward()
    assert logprobs.grad is not None
    assert terms.loss.item() == pytest.approx(loss)
    assert logprobs.grad.item() == pytest.approx(gradient)
    assert terms.is_clipped.item() == (gradient == 0.0)


def test_a_wild_ratio_gives_a_finite_loss() -> None:
    terms = clipped_loss(
        torch.tensor([[0.0]]),
        torch.tensor([[-1000.0]]),
        torch.tensor([-1.0]),
        clip_low=0.2,
        clip_high=0.2,
    )
    assert torch.isfinite(terms.loss).all()


def test_both_estimators_have_the_true_kl_as_their_mean() -> None:
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    truth = (policy * (policy / reference).log()).sum().item()
    for kind in ("k1", "k3"):
        estimates = kl_estimate(policy.log()[None], reference.log()[None], kind)
        assert (policy * estimates[0]).sum().item() == pytest.approx(truth)


def test_k3_is_never_negative_and_its_gradient_pulls_towards_the_reference() -> None:
    logprobs = torch.tensor([[-3.0, -1.0]], requires_grad=True)
    estimate = kl_estimate(logprobs, torch.tensor([[-1.0, -3.0]]), "k3")
    assert (estimate >= 0).all()
    estimate.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0, 0] < 0 < logprobs.grad[0, 1]
