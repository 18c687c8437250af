"""Supervised steps on reference answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace.config.model import AlphabetTokenizer, ModelConfig
from headrace.config.trainer import OptimConfig, WarmStart
from headrace.errors import UsageError
from headrace.tokenizer import load_tokenizer
from headrace.trainer.model import build_model
from headrace.trainer.warm_start import SupervisedTrainer
from headrace.v1.feeder_pb2 import PromptPayload

CONFIG = ModelConfig(
    architecture="gpt2",
    options={"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 16},
    tokenizer=AlphabetTokenizer(alphabet="0123", eos=";"),
)
TOKENIZER = load_tokenizer(CONFIG)


def row(prompt: str, answer: str) -> PromptPayload:
    return PromptPayload(token_ids=TOKENIZER.encode(prompt), answer=answer, data_source="toy")


def teacher(*, micro: int | None = None) -> tuple[Any, SupervisedTrainer]:
    model = build_model(CONFIG, TOKENIZER, max_length=8)
    trainer = SupervisedTrainer(
        model,
        tokenizer=TOKENIZER,
        config=WarmStart(steps=1, lr=1e-2),
        optim=OptimConfig(),
        max_prompt_length=4,
        max_response_length=4,
        micro_batch_size=micro,
    )
    return model, trainer


def test_the_answers_are_learned_with_the_stop_token() -> None:
    rows = [row("0", "1"), row("10", "221"), row("333", "3")]
    model, trainer = teacher(micro=2)
    losses = [trainer.step(rows) for _ in range(60)]
    assert losses[-1] < 0.05 < losses[0]
    ids = TOKENIZER.encode("10")
    for _ in range(4):
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert ids[2:] == [*TOKENIZER.encode("221"), TOKENIZER.eos_id]


def test_the_loss_does_not_depend_on_how_the_rows_are_cut() -> None:
    rows = [row("0", "1"), row("10", "221"), row("333", "3")]
    losses = [teacher(micro=micro)[1].step(rows) for micro in (None, 1, 2)]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


def test_rows_that_are_too_long_are_left_out() -> None:
    short = [row("0", "1")]
    too_long = [row("00000", "1"), row("0", "1111")]
    assert teacher()[1].step(short + too_long) == pytest.approx(teacher()[1].step(short))
    with pytest.raises(UsageError, match="none of 2 rows"):
        teacher()[1].step(too_long)


def test_a_row_without_an_answer_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match="needs reference answers, and a row of 'toy' has none"):
        teacher()[1].step([row("0", "")])
