"""Rows of Arrow tables, found by number: what parquet files and Hugging Face folders share.

Knows which chunk a row is in, not where chunks come from. pyarrow is imported when it is used.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from headrace.errors import UsageError
from headrace.feeder.sources.source import Columns, Row, row_from_columns

CHECKED_AT_ONCE = 1024
"""Rows that are Python objects at one time while a data set is checked."""


@dataclass(frozen=True)
class Chunk:
    """Rows that are read in one go: a row group of a parquet file, a record batch."""

    file: Path
    """Where it is."""
    number: int
    """Which chunk of the file, from 0."""
    first_row: int
    """Rows of the file before it."""
    row_count: int
    """Rows in it."""


class Chunks(Protocol):
    """The chunks of a data set, in order. Reading one again may be cheap, or not."""

    @property
    def chunks(self) -> Sequence[Chunk]:
        """All of them."""

    def read(self, chunk: Chunk) -> Any:
        """Give it as a `pyarrow.Table` or `RecordBatch`, without columns that nobody wants.

        Raises:
            UsageError: it cannot be read.

        """


class ArrowRows:
    """The rows of a data set of chunks. Each is found by bisection, and checked at opening."""

    def __init__(self, path: Path, chunks: Chunks, columns: Columns, *, digest: str) -> None:
        """Check every row.

        Args:
            path: What messages call the data set.
            chunks: Where the rows are.
            columns: Which column is what.
            digest: Of the content, and of whatever else decides what a row is.

        Raises:
            UsageError: a row is not usable.

        """
        self._path = path
        self._chunks = chunks
        self._columns = columns
        self._digest = digest
        self._starts = list(accumulate((c.row_count for c in chunks.chunks), initial=0))
        for chunk in chunks.chunks:
            self._check(chunk)

    @property
    def name(self) -> str:
        """The file, the folder or the pattern."""
        return str(self._path)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Row:
        """Read one row.

        Raises:
            UsageError: the files have changed.

        """
        number = bisect_right(self._starts, index) - 1
        chunk = self._chunks.chunks[number]
        row = index - self._starts[number]
        [values] = self._chunks.read(chunk).slice(row, 1).to_pylist()
        return self._row(values, chunk, row)

    def fingerprint(self) -> str:
        """Digest of the files' bytes, and of what their columns mean."""
        return self._digest

    def _check(self, chunk: Chunk) -> None:
        table = self._chunks.read(chunk)
        for start in range(0, chunk.row_count, CHECKED_AT_ONCE):
            for offset, values in enumerate(table.slice(start, CHECKED_AT_ONCE).to_pylist()):
                self._row(values, chunk, start + offset)

    def _row(self, values: dict[str, Any], chunk: Chunk, row: int) -> Row:
        where = f"{chunk.file}, row {chunk.first_row + row}"
        plain = {name: _plain(value, f"{where}: {name}") for name, value in values.items()}
        prompt = plain.get(self._columns.prompt_key)
        if isinstance(prompt, list):
            # A column of messages has every key that one of them has; the others hold nothing.
            plain[self._columns.prompt_key] = [_without_nothing(message) for message in prompt]
        return row_from_columns(plain, self._columns, where=where)


def wanted_columns(
    names: Sequence[str], columns: Columns, keep: Sequence[str] | None, *, file: Path
) -> list[str]:
    """Choose the columns of a file that are to be read.

    Args:
        names: The columns there are.
        columns: Which column is what.
        keep: The other columns that are wanted; None = all.
        file: What messages call it.

    Raises:
        UsageError: one of them is not there.

    """
    special = [key for key in (columns.prompt_key, columns.answer_key) if key is not None]
    for key in (*special, *(keep or ())):
        if key not in names:
            there = ", ".join(names) or "none"
            advice = columns.advice if key in special else "see data.source.keep"
            raise UsageError(f"{file}: no column {key!r}; the columns are: {there}; {advice}")
    return list(names) if keep is None else list(dict.fromkeys((*special, *keep)))


def digest_files(files: Sequence[Path], *meaning: object) -> str:
    """Digest the bytes of all files, in order, and how they are read.

    Raises:
        UsageError: one of them cannot be read.

    """
    digests = []
    for file in files:
        try:
            with file.open("rb") as opened:
                digests.append(hashlib.file_digest(opened, "sha256").hexdigest())
        except OSError as error:
            raise UsageError(f"data.source.path: cannot read {file}: {error.strerror}") from None
    return hashlib.sha256(json.dumps([digests, *meaning]).encode()).hexdigest()


def import_pyarrow(kind: str) -> Any:
    """Give the package.

    Raises:
        UsageError: it is not installed.

    """
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            f"data.source.kind: {kind} needs a package that is not installed: "
            f"pip install 'headrace[feeder]' ({error})"
        ) from error
    return pyarrow


def _plain(value: Any, where: str) -> Any:
    """Give a value as JSON has it: times and decimals as text."""
    if isinstance(value, dict):
        return {str(key): _plain(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta | decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        raise UsageError(
            f"{where}: holds bytes, which cannot be written as JSON; name the columns you need in "
            "data.source.keep, without this one"
        )
    return value


def _without_nothing(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    return {key: value for key, value in message.items() if value is not None}
