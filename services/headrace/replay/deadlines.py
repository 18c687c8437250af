"""When leases run out, by this process's monotonic clock.

Not part of the ledger: after a restart every lease gets one full period to report back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.replay.group import Group


class LeaseDeadlines:
    """The deadline of each current lease."""

    def __init__(self, *, clock: Callable[[], float], lease_s: float) -> None:
        self._clock = clock
        self.lease_s = lease_s
        self._deadlines: dict[tuple[str, int], float] = {}

    def extend(self, group: Group) -> None:
        """Give the group's current lease a full period from now."""
        self._deadlines[group.uid, group.attempt] = self._clock() + self.lease_s

    def expired(self, running: Iterable[Group]) -> list[str]:
        """Name the RUNNING groups whose lease has run out; forget leases that are over."""
        now = self._clock()
        current = {
            (group.uid, group.attempt): self._deadlines.get(
                (group.uid, group.attempt), now + self.lease_s
            )
            for group in running
        }
        self._deadlines = current
        return [uid for (uid, _), deadline in current.items() if deadline <= now]
