"""Where prompts come from and how they are batched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

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


class PythonSource(Section):
    """A sequence of rows made by a Python function."""

    kind: Literal["python"]
    function: str = Field(pattern=r"^[\w.]+:\w+$")
    """`module:function`. It returns a sequence (len, [i]) of mappings with `prompt`, `answer`."""
    options: dict[str, Any] = {}
    """Keyword arguments of the function."""


Source = Annotated[JsonlSource | ReasoningGymSource | PythonSource, Field(discriminator="kind")]


class DataConfig(Section):
    """The data set."""

    source: Source
    """The rows: `kind: jsonl | reasoning_gym | python` and what that kind needs."""
    train_batch_size: int = Field(ge=1)
    """Prompt groups per step (B)."""
    gen_batch_size: int | None = Field(default=None, ge=1)
    """Rows the feeder reads at a time (G); null = `train_batch_size`. Never costs exactness."""
    max_prompt_length: int = Field(default=512, ge=1)
    """Tokens; a longer prompt is registered as dropped (too_long)."""
    max_response_length: int = Field(default=512, ge=1)
    """Tokens, the stop token included."""
    shuffle: bool = True
    """Whether each epoch has an order of its own; otherwise the source's."""
    seed: int = 0
    """Seed of the order."""
    read_timeout_s: float = Field(default=60.0, gt=0)
    """How long reading one chunk of rows may take before the wait counts as a stall."""

    @property
    def chunk_size(self) -> int:
        """Rows the feeder reads at a time."""
        return self.gen_batch_size or self.train_batch_size
