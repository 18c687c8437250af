"""Has the model score a few sequences, so that an engine can see that it computes the same.

The sequences are drawn, and always the same for a vocabulary and a length. Knows what a probe is
(`headrace.weights.probe`); knows nothing of engines.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from headrace.tokenizer import Tokenizer
from headrace.trainer.batch import collate
from headrace.trainer.forward import score
from headrace.v1.trajectory_pb2 import Trajectory
from headrace.weights.probe import SCHEMA_VERSION, ScoredSequence, TrainerProbe

COUNT: Final = 4
LENGTH: Final = 64
"""Tokens of a sequence, if the run has sequences that are longer."""


def draw_sequences(tokenizer: Tokenizer, *, max_length: int) -> list[list[int]]:
    """Draw sequences of all tokens but padding and the stop.

    Args:
        tokenizer: names the vocabulary.
        max_length: the longest sequence that an engine is ready for. Those drawn are shorter:
            engines score a prompt, and want room for a token behind it.

    """
    kept = [i for i in range(tokenizer.vocab_size) if i not in (tokenizer.pad_id, tokenizer.eos_id)]
    numbers = random.Random(0)
    length = max(2, min(LENGTH, max_length - 1))
    return [numbers.choices(kept, k=length) for _ in range(COUNT)]


@torch.no_grad()
def make_probe(model: Any, sequences: Sequence[Sequence[int]]) -> TrainerProbe:
    """Score sequences of one length with the model as it is now."""
    rows = [
        Trajectory(
            schema_version=1,
            prompt_token_ids=ids[:1],
            response_token_ids=ids[1:],
            logprobs=[0.0] * (len(ids) - 1),
            loss_mask=[True] * (len(ids) - 1),
            temperature=1.0,
        )
        for ids in sequences
    ]
    weight = next(model.parameters())
    batch = collate(rows, np.zeros(len(rows)), pad_id=0).to(weight.device)
    logprobs = score(model, batch).logprobs.tolist()
    return TrainerProbe(
        SCHEMA_VERSION,
        str(weight.dtype).removeprefix("torch."),
        [ScoredSequence(list(ids), found) for ids, found in zip(sequences, logprobs, strict=True)],
    )
