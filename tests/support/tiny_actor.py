"""A small actor, batches that are the same in every process, and its state as files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headrace.config.model import AlphabetTokenizer
from headrace.config.trainer import AlgorithmConfig, OptimConfig
from headrace.tokenizer.alphabet import Alphabet
from headrace.trainer import part
from headrace.trainer.actor import Actor
from headrace.trainer.batch import Batch, collate
from headrace.trainer.description import describe
from headrace.trainer.number_format import set_format
from headrace.trainer.part import Counters
from headrace.trainer.state import StateCopy
from headrace.v1.trajectory_pb2 import Trajectory

TOKENIZER = Alphabet(AlphabetTokenizer(alphabet="012345678", eos=";"))
STEPS = 6


def tiny_model(*, width: int = 16, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(5)
    config = AutoConfig.for_model(
        "gpt2", n_layer=1, n_embd=width, n_head=2, n_positions=16, vocab_size=11,
        bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    set_format(model, dtype)
    return model


def fixed_batch(number: int) -> Batch:
    """Make a batch that depends on its number only."""
    numbers = np.random.default_rng(number)
    trajectories = [
        Trajectory(
            schema_version=1,
            key=f"e0r{i}_0_0_aa1",
            prompt_token_ids=numbers.integers(2, 11, 3).tolist(),
            response_token_ids=numbers.integers(1, 11, 5).tolist(),
            logprobs=(-2 * numbers.random(5)).tolist(),
            loss_mask=[True] * 5,
            temperature=1.0,
            reward=float(numbers.random()),
        )
        for i in range(8)
    ]
    return collate(trajectories, numbers.standard_normal(8), pad_id=0)


def new_actor(model: Any = None, **algorithm: Any) -> Actor:
    return Actor(
        model if model is not None else tiny_model(),
        algorithm=AlgorithmConfig(**algorithm),
        optim=OptimConfig(lr=1e-2, lr_schedule="cosine", lr_min_ratio=0.1, lr_warmup_steps=2),
        total_updates=STEPS,
        warmup_updates=2,
        micro_batch_size=3,
    )


def save(actor: Actor, directory: Path, *, step: int = 1) -> None:
    copy = StateCopy()
    copy.take(actor)
    describe(directory / "description", actor.model, TOKENIZER)
    part.write(
        directory / "trainer",
        copy,
        Counters(step=step, updates=copy.updates, seen=copy.seen, run_id="r", lineage="a"),
        metrics=gzip.compress(b'{"step": 1, "reward": 0.5}\n'),
        description=directory / "description",
    )
