"""Where prompts come from and how they are batched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from headrace.config.section import Section


class JsonlSource(Section):
    """A file with one JSON object per line."""

    kind: Literal["jsonl"]
    path: Path
    """The file. A relative path counts from the configuration file's folder."""
    prompt_key: str = "prompt"
    """The column with the prompt: text, or a list of chat messages."""
    answer_key: str | None = "answer"
    """The column with the reference answer; null if there is none."""


class ParquetSource(Section):
    """Parquet files of one layout."""

    kind: Literal["parquet"]
    path: Path
    """A file, a folder with `.parquet` files, or a pattern such as `rows/train-*.parquet`."""
    prompt_key: str = "prompt"
    """The column with the prompt: text, or a list of chat messages."""
    answer_key: str | None = "answer"
    """The column with the reference answer; null if there is none."""
    keep: list[str] | None = None
    """The other columns that go along with a row; null = all."""


class HfSource(Section):
    """A Hugging Face data set on disk, as `Dataset.save_to_disk` wrote it. No hub is asked."""

    kind: Literal["hf"]
    path: Path
    """The folder."""
    split: str | None = None
    """Which part of a `DatasetDict`, such as `train`; null if the folder holds one data set."""
    prompt_key: str = "prompt"
    """The column with the prompt: text, or a list of chat messages."""
    answer_key: str | None = "answer"
    """The column with the reference answer; null if there is none."""
    keep: list[str] | None = None
    """The other columns that go along with a row; null = all."""


class ReasoningGymSource(Section):
    """A procedural data set of the reasoning-gym package, scored by its own scorer."""

    kind: Literal["reasoning_gym"]
    name: str
    """The data set's name, such as `chain_sum`."""
    size: int = Field(ge=1)
    """How many rows to make."""
    seed: int = 0
    """Seed of the rows' content."""
    options: dict[str, Any] = {}
    """Further keyword arguments of the data set."""
    chat: bool = False
    """Whether the question is a chat message, which goes through the tokenizer's chat template;
    otherwise it is the prompt as it is."""
    system_prompt: str | None = None
    """With `chat`: a system message before the question."""

    @model_validator(mode="after")
    def _system_prompt_needs_chat(self) -> Self:
        if self.system_prompt is not None and not self.chat:
            msg = "system_prompt is a chat message: set chat to true as well, or leave it out"
            raise ValueError(msg)
        return self


class PythonSource(Section):
    """A sequence of rows made by a Python function."""

    kind: Literal["python"]
    function: str = Field(pattern=r"^[\w.]+:\w+$")
    """`module:function`. It returns a sequence (len, [i]) of mappings with `prompt`, `answer`."""
    options: dict[str, Any] = {}
    """Keyword arguments of the function."""


SingleSource = Annotated[
    JsonlSource | ParquetSource | HfSource | ReasoningGymSource | PythonSource,
    Field(discriminator="kind"),
]


class MixturePart(Section):
    """One of the data sets of a mixture."""

    source: SingleSource
    """The part's rows."""
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """The part's share of the feed, in proportion to the other weights."""


class MixtureSource(Section):
    """Several data sets, mixed by weight: after any number of rows each had its share, to one row."""

    kind: Literal["mixture"]
    parts: dict[str, MixturePart] = Field(min_length=1)
    """The data sets by name; the name is the `data_source` of their rows."""


class StreamSource(Section):
    """Rows that come one after the other and have no number: what cannot seek."""

    kind: Literal["stream"]
    function: str = Field(pattern=r"^[\w.]+:\w+$")
    """`module:function`. It returns an iterable of mappings with `prompt`, `answer`, which has
    `state_dict()` and `load_state_dict(state)`."""
    options: dict[str, Any] = {}
    """Keyword arguments of the function."""


Source = Annotated[
    JsonlSource
    | ParquetSource
    | HfSource
    | ReasoningGymSource
    | PythonSource
    | MixtureSource
    | StreamSource,
    Field(discriminator="kind"),
]


class DataConfig(Section):
    """The data set."""

    source: Source
    """The rows: `kind: jsonl | parquet | hf | reasoning_gym | python | mixture | stream` and what
    that kind needs."""
    train_batch_size: int = Field(ge=1)
    """Prompt groups per step (B)."""
    gen_batch_size: int | None = Field(default=None, ge=1)
    """Rows the feeder reads at a time (G); null = `train_batch_size`. Never costs exactness."""
    max_prompt_length: int = Field(default=512, ge=1)
    """Tokens; a longer prompt is registered as dropped (too_long)."""
    max_response_length: int = Field(default=512, ge=1)
    """Tokens, the stop token included."""
    shuffle: bool = True
    """Whether each epoch has an order of its own; otherwise the source's. A stream has its own."""
    seed: int = 0
    """Seed of the order."""
    read_timeout_s: float = Field(default=60.0, gt=0)
    """How long reading one chunk of rows may take before the wait counts as a stall."""

    @property
    def chunk_size(self) -> int:
        """Rows the feeder reads at a time."""
        return self.gen_batch_size or self.train_batch_size
