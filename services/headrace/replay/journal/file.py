"""The journal as files in a directory.

events-{first position}.log   segments of records (segment.py)
base-{position}.pb            the ledger at that position; restarts begin with the newest
epoch                         the newest writer's epoch, decimal
lock                          locked while the epoch is checked and something is written
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from crc32c import crc32c

from headrace.errors import UsageError, WriterFencedError
from headrace.replay.journal.base import JournalDamagedError
from headrace.replay.journal.segment import Segment, mend, sync_directory
from headrace.v1 import journal_pb2

BASE_MAGIC = b"headrace-base-1\n"
_CHECKSUM = struct.Struct("<I")


class FileJournal:
    """A journal in a directory of a local file system. See the module for its files."""

    def __init__(
        self,
        directory: Path,
        *,
        fsync: bool,
        writable: bool = True,
        segment_events: int = 50_000,
    ) -> None:
        """Open, or create, and take the writer's epoch (unless only reading).

        Raises:
            UsageError: the directory cannot be used.
            JournalDamagedError: a record before the tail is unreadable, or files are missing.

        """
        self._directory = directory
        self._fsync = fsync
        self._segment_events = segment_events
        self._turn = threading.Lock()
        """Held with the file's lock, which all threads of a process share: it knows no threads."""
        self._table = threading.Lock()
        """Held while segments are looked up and read, or come and go."""
        self.torn_bytes = 0
        self.writer_epoch = 0
        self._epoch_fd: int | None = None
        """The epoch as this writer wrote it. While it is open, no other file has its identity."""
        self._epoch_identity = (0, 0)
        try:
            if writable:
                directory.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
            self._lock = os.open(directory / "lock", flags, 0o644)
        except OSError as error:
            msg = f"the journal in {directory} cannot be opened: {error.strerror}"
            raise UsageError(msg) from error
        with self._locked():
            if writable:
                self._take_epoch()
            self.base = self._newest_base()
            self._segments = self._open_segments(writable=writable)

    @property
    def first_position(self) -> int:
        """The first position that is still there."""
        return self._segments[0].first_position

    @property
    def position(self) -> int:
        """The last durable position; 0 if there is none."""
        last = self._segments[-1]
        return last.first_position + len(last) - 1

    # -- writing -------------------------------------------------------------------------------

    def append(self, records: Sequence[journal_pb2.JournalRecord]) -> None:
        """Write records, one write for all, and return when they are durable."""
        for record in records:
            record.writer_epoch = self.writer_epoch
        with self._fenced():
            if len(self._segments[-1]) >= self._segment_events:
                self._roll()
            self._segments[-1].append(records, fsync=self._fsync)

    def write_base(self, base: journal_pb2.LedgerBase) -> None:
        """Keep the ledger as it was at a position; older bases go."""
        body = base.SerializeToString()
        path = self._directory / f"base-{base.position:016d}.pb"
        # By a name of this writer's own: it is written before the lock, so that appends go on.
        temporary = path.with_suffix(f".{self.writer_epoch}.tmp")
        with temporary.open("wb") as file:
            file.write(BASE_MAGIC + _CHECKSUM.pack(crc32c(body)) + body)
            file.flush()
            os.fsync(file.fileno())
        with self._fenced():
            temporary.replace(path)
            sync_directory(self._directory)
            for older in self._directory.glob("base-*.pb"):
                if older.name < path.name:
                    older.unlink()
            for unfinished in self._directory.glob("base-*.tmp"):
                unfinished.unlink()
        self.base = base

    def trim(self, before_position: int) -> None:
        """Let whole segments go whose records lie before the position and in the base."""
        before = min(before_position, self.base.position + 1 if self.base else 1)
        with self._fenced(), self._table:
            while len(self._segments) > 1 and self._segments[1].first_position <= before:
                segment = self._segments.pop(0)
                segment.close()
                segment.path.unlink()

    def _roll(self) -> None:
        segment = Segment(self._directory, self.position + 1, writable=True)
        segment.create()
        with self._table:
            self._segments.append(segment)

    def _take_epoch(self) -> None:
        self.writer_epoch = self._read_epoch() + 1
        temporary = self._directory / "epoch.tmp"
        with temporary.open("w") as file:
            file.write(str(self.writer_epoch))
            file.flush()
            os.fsync(file.fileno())
        self._epoch_fd = os.open(temporary, os.O_RDONLY)
        self._epoch_identity = _identity(os.fstat(self._epoch_fd))
        temporary.replace(self._directory / "epoch")
        sync_directory(self._directory)

    def _owns_epoch(self) -> bool:
        """Whether `epoch` is still the file that this writer put there: one call, not seven."""
        try:
            return _identity((self._directory / "epoch").stat()) == self._epoch_identity
        except FileNotFoundError:
            return False

    def _read_epoch(self) -> int:
        try:
            return int((self._directory / "epoch").read_text())
        except FileNotFoundError:
            return 0
        except ValueError as error:
            msg = f"{self._directory / 'epoch'} does not hold a number: stop the run, and remove it"
            raise JournalDamagedError(msg) from error

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        """Hold the lock as the newest writer.

        Raises:
            WriterFencedError: another writer is newer.

        """
        with self._locked():
            if not self._owns_epoch() and (newest := self._read_epoch()) != self.writer_epoch:
                raise WriterFencedError(
                    f"the replay buffer with epoch {newest} owns this run; this one has "
                    f"{self.writer_epoch}"
                )
            yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._turn:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    # -- reading -------------------------------------------------------------------------------

    def replay(self, after_position: int = 0) -> Iterator[journal_pb2.JournalRecord]:
        """Read the durable records after a position, in order."""
        for position in range(after_position + 1, self.position + 1):
            yield from self.read([position])

    def read(self, positions: Sequence[int]) -> list[journal_pb2.JournalRecord]:
        """Read single durable records, in the order asked for; trimmed ones are left out."""
        with self._table:
            return [
                segment.read(position)
                for position in positions
                for segment in self._segments
                if 0 <= position - segment.first_position < len(segment)
            ]

    def close(self) -> None:
        """Let go of the files."""
        with self._table:
            for segment in self._segments:
                segment.close()
            os.close(self._lock)
            if self._epoch_fd is not None:
                os.close(self._epoch_fd)

    def _newest_base(self) -> journal_pb2.LedgerBase | None:
        """Load the newest base.

        Raises:
            JournalDamagedError: it is unreadable.

        """
        path = max(self._directory.glob("base-*.pb"), default=None)
        if path is None:
            return None
        data = path.read_bytes()
        head, body = data[: len(BASE_MAGIC)], data[len(BASE_MAGIC) + _CHECKSUM.size :]
        checksum = data[len(BASE_MAGIC) : len(BASE_MAGIC) + _CHECKSUM.size]
        if head != BASE_MAGIC or _CHECKSUM.pack(crc32c(body)) != checksum:
            msg = f"{path} is damaged: {mend(path)}"
            raise JournalDamagedError(msg)
        return journal_pb2.LedgerBase.FromString(body)

    def _open_segments(self, *, writable: bool) -> list[Segment]:
        firsts = sorted(
            int(path.stem.removeprefix("events-")) for path in self._directory.glob("events-*.log")
        )
        if not firsts and not writable:
            msg = f"{self._directory} holds no journal: it has no events-*.log"
            raise UsageError(msg)
        segments = [Segment(self._directory, f, writable=writable) for f in firsts or [1]]
        self.torn_bytes = segments[-1].scan(last=True, cut=writable)
        next_position = self.base.position + 1 if self.base else 1
        if segments[0].first_position > next_position:
            msg = f"{self._directory}: the segment with position {next_position} is missing"
            raise JournalDamagedError(msg)
        for segment, following in pairwise(segments):
            if following.first_position <= next_position:
                continue  # A restart reads nothing of it.
            if segment.first_position + len(segment) != following.first_position:
                msg = f"{segment.path} does not reach to {following.path.name}"
                raise JournalDamagedError(msg)
        return segments


def _identity(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino
