"""The source a configuration asks for, opened and checked.

Importable without torch and transformers: the launcher opens the source, too, before it
starts anything.
"""

from __future__ import annotations

from headrace.config.data import DataConfig, JsonlSource, ReasoningGymSource
from headrace.errors import UsageError
from headrace.feeder.sources.jsonl import JsonlRows
from headrace.feeder.sources.python import PythonRows
from headrace.feeder.sources.reasoning_gym import ReasoningGymRows
from headrace.feeder.sources.source import Source


def open_source(config: DataConfig) -> Source:
    """Open the data set and find whatever is wrong with it.

    Raises:
        UsageError: it cannot be opened, a line of a file is malformed, it is empty, or it has fewer
            rows than a batch.

    """
    source = _open(config)
    rows, batch = len(source), config.train_batch_size
    if rows == 0:
        raise UsageError(f"data.source: {source.name} has no rows")
    if rows < batch:
        raise UsageError(
            f"data.source: {source.name} has {rows} rows, fewer than one batch: "
            f"data.train_batch_size is {batch}"
        )
    return source


def _open(config: DataConfig) -> Source:
    match config.source:
        case JsonlSource() as jsonl:
            return JsonlRows(jsonl)
        case ReasoningGymSource() as gym:
            return ReasoningGymRows(gym)
        case python:
            return PythonRows(python)
