"""Has the model score a few sequences, so that an engine can see that it computes the same.

The sequences are sampled once from the model itself: with tokens that it finds most unlikely, number
formats would differ more than models. Knows what a probe is (`headrace.weights.probe`); knows
nothing of engines.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from transformers import GenerationConfig

from headrace.tokenizer import Tokenizer
from headrace.trainer.batch import collate
from headrace.trainer.forward import score
from headrace.trainer.number_format import format_of
from headrace.v1.trajectory_pb2 import Trajectory
from headrace.weights.probe import SCHEMA_VERSION, ScoredSequence, TrainerProbe

COUNT: Final = 4
LENGTH: Final = 64
"""Tokens of a sequence, if the run has sequences that are longer."""


def draw_sequences(model: Any, tokenizer: Tokenizer, *, max_length: int) -> list[list[int]]:
    """Sample sequences without padding and stop, the same ones for the same weights.

    Args:
        model: samples them.
        tokenizer: names the vocabulary.
        max_length: the longest sequence that an engine is ready for. Those drawn are shorter:
            engines score a prompt, and want room for a token behind it.

    """
    vocabulary = model.get_input_embeddings().weight.shape[0]
    left_out = {tokenizer.pad_id, tokenizer.eos_id, *range(tokenizer.vocab_size, vocabulary)}
    kept = sorted(set(range(vocabulary)) - left_out)
    device = next(model.parameters()).device
    starts = torch.tensor([[i] for i in random.Random(0).choices(kept, k=COUNT)], device=device)
    count = max(2, min(LENGTH, max_length - 1)) - 1
    settings = GenerationConfig(
        max_new_tokens=count,
        # Named, as the model's own settings hold for what is not.
        do_sample=True,
        temperature=1.0,
        top_k=50,
        top_p=1.0,
        num_beams=1,
        repetition_penalty=1.0,
        suppress_tokens=sorted(left_out),
        pad_token_id=tokenizer.pad_id,
    )
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        drawn: list[list[int]] = model.generate(
            starts, attention_mask=torch.ones_like(starts), generation_config=settings
        ).tolist()
    return drawn


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
    batch = collate(rows, np.zeros(len(rows)), pad_id=0).to(model.device)
    logprobs = score(model, batch).logprobs.tolist()
    return TrainerProbe(
        SCHEMA_VERSION,
        str(format_of(model)).removeprefix("torch."),
        [ScoredSequence(list(ids), found) for ids, found in zip(sequences, logprobs, strict=True)],
    )
