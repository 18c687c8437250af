"""Rows of a Hugging Face data set on disk, as `Dataset.save_to_disk` wrote it.

The folder holds `state.json`, which names the data files: Arrow streams that are mapped into
memory, so that a row costs a few pages wherever it is. A `DatasetDict` is a folder of such
folders. The `datasets` package is not needed, and nothing but the disk is asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.config.data import HfSource
from headrace.errors import UsageError
from headrace.feeder.sources.arrow import (
    ArrowRows,
    Chunk,
    digest_files,
    import_pyarrow,
    wanted_columns,
)
from headrace.feeder.sources.source import Columns, one_line


def open_hf(config: HfSource) -> ArrowRows:
    """Find the data files and check every row.

    Raises:
        UsageError: it is no such folder, a file cannot be read, or a row is not usable.

    """
    folder = _find_split(config.path, config.split)
    columns = Columns(
        prompt_key=config.prompt_key,
        answer_key=config.answer_key,
        data_source=config.path.name,
        advice="set data.source.prompt_key and data.source.answer_key "
        "(null if there are no answers)",
    )
    files = [folder / name for name in _data_files(folder)]
    digest = digest_files(files, config.prompt_key, config.answer_key, config.keep)
    return ArrowRows(folder, Batches(files, columns, config.keep), columns, digest=digest)


class Batches:
    """The record batches of all data files, mapped into memory."""

    def __init__(self, files: Sequence[Path], columns: Columns, keep: Sequence[str] | None) -> None:
        """Map the files.

        Raises:
            UsageError: one of them is no Arrow stream, or lacks a column.

        """
        arrow = import_pyarrow("hf")
        chunks: list[Chunk] = []
        self._batches: dict[Chunk, Any] = {}
        for file in files:
            try:
                table = arrow.ipc.open_stream(arrow.memory_map(str(file))).read_all()
            except (arrow.ArrowException, OSError) as error:
                raise UsageError(
                    f"data.source.path: cannot read {file} as an Arrow stream: {one_line(error)}"
                ) from error
            wanted = wanted_columns(table.column_names, columns, keep, file=file)
            first_row = 0
            for number, batch in enumerate(table.select(wanted).to_batches()):
                chunk = Chunk(file, number, first_row, batch.num_rows)
                chunks.append(chunk)
                self._batches[chunk] = batch
                first_row += batch.num_rows
        self.chunks: Sequence[Chunk] = chunks

    def read(self, chunk: Chunk) -> Any:
        """Give a record batch; nothing is copied."""
        return self._batches[chunk]


def _find_split(path: Path, split: str | None) -> Path:
    parts = path / "dataset_dict.json"
    if parts.is_file():
        splits = _json(parts).get("splits", [])
        there = ", ".join(splits) or "none"
        if split is None:
            raise UsageError(f"data.source.split: is required: {path} has the splits {there}")
        if split not in splits:
            raise UsageError(f"data.source.split: {path} has no {split!r}; the splits are: {there}")
        return path / split
    if split is not None and _json(path / "state.json").get("_split") != split:
        raise UsageError(
            f"data.source.split: {path} is one data set and not its split {split!r}; "
            "leave data.source.split out"
        )
    return path


def _data_files(folder: Path) -> list[str]:
    entries = _json(folder / "state.json").get("_data_files")
    try:
        if entries:
            return [str(entry["filename"]) for entry in entries]
    except (TypeError, KeyError):
        pass
    raise UsageError(f"data.source.path: {folder / 'state.json'} names no data files")


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except OSError as error:
        raise UsageError(
            f"data.source.path: {file.parent} is no folder that Dataset.save_to_disk wrote: "
            f"cannot read {file.name}: {error.strerror}"
        ) from None
    except ValueError as error:
        raise UsageError(f"data.source.path: {file} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"data.source.path: {file} is not a JSON object")
    return content
