"""A tokenizer with one token per character.

Plain Python but for `save`; knows neither torch nor transformers.
"""

from __future__ import annotations

import json
from pathlib import Path

from headrace.config.model import AlphabetTokenizer
from headrace.errors import UsageError

PAD_ID = 0
EOS_ID = 1
PAD_TOKEN = "<|pad|>"  # noqa: S105 - a token of text
FIRST_ID = 2


class Alphabet:
    """One token per character. Ids: padding 0, the stop character 1, then the alphabet in order."""

    def __init__(self, config: AlphabetTokenizer) -> None:
        self._eos = config.eos
        self._text_of = (PAD_TOKEN, config.eos, *config.alphabet)
        self._id_of = {character: i for i, character in enumerate(self._text_of) if i != PAD_ID}

    @property
    def vocab_size(self) -> int:
        """The alphabet, the stop character and padding."""
        return len(self._text_of)

    @property
    def eos_id(self) -> int:
        """The stop character's id."""
        return EOS_ID

    @property
    def pad_id(self) -> int:
        """The id of padding."""
        return PAD_ID

    def encode(self, text: str) -> list[int]:
        """One id per character.

        Raises:
            UsageError: a character is not in the alphabet.

        """
        try:
            return [self._id_of[character] for character in text]
        except KeyError as error:
            alphabet = "".join(self._text_of[FIRST_ID:])
            raise UsageError(
                f"the character {error.args[0]!r} of {_shorten(text)!r} is not in the alphabet "
                f"{alphabet!r}: add it to model.tokenizer.alphabet, or change the data"
            ) from None

    def decode(self, ids: list[int]) -> str:
        """One character per id, without padding and the stop character."""
        return "".join(self._text_of[i] for i in ids if i >= FIRST_ID)

    def render(self, messages: list[dict[str, str]]) -> str:
        """Refuse: an alphabet has no chat template.

        Raises:
            UsageError: always.

        """
        raise UsageError(
            f"the data set has chat messages ({len(messages)} in one row), but an alphabet has no "
            "chat template: give prompts as text, or set model.tokenizer to a directory whose "
            "tokenizer has one"
        )

    def save(self, directory: Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`.

        Raises:
            UsageError: the `tokenizers` package is not installed.

        """
        try:
            from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
            from tokenizers import Tokenizer as FastTokenizer
        except ImportError as error:
            raise UsageError(
                "saving a tokenizer needs the tokenizers package: pip install 'headrace[feeder]'"
            ) from error
        vocabulary = {text: i for i, text in enumerate(self._text_of)}
        fast = FastTokenizer(models.WordLevel(vocabulary, unk_token=PAD_TOKEN))
        fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        fast.decoder = decoders.Fuse()
        fast.add_special_tokens(
            [AddedToken(text, special=True, normalized=False) for text in self._text_of[:FIRST_ID]]
        )
        directory.mkdir(parents=True, exist_ok=True)
        fast.save(str(directory / "tokenizer.json"))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": self._eos,
            "pad_token": PAD_TOKEN,
            "clean_up_tokenization_spaces": False,
        }
        text = json.dumps(settings, indent=2) + "\n"
        (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
