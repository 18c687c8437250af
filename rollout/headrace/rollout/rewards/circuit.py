"""Holds calls back from a service that does not answer.

    closed ──k failures in a row──► open ──its pause is over──► half open: one probe
      ▲                              ▲                               │
      │                              └────────── failure ────────────┤
      └──────────────────────────────────────────────── success ─────┘

While it is open, or the service has asked for time, calls wait, and the wait has a name. Each
probe that fails makes the pause longer. Knows nothing of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from headrace.rollout.changes import Changes
from headrace.rpc.waits import Waiting, Waits

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


class Circuit:
    """Lets calls to one service pass, or waits.

    Args:
        name: Of the wait.
        owner: The service.
        open_after: Failures in a row.
        waits: Where the wait is registered.
        now: Seconds of a monotonic clock.
        sleep: How time passes.
        jitter: Uniform in [0, 1).

    """

    def __init__(
        self,
        name: str,
        *,
        owner: str,
        open_after: int,
        waits: Waits,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        jitter: Callable[[], float],
    ) -> None:
        self._name = name
        self._owner = owner
        self._open_after = open_after
        self._waits = waits
        self._now = now
        self._sleep = sleep
        self._jitter = jitter
        self._changes = Changes()
        self._callers = 0
        self._failures = 0
        self._openings = 0
        """How often it was opened, so that a failure of a call made before can be told."""
        self._probing = False
        self._bound_s = FIRST_PAUSE_S
        self._open_until = 0.0
        """No probe before."""
        self._held_until = 0.0
        """Nobody passes before: the service's wish."""
        self._last = ""
        self._named = ExitStack()
        self._wait: Waiting | None = None

    @property
    def is_open(self) -> bool:
        """Whether only probes pass."""
        return self._failures >= self._open_after

    @property
    def _left_s(self) -> float:
        return max(self._open_until, self._held_until) - self._now()

    @contextmanager
    def caller(self) -> Iterator[None]:
        """Be somebody who calls until there is an answer; the wait lasts while there are such."""
        self._callers += 1
        try:
            yield
        finally:
            self._callers -= 1
            self._name_wait()

    async def enter(self) -> int:
        """Wait until a call may be made, and return its number, for `fail`."""
        self._name_wait()
        while True:
            left_s = self._left_s
            if self.is_open and self._probing:
                await self._changes.wait()
            elif left_s > 0:
                await self._first(self._changes.wait(), self._sleep(left_s))
            else:
                self._probing = self.is_open
                return self._openings

    def leave(self) -> None:
        """Make no call after all."""
        self._probing = False
        self._changes.notify()

    def succeed(self) -> None:
        """Note that a call was answered."""
        self._failures = 0
        self._bound_s = FIRST_PAUSE_S
        self._probing = False
        self._open_until = 0.0
        self._name_wait()
        self._changes.notify()

    def fail(self, number: int, why: str, *, hold_s: float = 0.0) -> None:
        """Note that a call was not answered.

        Args:
            number: What `enter` returned.
            why: In one line.
            hold_s: How long the service wants to be left alone.

        """
        self._last = why
        if hold_s > 0:
            self._held_until = max(self._held_until, self._now() + hold_s)
        if number == self._openings:  # else it belongs to the failures that it was opened for
            self._failures += 1
            self._probing = False
            if self.is_open:
                self._openings += 1
                pause_s = self._bound_s * (0.5 + 0.5 * self._jitter())
                self._open_until = self._now() + pause_s
                self._bound_s = min(2 * self._bound_s, LONGEST_PAUSE_S)
        self._name_wait()
        self._changes.notify()

    def _name_wait(self) -> None:
        """Have a wait while somebody is held back."""
        if not self._callers or not (self.is_open or self._left_s > 0):
            self._named.close()
            self._wait = None
            return
        if self._wait is None:
            self._wait = self._named.enter_context(
                self._waits.waiting(self._name, owner=self._owner)
            )
        self._wait.ends_when = f"a probe is answered; last: {self._last}"

    async def _first(self, *waits: Awaitable[object]) -> None:
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
