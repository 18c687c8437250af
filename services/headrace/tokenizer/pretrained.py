"""A tokenizer from a Hugging Face directory.

The only place that imports transformers' tokenizers, and only when one is opened.
Nothing is ever downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.errors import UsageError


class Pretrained:
    """What `transformers.AutoTokenizer` loads from a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._inner = _load(directory)
        if self._inner.eos_token_id is None:
            raise UsageError(
                f"{directory}: the tokenizer has no eos token, so no response would ever end: "
                "set eos_token in its tokenizer_config.json"
            )

    @property
    def vocab_size(self) -> int:
        """All ids, added tokens included."""
        return len(self._inner)

    @property
    def eos_id(self) -> int:
        """The eos token's id."""
        return int(self._inner.eos_token_id)

    @property
    def pad_id(self) -> int:
        """The pad token's id; without one, that of eos."""
        pad = self._inner.pad_token_id
        return self.eos_id if pad is None else int(pad)

    def encode(self, text: str) -> list[int]:
        """Ids of the text. No beginning-of-text is added: a chat template writes its own."""
        return list(self._inner.encode(text, add_special_tokens=False))

    def decode(self, ids: list[int]) -> str:
        """Text of the ids, without special tokens and with spaces as they are."""
        return str(
            self._inner.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def render(self, messages: list[dict[str, str]]) -> str:
        """Apply the chat template, the opening of the answer included.

        Raises:
            UsageError: there is no chat template, or it refuses these messages.

        """
        if not self._inner.chat_template:
            raise UsageError(
                f"{self._directory}: the data set has chat messages, but this tokenizer has no "
                "chat template: give prompts as text, or a tokenizer of a chat model"
            )
        try:
            return str(
                self._inner.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True
                )
            )
        except Exception as error:  # a template is foreign code and raises what it likes
            roles = [message["role"] for message in messages]
            raise UsageError(
                f"{self._directory}: the chat template refuses messages of the roles {roles}: "
                f"{' '.join(str(error).split())}"
            ) from error

    def save(self, directory: Path) -> None:
        """Write the tokenizer's files, the chat template among them."""
        self._inner.save_pretrained(directory)


def _load(directory: Path) -> Any:  # transformers is untyped
    if not directory.is_dir():
        raise UsageError(
            f"{directory}: no such directory; model.path and model.tokenizer name a local Hugging "
            "Face directory; nothing is downloaded (docs/models.md)"
        )
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UsageError(
            f"{directory}: loading a tokenizer needs the transformers package: "
            "pip install 'headrace[feeder]'"
        ) from error
    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # damaged files raise anything from OSError to a Rust panic's text
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(f"{directory}: no tokenizer could be loaded: {reason}") from error
