"""What a journal is: append and replay, behind a fence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.v1 import journal_pb2


class JournalDamagedError(HeadraceError):
    """A record before the last is unreadable: nothing may be built on what follows."""


class Journal(Protocol):
    """An append-only sequence of records with one writer at a time.

    Opening a journal takes the run's writer epoch; whoever had it before can append no more.
    """

    @property
    def writer_epoch(self) -> int:
        """The number of this writer; never goes down."""

    @property
    def torn_bytes(self) -> int:
        """Bytes of an unfinished append that were cut off at opening."""

    @property
    def first_position(self) -> int:
        """The first position that is still there; older events were compacted away."""

    @property
    def position(self) -> int:
        """The last durable position; 0 if there is none."""

    def append(self, records: Sequence[journal_pb2.JournalRecord]) -> None:
        """Write records and return when they are durable. Blocks; one call at a time.

        Raises:
            WriterFencedError: a newer writer has the run. Nothing was written.
            OSError: the disk refused. What was written is unknown.

        """

    def replay(self, after_position: int = 0) -> Iterator[journal_pb2.JournalRecord]:
        """Read the durable records after a position, in order. May run beside `append`."""

    def read(self, positions: Sequence[int]) -> list[journal_pb2.JournalRecord]:
        """Read single durable records, in the order asked for."""

    def close(self) -> None:
        """Let go of the files."""
