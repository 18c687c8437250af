"""The tokenizer a configuration asks for."""

from __future__ import annotations

from headrace.config.model import AlphabetTokenizer, ModelConfig
from headrace.tokenizer.alphabet import Alphabet
from headrace.tokenizer.pretrained import Pretrained
from headrace.tokenizer.tokenizer import Tokenizer


def load_tokenizer(config: ModelConfig) -> Tokenizer:
    """Load the tokenizer of `model.tokenizer`, or else of `model.path`.

    Raises:
        UsageError: its directory is missing or damaged, or its package is not installed.

    """
    if isinstance(config.tokenizer, AlphabetTokenizer):
        return Alphabet(config.tokenizer)
    directory = config.tokenizer or config.path
    assert directory is not None  # the model of the section refuses this
    return Pretrained(directory)
