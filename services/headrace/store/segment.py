"""One file of the store's log, and the list of what is dead in it.

    rows-{number}.log   rows, one after the other: head, key, value
    dead-{number}.log   where dead rows begin: offset (8 bytes) and its CRC32C, each

A head begins with a marker and holds the sizes, the CRC32C of the value - the one that the worker
sealed it with - and one of the head itself with the key. Numbers are little endian. So one damaged
place costs the rows that it touches: the next head is found by its marker.

A deletion is never synced: one that a power loss undoes brings back a row that nobody refers to,
and the sweep finds it. Knows nothing of other segments, nor which rows ought to be there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from crc32c import crc32c

from headrace.trajectory.chunks import MAX_CALL_BYTES, MAX_KEY_BYTES, Value

MARKER = b"\xd3row"
_HEAD = struct.Struct("<4sHII")
"""Marker, bytes of the key, bytes of the value, CRC32C of the value."""
_CHECKSUM = struct.Struct("<I")
_DEAD = struct.Struct("<QI")
_SEARCH_BYTES = 2**20
_MOST_PIECES = 1024
"""What one `pwritev` takes."""


@dataclass(frozen=True, slots=True)
class Row:
    """A whole row."""

    offset: int
    """Where its head begins."""
    value: Value
    """Key, bytes and checksum."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no whole row."""

    offset: int
    size_bytes: int
    key: str | None
    """The row that was there, where its head can be read."""
    is_tail: bool
    """Whether an append that a crash cut short explains it. It was not confirmed then."""


def row_bytes(value: Value) -> int:
    """Return what a row takes in the file."""
    return _HEAD.size + _CHECKSUM.size + len(value.key.encode()) + len(value.data)


def numbers(directory: Path, what: str) -> list[int]:
    """Return the numbers of the files `rows-*.log` or `dead-*.log`, in order."""
    stems = (path.stem.removeprefix(f"{what}-") for path in directory.glob(f"{what}-*.log"))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


