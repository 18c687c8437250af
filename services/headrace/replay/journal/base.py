"""What a journal is: append and replay, behind a fence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from headrace.errors import HeadraceError
from headrace.v1 import journal_pb2

JOURNAL_AWAY: Final = "journal"
"""The name of the wait for a journal that is away."""


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

    base: journal_pb2.LedgerBase | None
    """The newest base; a restart replays only what comes after it."""

    def append(self, records: Sequence[journal_pb2.JournalRecord]) -> None:
        """Write records and return when they are durable. Blocks; one call at a time.

        Raises:
            WriterFencedError: a newer writer has the run. Nothing was written.
            OSError: the disk refused. What was written is unknown.

        """

    def write_base(self, base: journal_pb2.LedgerBase) -> None:
        """Keep the ledger as it was at a durable position. May run beside `append`.

        Raises:
            WriterFencedError, OSError: as `append`.

        """

    def trim(self, before_position: int) -> None:
        """Let events go that are in the base and lie before the position, or some of them."""

    def replay(self, after_position: int = 0) -> Iterator[journal_pb2.JournalRecord]:
        """Read the durable records after a position, in order. May run beside `append`."""

    def read(self, positions: Sequence[int]) -> list[journal_pb2.JournalRecord]:
        """Read single durable records, in the order asked for; trimmed ones are left out."""

    def close(self) -> None:
        """Let go of the files."""
