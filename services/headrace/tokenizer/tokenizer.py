"""What the rest of headrace asks of a tokenizer.

Knows no library: the alphabet's and the pretrained one are in their own files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Tokenizer(Protocol):
    """Text to token ids and back.

    Implementations may be used from several threads, one call at a time.
    """

    @property
    def vocab_size(self) -> int:
        """How many ids there are: all are below this."""

    @property
    def eos_id(self) -> int:
        """The id that ends a response."""

    @property
    def pad_id(self) -> int:
        """The id that fills up a batch. It may equal `eos_id`."""

    def encode(self, text: str) -> list[int]:
        """Turn text into ids. Nothing is added: no beginning, no end.

        Raises:
            UsageError: the text holds what the tokenizer has no token for.

        """

    def decode(self, ids: list[int]) -> str:
        """Turn ids into text; special tokens, such as the end and padding, are left out."""

    def render(self, messages: list[dict[str, str]]) -> str:
        """Apply the chat template to messages of `role` and `content`, ready for an answer.

        Raises:
            UsageError: there is no chat template, or it refuses these messages.

        """

    def save(self, directory: Path) -> None:
        """Write the files from which `transformers.AutoTokenizer` loads the same tokenizer."""
