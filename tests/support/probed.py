"""Weights as a trainer publishes them, with a probe, and files that can be spoiled before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from headrace.config.model import AlphabetTokenizer, ModelConfig
from headrace.tokenizer import load_tokenizer
from headrace.trainer.model import build_model
from headrace.trainer.probe import draw_sequences, make_probe
from headrace.trainer.publisher import save_model
from headrace.v1 import prompt_pb2
from headrace.weights.directory import write
from headrace.weights.probe import PROBE_NAME

POSITIONS = 24
GPT2: dict[str, Any] = {
    "architecture": "gpt2",
    "options": {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": POSITIONS},
}
QWEN3: dict[str, Any] = {
    "architecture": "qwen3",
    "options": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": POSITIONS, "tie_word_embeddings": True,
    },
}  # fmt: skip
TOKENIZER = AlphabetTokenizer(alphabet="0123456789", eos=";")


def settings(seed: int = 0, **model: Any) -> ModelConfig:
    return ModelConfig(**{**GPT2, "tokenizer": TOKENIZER, "seed": seed, **model})


def trained(config: ModelConfig) -> Any:
    """Give a model whose distribution is not flat, as that of fresh weights is."""
    model = build_model(config, load_tokenizer(config), max_length=POSITIONS)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(8)
    return model


def sequences(model: Any) -> list[list[int]]:
    return draw_sequences(model, load_tokenizer(settings()), max_length=POSITIONS)


def save(model: Any, directory: Path) -> None:
    """Write a model and its probe."""
    save_model(model, directory)
    (directory / PROBE_NAME).write_bytes(make_probe(model, sequences(model)).to_bytes())


def publish(
    root: Path,
    model: Any,
    version: int,
    *,
    run_id: str = "test",
    lineage: str = "main",
    spoil: Callable[[Path], None] = lambda _: None,
) -> prompt_pb2.PublishedWeights:
    """As a trainer does; `spoil` changes the files before they get their checksums."""

    def write_files(directory: Path) -> None:
        save(model, directory)
        spoil(directory)

    directory, checksum = write(
        root, run_id=run_id, lineage=lineage, version=version, write_files=write_files
    )
    return prompt_pb2.PublishedWeights(
        id=prompt_pb2.WeightsId(lineage=lineage, version=version),
        uri=str(directory),
        checksum=checksum,
    )
