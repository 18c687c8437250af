"""Text to token ids and back, the same in every process of a run."""

from headrace.tokenizer.load import load_tokenizer
from headrace.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer", "load_tokenizer"]
