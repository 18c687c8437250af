"""Rows of parquet files.

A file is read by row groups; those that were read last stay in memory, decoded, up to a budget.
So rows in any order cost little while a data set fits the budget, and a row group each beyond it.
"""

from __future__ import annotations

import glob
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from headrace.config.data import ParquetSource
from headrace.errors import UsageError
from headrace.feeder.sources.arrow import (
    ArrowRows,
    Chunk,
    digest_files,
    import_pyarrow,
    wanted_columns,
)
from headrace.feeder.sources.source import Columns, one_line

CACHE_BYTES: Final = 512 * 2**20
"""Decoded row groups that are kept; the one that was read last always is."""


def open_parquet(config: ParquetSource) -> ArrowRows:
    """Find the files and check every row.

    Raises:
        UsageError: there is no file, one cannot be read, or a row is not usable.

    """
    columns = Columns(
        prompt_key=config.prompt_key,
        answer_key=config.answer_key,
        data_source=config.path.stem,
        advice="set data.source.prompt_key and data.source.answer_key "
        "(null if there are no answers)",
    )
    files = find_files(config.path)
    digest = digest_files(files, config.prompt_key, config.answer_key, config.keep)
    groups = RowGroups(files, columns, config.keep)
    return ArrowRows(config.path, groups, columns, digest=digest)


def find_files(path: Path) -> list[Path]:
    """Give the files that a path, a folder or a pattern stands for, by name.

    Raises:
        UsageError: there is none.

    """
    if path.is_dir():
        found = path.rglob("*.parquet")
        what = "has no .parquet files"
    elif glob.has_magic(str(path)) and not path.exists():
        root = Path(path.anchor)  # a pattern may have folders in it
        found = root.glob(str(path.relative_to(root)))
        what = "matches no file"
    else:
        return [path]
    files = sorted(file for file in found if file.is_file() and file.name[0] not in "._")
    if not files:
        raise UsageError(f"data.source.path: {path} {what}")
    return files


class RowGroups:
    """The row groups of all files."""

    def __init__(self, files: Sequence[Path], columns: Columns, keep: Sequence[str] | None) -> None:
        """Read the files' footers.

        Raises:
            UsageError: one of them is no parquet file, or lacks a column.

        """
        self._arrow = import_pyarrow("parquet")
        self._kept: OrderedDict[Chunk, Any] = OrderedDict()  # the one that was read last is last
        self._kept_bytes = 0
        self._footers: dict[Path, Any] = {}
        self._wanted: dict[Path, list[str]] = {}
        chunks: list[Chunk] = []
        for file in files:
            footer, names = self._footer(file)
            self._footers[file] = footer
            self._wanted[file] = wanted_columns(names, columns, keep, file=file)
            first_row = 0
            for number in range(footer.num_row_groups):
                row_count = footer.row_group(number).num_rows
                chunks.append(Chunk(file, number, first_row, row_count))
                first_row += row_count
        self.chunks: Sequence[Chunk] = chunks

    def read(self, chunk: Chunk) -> Any:
        """Decode a row group, or give it from memory.

        Raises:
            UsageError: the file is damaged, or gone.

        """
        if chunk in self._kept:
            self._kept.move_to_end(chunk)
            return self._kept[chunk]
        table = self._kept[chunk] = self._decode(chunk)
        self._kept_bytes += table.nbytes
        while len(self._kept) > 1 and self._kept_bytes > CACHE_BYTES:
            _, longest_unread = self._kept.popitem(last=False)
            self._kept_bytes -= longest_unread.nbytes
        return table

    def _decode(self, chunk: Chunk) -> Any:
        try:
            with self._arrow.parquet.ParquetFile(
                chunk.file, metadata=self._footers[chunk.file], memory_map=True
            ) as file:
                return file.read_row_group(chunk.number, columns=self._wanted[chunk.file])
        except (self._arrow.ArrowException, OSError) as error:
            raise _unreadable(chunk.file, error) from error

    def _footer(self, file: Path) -> tuple[Any, list[str]]:
        try:
            with self._arrow.parquet.ParquetFile(file, memory_map=True) as opened:
                return opened.metadata, list(opened.schema_arrow.names)
        except (self._arrow.ArrowException, OSError) as error:
            raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> UsageError:
    return UsageError(f"data.source.path: cannot read {file} as parquet: {one_line(error)}")
