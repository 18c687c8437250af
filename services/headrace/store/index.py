"""Which rows are in the store's part of a checkpoint: our own list beside TransferQueue's files.

    transfer_queue/
        metadata.json, controller_state.pkl.gz, simple_storage/…    TransferQueue's checkpoint
        rows.jsonl.gz                                               this list

Its first line says what it is; then a line for each row, `["key", size_bytes, crc32c]`, in the order
in which they were put. What it has no line for is not restored.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

FORMAT = "headrace store rows"
VERSION = 1
NAME = "rows.jsonl.gz"
_LEVEL = 1


class IndexedRow(NamedTuple):
    """One row."""

    key: str
    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Header:
    """What stands above the rows."""

    run_id: str
    """The run that they belong to."""
    store_incarnation: str
    """The store that they were in."""
    storage_units: int
    """How many storage units TransferQueue had."""
    transfer_queue: str
    """Its version."""
    row_count: int
    """Rows."""
    raw_bytes: int
    """Bytes of their values."""


def write(folder: Path, header: Header, rows: Iterable[IndexedRow]) -> None:
    """Write the list into a folder. Raises OSError."""
    said: dict[str, object] = {"format": FORMAT, "version": VERSION} | asdict(header)
    lines = [said, *rows]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (folder / NAME).write_bytes(gzip.compress(text.encode(), _LEVEL, mtime=0))


def read(folder: Path) -> tuple[Header, list[IndexedRow]]:
    """Read the list of a folder.

    Raises:
        ValueError: it is not such a list, or not all of it; says what is wrong.
        OSError: it cannot be read.

    """
    try:
        first, *lines = gzip.decompress((folder / NAME).read_bytes()).splitlines()
        said = json.loads(first)
        kind = said.pop("format"), said.pop("version")
        header = Header(**said)
        rows = [IndexedRow(*json.loads(line)) for line in lines]
    except (ValueError, TypeError, KeyError, AttributeError, EOFError) as error:
        msg = f"{NAME} is no list of rows that this program can read ({error})"
        raise ValueError(msg) from error
    if kind != (FORMAT, VERSION):
        msg = f"{NAME} is {kind}, this program reads {(FORMAT, VERSION)}"
        raise ValueError(msg)
    found = (len(rows), sum(row.size_bytes for row in rows))
    if found != (header.row_count, header.raw_bytes):
        msg = f"{NAME} has (rows, bytes) {found}, not {(header.row_count, header.raw_bytes)}"
        raise ValueError(msg)
    return header, rows


def pack(path: Path) -> None:
    """Compress a file: `path` becomes `path.gz`. Raises OSError."""
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), _LEVEL, mtime=0))
    path.unlink()


def unpack(path: Path) -> None:
    """Make `path` of `path.gz` again.

    Raises:
        ValueError: it is not compressed.
        OSError: it cannot be read or written.

    """
    packed = path.with_name(path.name + ".gz")
    try:
        path.write_bytes(gzip.decompress(packed.read_bytes()))
    except (gzip.BadGzipFile, EOFError) as error:
        msg = f"{packed.name}: {error}"
        raise ValueError(msg) from error