class Segment:
    """A file of rows. Calls block; one at a time."""

    def __init__(self, directory: Path, number: int, *, create: bool = False) -> None:
        """Open, or create, the file. Raises OSError."""
        self.number = number
        self.path = directory / f"rows-{number:08d}.log"
        self.live_count = 0
        """Rows that are not dead; the owner counts."""
        self.live_bytes = 0
        """Their bytes in the file."""
        self.is_broken = False
        """Whether a failed append could not be taken back: nothing may be written behind it."""
        self._dead_path = directory / f"dead-{number:08d}.log"
        if create:
            # Left behind by one of the same number, it would name rows of this one.
            self._dead_path.unlink(missing_ok=True)
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        self._fd = os.open(self.path, flags, 0o644)
        self.size_bytes = os.fstat(self._fd).st_size
        self._dead = self._read_dead()
        self._dead_written = len(self._dead)
        """Places in the file of the dead; those after it wait for room on the disk."""

    def append(self, values: Sequence[Value], *, fsync: bool) -> list[int]:
        """Write rows in one go and return their offsets.

        Raises:
            OSError: the disk refused. None of them is there.

        """
        offsets: list[int] = []
        pieces: list[bytes] = []
        end = self.size_bytes
        for value in values:
            head = _head_of(value)
            offsets.append(end)
            pieces += [head, value.data]
            end += len(head) + len(value.data)
        try:
            _write_all(self._fd, pieces, self.size_bytes)
            if fsync:
                os.fdatasync(self._fd)
        except OSError:
            self._take_back()
            raise
        self.size_bytes = end
        return offsets

    def bury(self, offsets: Sequence[int]) -> None:
        """Note that the rows at these offsets are dead.

        Raises:
            OSError: the disk refused. The next call writes them, too.

        """
        self._dead += offsets
        waiting = self._dead[self._dead_written :]
        body = b"".join(_DEAD.pack(offset, _checksum_of(offset)) for offset in waiting)
        fd = os.open(self._dead_path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            _write_all(fd, [body], self._dead_written * _DEAD.size)
        finally:
            os.close(fd)
        self._dead_written = len(self._dead)

    def read(self) -> Iterator[Row | Damage]:
        """Give every row that is not dead, in order, and what is unreadable."""
        dead = set(self._dead)
        with self.path.open("rb", buffering=_SEARCH_BYTES) as file:
            offset = 0
            while offset < self.size_bytes:
                found = _head_at(file, offset)
                if found is None:
                    following = self._next_head(file, offset + 1)
                    end = self.size_bytes if following is None else following
                    yield Damage(offset, end - offset, None, is_tail=following is None)
                    offset = end
                    continue
                key, value_bytes, checksum, begin = found
                end = begin + value_bytes
                if end > self.size_bytes:
                    yield Damage(offset, self.size_bytes - offset, key, is_tail=True)
                    return
                if offset not in dead:
                    value = Value(key, file.read(value_bytes), checksum)
                    if crc32c(value.data) == checksum:
                        yield Row(offset, value)
                    else:
                        yield Damage(offset, end - offset, key, is_tail=False)
                offset = end

    def cut(self, offset: int) -> None:
        """Take away what lies behind the offset. Raises OSError."""
        os.ftruncate(self._fd, offset)
        os.fsync(self._fd)
        self.size_bytes = offset

    def remove(self) -> None:
        """Delete the files. Raises OSError."""
        # Not the other way round: without the list the dead would be back.
        self.path.unlink(missing_ok=True)
        self._dead_path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def _take_back(self) -> None:
        try:
            os.ftruncate(self._fd, self.size_bytes)
        except OSError:
            self.is_broken = True

    def _read_dead(self) -> list[int]:
        """Read the list of the dead; a damaged place costs the one deletion that it touches."""
        try:
            data = self._dead_path.read_bytes()
        except FileNotFoundError:
            return []
        whole = data[: len(data) // _DEAD.size * _DEAD.size]
        # A damaged one stays, as an offset where no row begins, so that places keep their count.
        return [
            offset if checksum == _checksum_of(offset) else -1
            for offset, checksum in _DEAD.iter_unpack(whole)
        ]

    def _next_head(self, file: BinaryIO, offset: int) -> int | None:
        while offset < self.size_bytes:
            file.seek(offset)
            at = file.read(_SEARCH_BYTES + len(MARKER) - 1).find(MARKER)
            if at < 0:
                offset += _SEARCH_BYTES
            elif _head_at(file, offset + at) is not None:
                return offset + at
            else:
                offset += at + 1
        return None


def _head_of(value: Value) -> bytes:
    key = value.key.encode()
    head = _HEAD.pack(MARKER, len(key), len(value.data), value.crc32c)
    return head + _CHECKSUM.pack(crc32c(key, crc32c(head))) + key


def _head_at(file: BinaryIO, offset: int) -> tuple[str, int, int, int] | None:
    """Read a head: key, bytes of the value, its checksum and where it begins; None if it is none.

    The file then stands at the value.
    """
    file.seek(offset)
    head, checksum = file.read(_HEAD.size), file.read(_CHECKSUM.size)
    if not head.startswith(MARKER) or len(checksum) < _CHECKSUM.size:
        return None
    _, key_bytes, value_bytes, value_checksum = _HEAD.unpack(head)
    if key_bytes > MAX_KEY_BYTES or value_bytes > MAX_CALL_BYTES:
        return None
    key = file.read(key_bytes)
    if len(key) < key_bytes or _CHECKSUM.pack(crc32c(key, crc32c(head))) != checksum:
        return None
    begin = offset + _HEAD.size + _CHECKSUM.size + key_bytes
    return key.decode(), value_bytes, value_checksum, begin


def _checksum_of(offset: int) -> int:
    return crc32c(offset.to_bytes(8, "little"))


def _write_all(fd: int, pieces: Sequence[bytes], offset: int) -> None:
    for begin in range(0, len(pieces), _MOST_PIECES):
        some = pieces[begin : begin + _MOST_PIECES]
        size = sum(map(len, some))
        written = os.pwritev(fd, some, offset)
        while written < size:
            written += os.pwrite(fd, b"".join(some)[written:], offset + written)
        offset += size
