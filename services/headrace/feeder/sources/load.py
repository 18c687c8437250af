"""The source a configuration asks for, opened and checked.

Importable without torch and transformers: the launcher opens the source, too, before it
starts anything.
"""

from __future__ import annotations

from headrace.config.data import (
    DataConfig,
    HfSource,
    JsonlSource,
    MixtureSource,
    ParquetSource,
    ReasoningGymSource,
    SingleSource,
    StreamSource,
)
from headrace.errors import UsageError
from headrace.feeder.sources.hf import open_hf
from headrace.feeder.sources.jsonl import JsonlRows
from headrace.feeder.sources.mixture import MixtureRows, Part
from headrace.feeder.sources.parquet import open_parquet
from headrace.feeder.sources.python import PythonRows
from headrace.feeder.sources.reasoning_gym import ReasoningGymRows
from headrace.feeder.sources.source import Source
from headrace.feeder.sources.stream import StreamRows


def open_data(config: DataConfig) -> Source | StreamRows:
    """Open the data set or the stream, of which nothing is read.

    Raises:
        UsageError: something is wrong with it.

    """
    if isinstance(config.source, StreamSource):
        return StreamRows(config.source)
    return open_source(config)


def open_source(config: DataConfig) -> Source:
    """Open the data set, which is no stream, and find whatever is wrong with it.

    Raises:
        UsageError: it cannot be opened, a row of a file is malformed, it is empty, or it has fewer
            rows than a batch.

    """
    assert not isinstance(config.source, StreamSource)
    source: Source
    match config.source:
        case MixtureSource() as mixture:
            source = _mixture(mixture)
        case single:
            source = _single(single)
    rows, batch = len(source), config.train_batch_size
    if rows == 0:
        raise UsageError(f"data.source: {source.name} has no rows")
    if rows < batch:
        raise UsageError(
            f"data.source: {source.name} has {rows} rows, fewer than one batch: "
            f"data.train_batch_size is {batch}"
        )
    return source


def _single(config: SingleSource) -> Source:
    match config:
        case JsonlSource() as jsonl:
            return JsonlRows(jsonl)
        case ParquetSource() as parquet:
            return open_parquet(parquet)
        case HfSource() as hf:
            return open_hf(hf)
        case ReasoningGymSource() as gym:
            return ReasoningGymRows(gym)
        case python:
            return PythonRows(python)


def _mixture(config: MixtureSource) -> MixtureRows:
    parts = []
    for name, part in config.parts.items():
        try:
            parts.append(Part(name, _single(part.source), part.weight))
        except UsageError as error:
            raise UsageError(_in_part(name, str(error))) from error
    return MixtureRows(parts)


def _in_part(name: str, message: str) -> str:
    """Say of a part what was said of a source alone: its keys are longer."""
    key = f"data.source.parts.{name}"
    place = "" if message.startswith("data.source.") else f"{key}: "
    return place + message.replace("data.source.", f"{key}.source.")
