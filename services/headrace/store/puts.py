"""Puts that wait for their turn; those that have come together are written together.

While a checkpoint is written none is taken, so they are bounded, and the longest wait is known.
Knows neither TransferQueue nor the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.errors import HeadraceError, KeyExistsError, NotReadyError
from headrace.store.catalogue import Catalogue
from headrace.store.row import Row
from headrace.trajectory.chunks import MAX_CALL_BYTES

BATCH_BYTES = 32 * 2**20
"""Most bytes of puts that are written together, unless one alone is larger."""
MAX_WAITING_BYTES = MAX_CALL_BYTES
"""Most bytes of puts that wait, unless one alone is larger."""


@dataclass(eq=False)
class Put:
    """One call's rows."""

    rows: Sequence[Row]
    since_s: float
    """When it came."""
    outcome: asyncio.Future[str] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Whether all of them are confirmed, and by which incarnation."""

    @property
    def keys(self) -> list[str]:
        """The keys, each once."""
        return list(dict.fromkeys(row.value.key for row in self.rows))

    @property
    def size_bytes(self) -> int:
        """Bytes of the values."""
        return sum(row.size_bytes for row in self.rows)

    def succeed(self, incarnation: str) -> None:
        """Say that all rows are confirmed."""
        if not self.outcome.done():
            self.outcome.set_result(incarnation)

    def fail(self, error: HeadraceError) -> None:
        """Say why they are not."""
        if not self.outcome.done():
            self.outcome.set_exception(error)
            self.outcome.exception()  # Seen, even if the caller has gone away.


class WaitingPuts:
    """Puts in the order in which they came.

    Args:
        now: Seconds of a monotonic clock.

    """

    def __init__(self, *, now: Callable[[], float]) -> None:
        self._now = now
        self._puts: list[Put] = []
        self._longest_s = 0.0

    @property
    def longest_s(self) -> float:
        """The longest that a put has waited since `measure`, or waits now."""
        return max(self._longest_s, *(self._now() - put.since_s for put in self._puts), 0.0)

    def measure(self) -> None:
        """Begin anew to look for the longest wait."""
        self._longest_s = 0.0

    def add(self, rows: Sequence[Row]) -> Put:
        """Let a put wait.

        Raises:
            NotReadyError: too many wait already.

        """
        put = Put(rows, since_s=self._now())
        waiting_bytes = sum(other.size_bytes for other in self._puts)
        if self._puts and waiting_bytes + put.size_bytes > MAX_WAITING_BYTES:
            raise NotReadyError(
                f"puts of {waiting_bytes} bytes wait for their turn already; put again"
            )
        self._puts.append(put)
        return put

    def take(self) -> list[Put]:
        """Take those that are written next: at least one, if there is one."""
        count, size_bytes = 0, 0
        for put in self._puts:
            size_bytes += put.size_bytes
            if count and size_bytes > BATCH_BYTES:
                break
            count += 1
        self._longest_s = self.longest_s
        taken, self._puts = self._puts[:count], self._puts[count:]
        return taken


def fail_unfinished(puts: Iterable[Put]) -> None:
    """Leave nobody without an answer."""
    for put in puts:
        put.fail(NotReadyError("the put was not finished; put again"))


def fresh_rows(rows: Sequence[Row], there: Catalogue, writing: Mapping[str, Row]) -> list[Row]:
    """Return the rows that are to be written: neither there, nor being written, nor named twice.

    Raises:
        KeyExistsError: a key is there, being written or named twice, with other bytes.

    """
    fresh: dict[str, Row] = {}
    for row in rows:
        key, size_bytes, checksum = row.value.key, row.size_bytes, row.value.crc32c
        entry, twin = there.find(key), fresh.get(key) or writing.get(key)
        known = None
        if twin is not None:
            known = (twin.size_bytes, twin.value.crc32c)
        elif entry is not None and entry.confirmed:
            known = (entry.size_bytes, entry.crc32c)
        if known is None:
            fresh[key] = row
        elif known != (size_bytes, checksum):
            raise KeyExistsError(f"{key} is there with other bytes", key=key)
    return list(fresh.values())
