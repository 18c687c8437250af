"""Which rows the store has: sizes, checksums and ages.

The store's own memory of what it has put, for idempotency, room, sweep and status. Knows nothing
of TransferQueue, which may have lost what stands here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Entry:
    """One row."""

    size_bytes: int
    """Size of its value."""
    crc32c: int
    """CRC32C of its value."""
    put_at_s: float
    """When it was first put, by the store's monotonic clock."""
    confirmed: bool = False
    """Whether TransferQueue's catalogue has confirmed it. A row that is not has its room, and is
    swept like others; it is not served, and may be put again with any bytes."""


class Catalogue:
    """The rows by key, oldest first."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    @property
    def held_bytes(self) -> int:
        """Bytes of all rows, those not yet confirmed included."""
        return self._held_bytes

    def find(self, key: str) -> Entry | None:
        """Return the row of a key, confirmed or not."""
        return self._entries.get(key)

    def reserve(self, key: str, *, size_bytes: int, crc32c: int, now_s: float) -> Entry:
        """Make room for a row that is about to be put. Replaces what was under the key."""
        self.remove(key)
        entry = Entry(size_bytes=size_bytes, crc32c=crc32c, put_at_s=now_s)
        self._entries[key] = entry
        self._held_bytes += size_bytes
        return entry

    def remove(self, key: str) -> bool:
        """Forget a row. Returns whether there was one."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._held_bytes -= entry.size_bytes
        return True

    def keys_put_until(self, time_s: float) -> list[str]:
        """Return the keys of rows put at that time or before, oldest first."""
        return [key for key, entry in self._entries.items() if entry.put_at_s <= time_s]

    def confirmed(self) -> list[tuple[str, Entry]]:
        """Return the rows that are confirmed, oldest first."""
        return [(key, entry) for key, entry in self._entries.items() if entry.confirmed]

    def missing_from(self, keys: Iterable[str]) -> list[str]:
        """Return those of the keys that have no confirmed row, in their order."""
        found = ((key, self._entries.get(key)) for key in keys)
        return [key for key, entry in found if entry is None or not entry.confirmed]
