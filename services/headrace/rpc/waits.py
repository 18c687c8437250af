"""What a process waits for: every wait has a name, an owner and a limit.

Knows nothing of what is waited for. A wait past its limit is a stall, and stalls are
reported, never silent. May be used from several threads.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.v1 import status_pb2


@dataclass(eq=False)
class Waiting:
    """A wait under way. Times are seconds of the clock of `Waits`.

    Only `ends_when` may be changed from outside.
    """

    name: str
    owner: str
    ends_when: str
    stall_after_s: float
    begun: float
    next_report: float

    def message(self, now: float) -> status_pb2.Wait:
        """Return the wait as it is at the time `now`."""
        elapsed_s = now - self.begun
        return status_pb2.Wait(
            name=self.name,
            owner=self.owner,
            ends_when=self.ends_when,
            elapsed_s=elapsed_s,
            stall_after_s=self.stall_after_s,
            stalled=elapsed_s > self.stall_after_s,
        )


class Waits:
    """The waits of one process.

    Args:
        now: Seconds of a monotonic clock.
        stall_after_s: The limit of a wait that names none.

    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic, stall_after_s: float) -> None:
        self._now = now
        self._stall_after_s = stall_after_s
        self._lock = threading.Lock()
        self._running: dict[int, Waiting] = {}
        self._ended_s: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def waiting(
        self, name: str, *, owner: str, ends_when: str = "", stall_after_s: float | None = None
    ) -> Iterator[Waiting]:
        """Be in a wait for as long as the block runs, and change what would end it meanwhile.

        Args:
            name: What is waited for, in words; times are summed up by it.
            owner: The process or part that can end the wait.
            ends_when: What would end it, in words.
            stall_after_s: Seconds after which it is a stall; None = the process's limit.

        """
        limit_s = self._stall_after_s if stall_after_s is None else stall_after_s
        begun = self._now()
        wait = Waiting(name, owner, ends_when, limit_s, begun, begun + limit_s)
        with self._lock:
            self._running[id(wait)] = wait
        try:
            yield wait
        finally:
            with self._lock:
                del self._running[id(wait)]
                self._ended_s[name] += self._now() - begun

    def snapshot(self) -> list[status_pb2.Wait]:
        """Return the waits under way, the longest first."""
        with self._lock:
            now = self._now()
            running = sorted(self._running.values(), key=lambda wait: wait.begun)
        return [wait.message(now) for wait in running]

    @property
    def stalled(self) -> list[status_pb2.Wait]:
        """The waits past their limit, the longest first."""
        return [wait for wait in self.snapshot() if wait.stalled]

    @property
    def waited_s(self) -> dict[str, float]:
        """Seconds waited so far by name, waits under way included."""
        with self._lock:
            now = self._now()
            totals = defaultdict(float, self._ended_s)
            for wait in self._running.values():
                totals[wait.name] += now - wait.begun
        return dict(totals)

    def due_reports(self) -> list[status_pb2.Wait]:
        """Return the stalls to be reported now.

        A wait comes once when it becomes a stall, then each time its limit has passed again.
        """
        with self._lock:
            now = self._now()
            due = [wait for wait in self._running.values() if now > wait.next_report]
            for wait in due:
                wait.next_report = now + wait.stall_after_s
        return [wait.message(now) for wait in due]
