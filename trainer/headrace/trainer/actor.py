"""The policy being learned: one optimizer update per batch.

Knows model, loss and optimizer; knows nothing of steps, services or where batches come from.
Not thread-safe: all calls come from one thread.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch

from headrace.config.trainer import AlgorithmConfig, OptimConfig
from headrace.trainer.batch import Batch
from headrace.trainer.forward import score
from headrace.trainer.loss import clipped_loss, kl_estimate, loss_weights
from headrace.trainer.schedule import learning_rate_share


class Actor:
    """A causal LM and its optimizer.

    Args:
        model: on its device already.
        algorithm: the loss.
        optim: the optimizer.
        total_updates: in the whole run, for the learning rate.
        warmup_updates: over which the learning rate rises.
        micro_batch_size: sequences per forward pass; None = all of a batch. Does not change the
            gradient.

    With `algorithm.kl_loss_coef` the model as it is now is kept as the reference.

    Attributes:
        model: what learns.
        reference: what it was at the beginning; None without a KL loss.
        optimizer: its optimizer.
        updates: how many have been made; the learning rate follows from it.
        seen: which prompts they were made with; see `headrace.trainer.seen`.

    """

    def __init__(
        self,
        model: Any,
        *,
        algorithm: AlgorithmConfig,
        optim: OptimConfig,
        total_updates: int,
        warmup_updates: int = 0,
        micro_batch_size: int | None = None,
    ) -> None:
        self.model = model
        self.device: torch.device = next(model.parameters()).device
        self._algorithm = algorithm
        self._optim = optim
        self._total_updates = total_updates
        self._warmup_updates = warmup_updates
        self._micro_batch_size = micro_batch_size
        self.reference: Any = None
        if algorithm.kl_loss_coef > 0:
            self.reference = copy.deepcopy(model).requires_grad_(False)
        self.updates = 0
        self.seen = ""
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self._parameters, lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay
        )

    def update(self, batch: Batch) -> dict[str, float]:
        """Make one optimizer step on the batch.

        A gradient that is not finite is not applied: `actor/grad_norm` shows it.

        Returns:
            Metrics by name, measured before the step.

        """
        metrics = self.accumulate(batch)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._optim.clip_grad)
        rate = self._optim.lr * learning_rate_share(
            self.updates,
            total=self._total_updates,
            warmup=self._warmup_updates,
            shape=self._optim.lr_schedule,
            min_ratio=self._optim.end_ratio,
        )
        if torch.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1
        return {**metrics, "actor/grad_norm": float(norm), "actor/lr": rate}

    def accumulate(self, batch: Batch) -> dict[str, float]:
        """Add the gradient of the batch's loss to the parameters' gradients.

        Micro-batches are cut from the sequences ordered by length, so that little is padding.
        """
        batch = batch.to(self.device)
        weights = loss_weights(batch.loss_mask, self._algorithm.loss_agg_mode)
        shares = loss_weights(batch.loss_mask, "token-mean")
        totals: defaultdict[str, torch.Tensor] = defaultdict(
            lambda: torch.zeros((), device=self.device)
        )
        for rows in batch.lengths.argsort().split(self._micro_batch_size or len(batch)):
            micro = batch.rows(rows)
            width = micro.loss_mask.shape[1]
            self._accumulate(micro, weights[rows, :width], shares[rows, :width], totals)
        metrics = {name: float(value) for name, value in totals.items()}
        if self.reference is not None:
            metrics["actor/kl_coef"] = self._algorithm.kl_loss_coef
        return metrics

    def _accumulate(
        self,
        micro: Batch,
        weights: torch.Tensor,
        shares: torch.Tensor,
        totals: defaultdict[str, torch.Tensor],
    ) -> None:
        """Take one micro-batch. `weights` and `shares`, [N, T], are of the whole batch's means."""
        algorithm = self._algorithm
        scores = score(self.model, micro)
        places = slice(micro.first_place, None)
        weights, shares = weights[:, places], shares[:, places]
        behaviour = micro.behaviour_logprobs[:, places]
        terms = clipped_loss(
            scores.logprobs,
            behaviour,
            micro.advantages,
            clip_low=algorithm.clip_ratio_low,
            clip_high=algorithm.clip_ratio_high,
        )
        loss = (terms.loss * weights).sum()
        totals["actor/pg_loss"] += loss.detach()
        if self.reference is not None:
            with torch.no_grad():
                reference = score(self.reference, micro)
            kl = kl_estimate(scores.logprobs, reference.logprobs, algorithm.kl_loss_type)
            kl_loss = (kl * weights).sum()
            totals["actor/kl_loss"] += kl_loss.detach()
            loss = loss + algorithm.kl_loss_coef * kl_loss
        loss.backward()
        with torch.no_grad():
            mask = micro.loss_mask[:, places]
            gaps = {
                "probs": (scores.logprobs.exp() - behaviour.exp()).abs() * mask,
                "logprobs": (scores.logprobs - behaviour).abs() * mask,
            }
            totals["actor/entropy"] += (scores.entropy * shares).sum()
            totals["actor/pg_clipfrac"] += (terms.is_clipped * shares).sum()
            totals["actor/ppo_kl"] -= (terms.log_ratio * shares).sum()
            for kind, gap in gaps.items():
                name = f"training/rollout_{kind}_diff"
                totals[f"{name}_mean"] += (gap * shares).sum()
                totals[f"{name}_max"] = torch.maximum(totals[f"{name}_max"], gap.max())
