"""One file of the journal: consecutive records, found by position.

    magic, then per record: length, CRC32C (little endian, 4 bytes each), bytes

A torn tail - an append that a crash cut short - was never acknowledged: in the last segment it is
cut off. An unreadable record anywhere else is damage, and refused.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from headrace.replay.journal.base import JournalDamagedError
from headrace.v1 import journal_pb2

MAGIC = b"headrace-journal-1\n"
_HEADER = struct.Struct("<II")


def segment_path(directory: Path, first_position: int) -> Path:
    """Name the segment that begins with this position."""
    return directory / f"events-{first_position:016d}.log"


class Segment:
    """A file of consecutive records, the first of them at `first_position`."""

    def __init__(self, directory: Path, first_position: int, *, writable: bool) -> None:
        self.first_position = first_position
        self.path = segment_path(directory, first_position)
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        self._fd = os.open(self.path, flags, 0o644)
        self._offsets: array[int] | None = None
        self._end = 0

    def __len__(self) -> int:
        return len(self._index())

    def create(self) -> None:
        """Begin the file, durably."""
        _write_all(self._fd, MAGIC, 0)
        os.fsync(self._fd)
        sync_directory(self.path.parent)
        self._offsets, self._end = array("Q"), len(MAGIC)

    def append(self, records: Sequence[journal_pb2.JournalRecord], *, fsync: bool) -> None:
        """Write records in one go. Raises OSError."""
        index = self._index()
        chunks: list[bytes] = []
        offsets = array("Q")
        end = self._end
        for record in records:
            body = record.SerializeToString()
            offsets.append(end)
            chunks += [_HEADER.pack(len(body), crc32c(body)), body]
            end += _HEADER.size + len(body)
        _write_all(self._fd, b"".join(chunks), self._end)
        if fsync:
            os.fdatasync(self._fd)
        self._end = end
        index.extend(offsets)

    def read(self, position: int) -> journal_pb2.JournalRecord:
        """Read one record.

        Raises:
            JournalDamagedError: its bytes are not what was written.

        """
        offset = self._index()[position - self.first_position]
        length, checksum = _HEADER.unpack(os.pread(self._fd, _HEADER.size, offset))
        body = os.pread(self._fd, length, offset + _HEADER.size)
        if len(body) != length or crc32c(body) != checksum:
            raise self._damaged(offset)
        return journal_pb2.JournalRecord.FromString(body)

    def scan(self, *, last: bool, cut: bool) -> int:
        """Find every record; of the last segment, cut a torn tail (if `cut`) and count its bytes.

        Raises:
            JournalDamagedError: a record that is not the tail is unreadable.

        """
        size = os.fstat(self._fd).st_size
        head = os.pread(self._fd, len(MAGIC), 0)
        if last and len(head) < len(MAGIC) and MAGIC.startswith(head):
            self._offsets, self._end = array("Q"), len(MAGIC)
            if cut:
                self.create()
            return len(head)
        if head != MAGIC:
            msg = f"{self.path} is not a headrace journal of version 1"
            raise JournalDamagedError(msg)
        self._offsets, offset = array("Q"), len(MAGIC)
        while offset < size:
            end = self._end_of_record(offset, size)
            if end is None:
                break
            self._offsets.append(offset)
            offset = end
        self._end = offset
        if offset < size:
            if not last:
                raise self._damaged(offset)
            if cut:
                os.ftruncate(self._fd, offset)
                os.fsync(self._fd)
        return size - offset

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def _index(self) -> array[int]:
        """Where each record begins; a closed segment is scanned when it is first wanted."""
        if self._offsets is None:
            self.scan(last=False, cut=False)
        assert self._offsets is not None
        return self._offsets

    def _end_of_record(self, offset: int, size: int) -> int | None:
        """Where a whole record ends; None for a torn tail."""
        header = os.pread(self._fd, _HEADER.size, offset)
        if len(header) < _HEADER.size:
            return None
        length, checksum = _HEADER.unpack(header)
        if not length:
            # No record is empty. A power loss can leave zeros where an append was under way.
            if any(os.pread(self._fd, size - offset, offset)):
                raise self._damaged(offset)
            return None
        end = offset + _HEADER.size + int(length)
        if end > size:
            if self._has_record_behind(offset, size):
                raise self._damaged(offset)
            return None
        if crc32c(os.pread(self._fd, length, offset + _HEADER.size)) == checksum:
            return end
        if end == size:
            return None
        raise self._damaged(offset)

    def _has_record_behind(self, offset: int, size: int) -> bool:
        """Whether a whole record begins further on: then it was a length that took damage."""
        data = os.pread(self._fd, size - offset, offset)
        for start in range(1, len(data) - _HEADER.size):
            length, checksum = _HEADER.unpack_from(data, start)
            first, end = start + _HEADER.size, start + _HEADER.size + length
            if length and end <= len(data) and crc32c(data[first:end]) == checksum:
                return True
        return False

    def _damaged(self, offset: int) -> JournalDamagedError:
        return JournalDamagedError(
            f"{self.path} is damaged at byte {offset}, before its tail: {mend(self.path)}"
        )


def mend(path: Path) -> str:
    """Say what to do about a damaged file of the journal."""
    return (
        f"restore the file; or move {path.parent} away, and the run goes on from its newest "
        "checkpoint, if it has one"
    )


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def sync_directory(directory: Path) -> None:
    """Make names in the directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
