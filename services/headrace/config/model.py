"""The policy and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from headrace.config.section import Section


class AlphabetTokenizer(Section):
    """A tokenizer with one token per character, made on the spot."""

    alphabet: str = Field(min_length=1)
    """The characters, without the stop character. A padding token is added."""
    eos: str = Field(min_length=1, max_length=1)
    """The stop character. It is a token of its own and ends a response."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.alphabet + self.eos)) != len(self.alphabet) + 1:
            msg = f"alphabet {self.alphabet!r} and eos {self.eos!r} must not repeat a character"
            raise ValueError(msg)
        return self


class ModelConfig(Section):
    """A transformers causal LM: a directory, or built from a configuration with random weights."""

    path: Path | None = None
    """A Hugging Face model directory. Relative to the configuration file's folder."""
    architecture: str | None = None
    """Instead of `path`: a transformers model type, such as `gpt2` or `qwen3`."""
    options: dict[str, Any] = {}
    """With `architecture`: arguments of its configuration class. `vocab_size` and the special
    token ids follow from the tokenizer."""
    seed: int = 0
    """With `architecture`: seed of the initial weights."""
    tokenizer: AlphabetTokenizer | Path | None = None
    """An alphabet, or a directory with a tokenizer; null = the model's directory."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format that the trainer computes in, and of the weights that it publishes. What it
    trains is float32 in either, 16 bytes per parameter: the weights, their gradients and what AdamW
    keeps. A KL loss takes 4 more."""
    enable_gradient_checkpointing: bool = False
    """Compute the activations of each layer again for its gradient, instead of keeping them: less
    memory for a third more time. Does not change the gradient."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.path is None) == (self.architecture is None):
            msg = "give either model.path (a directory) or model.architecture (and model.options)"
            raise ValueError(msg)
        if self.path is None and self.tokenizer is None:
            msg = "model.architecture needs model.tokenizer: an alphabet or a directory"
            raise ValueError(msg)
        if self.path is not None and self.options:
            msg = "model.options belong to model.architecture; model.path has its own config.json"
            raise ValueError(msg)
        return self
