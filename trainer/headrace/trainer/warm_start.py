"""Supervised steps on reference answers, before the first rollout.

Knows prompts with answers; where they come from is passed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from headrace.config.trainer import OptimConfig, WarmStart
from headrace.errors import UsageError
from headrace.tokenizer import Tokenizer
from headrace.trainer.batch import Batch, collate
from headrace.trainer.forward import score
from headrace.trainer.loss import loss_weights
from headrace.v1.feeder_pb2 import PromptPayload
from headrace.v1.trajectory_pb2 import Trajectory


class SupervisedTrainer:
    """Teaches a model the reference answers. Its optimizer is its own, and goes with it.

    Args:
        model: on its device already.
        tokenizer: turns answers into tokens; the stop token is added.
        config: the learning rate.
        optim: the optimizer otherwise.
        max_prompt_length: tokens; rows with a longer prompt are left out.
        max_response_length: tokens, the stop token included; rows with a longer answer are left
            out.
        micro_batch_size: sequences per forward pass; None = all.

    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Tokenizer,
        config: WarmStart,
        optim: OptimConfig,
        max_prompt_length: int,
        max_response_length: int,
        micro_batch_size: int | None = None,
    ) -> None:
        self._model = model
        self._device: torch.device = next(model.parameters()).device
        self._tokenizer = tokenizer
        self._clip_grad = optim.clip_grad
        self._max_prompt_length = max_prompt_length
        self._max_response_length = max_response_length
        self._micro_batch_size = micro_batch_size
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.lr, betas=optim.betas, weight_decay=optim.weight_decay
        )

    def step(self, rows: Sequence[PromptPayload]) -> float:
        """Make one optimizer step, and return the mean negative log-likelihood per token, nats.

        Raises:
            UsageError: a row has no answer, or none of the rows is short enough.

        """
        batch = self._batch(rows).to(self._device)
        shares = loss_weights(batch.loss_mask, "token-mean")
        total = 0.0
        for indices in batch.lengths.argsort().split(self._micro_batch_size or len(batch)):
            micro = batch.rows(indices)
            places = slice(micro.first_place, micro.loss_mask.shape[1])
            loss = -(score(self._model, micro).logprobs * shares[indices, places]).sum()
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_grad)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return total

    def _batch(self, rows: Sequence[PromptPayload]) -> Batch:
        examples = [example for row in rows if (example := self._example(row)) is not None]
        if not examples:
            raise UsageError(
                f"trainer.warm_start: none of {len(rows)} rows has a prompt of at most "
                f"{self._max_prompt_length} and an answer of at most {self._max_response_length} "
                "tokens: raise data.max_prompt_length or data.max_response_length"
            )
        return collate(examples, np.zeros(len(examples)), pad_id=self._tokenizer.pad_id)

    def _example(self, row: PromptPayload) -> Trajectory | None:
        if not row.answer:
            raise UsageError(
                f"trainer.warm_start needs reference answers, and a row of {row.data_source!r} has "
                "none: give data with answers, or set trainer.warm_start.steps to 0"
            )
        answer = [*self._tokenizer.encode(row.answer), self._tokenizer.eos_id]
        if len(row.token_ids) > self._max_prompt_length or len(answer) > self._max_response_length:
            return None
        return Trajectory(
            schema_version=1,
            prompt_token_ids=row.token_ids,
            response_token_ids=answer,
            logprobs=[0.0] * len(answer),
            loss_mask=[True] * len(answer),
            temperature=1.0,
        )
