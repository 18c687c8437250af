"""The journal as one append-only file.

    journal/events.log    magic, then per record: length, CRC32C (little endian, 4 bytes each), bytes
    journal/epoch         the newest writer's epoch, decimal
    journal/lock          locked while epoch and log are read together or written together

A torn tail - an append that a crash cut short - was never acknowledged: it is cut off at opening
and reported. An unreadable record before the tail is damage, and refused.
"""

from __future__ import annotations

import fcntl
import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from crc32c import crc32c

from headrace.errors import UsageError, WriterFencedError
from headrace.replay.journal.base import JournalDamagedError
from headrace.v1 import journal_pb2

MAGIC = b"headrace-journal-1\n"
_HEADER = struct.Struct("<II")


class FileJournal:
    """A journal in a directory of a local file system. See the module for its files."""

    def __init__(self, directory: Path, *, fsync: bool, writable: bool = True) -> None:
        """Open, or create, and take the writer's epoch (unless only reading).

        Raises:
            UsageError: the directory cannot be used.
            JournalDamagedError: a record before the tail is unreadable.

        """
        self._directory = directory
        self._fsync = fsync
        self._offsets = array("Q")
        """Where each record begins; position p is entry p - 1."""
        self.torn_bytes = 0
        self.writer_epoch = 0
        try:
            if writable:
                directory.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
            self._lock = os.open(directory / "lock", flags, 0o644)
            self._log = os.open(directory / "events.log", flags, 0o644)
        except OSError as error:
            msg = f"the journal in {directory} cannot be opened: {error.strerror}"
            raise UsageError(msg) from error
        with self._locked():
            if writable:
                self._take_epoch()
            self._end = self._scan(cut=writable)

    @property
    def first_position(self) -> int:
        """The first position that is still there."""
        return 1

    @property
    def position(self) -> int:
        """The last record's position; 0 if there is none."""
        return len(self._offsets)

    # -- writing -------------------------------------------------------------------------------

    def append(self, records: Sequence[journal_pb2.JournalRecord]) -> None:
        """Write records, one write for all, and return when they are durable."""
        chunks: list[bytes] = []
        offsets = array("Q")
        end = self._end
        for record in records:
            record.writer_epoch = self.writer_epoch
            body = record.SerializeToString()
            offsets.append(end)
            chunks += [_HEADER.pack(len(body), crc32c(body)), body]
            end += _HEADER.size + len(body)
        with self._locked():
            self._check_epoch()
            _write_all(self._log, b"".join(chunks), self._end)
            if self._fsync:
                os.fdatasync(self._log)
        self._end = end
        self._offsets.extend(offsets)

    def _take_epoch(self) -> None:
        self.writer_epoch = self._read_epoch() + 1
        temporary = self._directory / "epoch.tmp"
        with temporary.open("w") as file:
            file.write(str(self.writer_epoch))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._directory / "epoch")
        _sync_directory(self._directory)

    def _read_epoch(self) -> int:
        try:
            return int((self._directory / "epoch").read_text())
        except FileNotFoundError:
            return 0
        except ValueError as error:
            msg = f"{self._directory / 'epoch'} does not hold a number"
            raise JournalDamagedError(msg) from error

    def _check_epoch(self) -> None:
        newest = self._read_epoch()
        if newest != self.writer_epoch:
            raise WriterFencedError(
                f"replay buffer with epoch {newest} owns this run; this one has {self.writer_epoch}"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    # -- reading -------------------------------------------------------------------------------

    def replay(self, after_position: int = 0) -> Iterator[journal_pb2.JournalRecord]:
        """Read the durable records after a position, in order."""
        position = after_position
        while position < len(self._offsets):
            yield self._record_at(self._offsets[position])
            position += 1

    def read(self, positions: Sequence[int]) -> list[journal_pb2.JournalRecord]:
        """Read single durable records, in the order asked for."""
        return [self._record_at(self._offsets[position - 1]) for position in positions]

    def close(self) -> None:
        """Let go of the files."""
        os.close(self._log)
        os.close(self._lock)

    def _record_at(self, offset: int) -> journal_pb2.JournalRecord:
        length, checksum = _HEADER.unpack(os.pread(self._log, _HEADER.size, offset))
        body = os.pread(self._log, length, offset + _HEADER.size)
        if len(body) != length or crc32c(body) != checksum:
            msg = f"the journal in {self._directory} is damaged at byte {offset}"
            raise JournalDamagedError(msg)
        return journal_pb2.JournalRecord.FromString(body)

    def _scan(self, *, cut: bool) -> int:
        """Find every record; cut a torn tail. Returns where the next record goes."""
        size = os.fstat(self._log).st_size
        head = os.pread(self._log, len(MAGIC), 0)
        if len(head) < len(MAGIC) and MAGIC.startswith(head):
            if cut:
                _write_all(self._log, MAGIC, 0)
                os.fsync(self._log)
                _sync_directory(self._directory)
            return len(MAGIC)
        if head != MAGIC:
            msg = f"{self._directory / 'events.log'} is not a headrace journal of version 1"
            raise JournalDamagedError(msg)
        offset = len(MAGIC)
        while offset < size:
            end = self._end_of_record(offset, size)
            if end is None:
                self.torn_bytes = size - offset
                if cut:
                    os.ftruncate(self._log, offset)
                    os.fsync(self._log)
                break
            self._offsets.append(offset)
            offset = end
        return offset

    def _end_of_record(self, offset: int, size: int) -> int | None:
        """Where a whole record ends; None for a torn tail.

        Raises:
            JournalDamagedError: the record is bad and is not the last.

        """
        header = os.pread(self._log, _HEADER.size, offset)
        if len(header) < _HEADER.size:
            return None
        length, checksum = _HEADER.unpack(header)
        end = offset + _HEADER.size + int(length)
        if end > size:
            return None
        if crc32c(os.pread(self._log, length, offset + _HEADER.size)) == checksum:
            return end
        if end == size:
            return None
        msg = (
            f"{self._directory / 'events.log'} is damaged at byte {offset}, before its tail: "
            "restore the file, or start a new run"
        )
        raise JournalDamagedError(msg)


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
