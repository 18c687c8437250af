"""Keeps one process of a run alive.

    waiting for the addresses it needs ──► starting ──► announced ──► gone
                                              ▲                        │
                                              └──── after a pause ◄────┘

A process that died is started again on the same ports, so that nobody has to be told. How
often is bounded; then the run is over. Knows nothing of gRPC and of the other processes
but their addresses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.cli.addresses import Addresses
from headrace.cli.ending import DONE, NOT_KEPT_ALIVE, TRAINER_DIED, USAGE, Ending, exit_in_words
from headrace.cli.launcher import Child, Command
from headrace.config.services import LauncherConfig

FIRST_PAUSE_S: Final = 0.1
"""How long a process that died for the first time stays away."""
LONGEST_PAUSE_S: Final = 5.0
"""How long it stays away at most; each death doubles it."""
QUOTED_LINES: Final = 8
"""Lines of its log that are shown when a process ends the run."""


class Ports(NamedTuple):
    """Where a process is to listen; 0 = on a free port."""

    calls: int = 0
    metrics: int = 0


@dataclass(frozen=True)
class Part:
    """A process that belongs to a run."""

    name: str
    """Its name, such as `worker-0`."""
    command: Callable[[Mapping[str, str], Ports], Command]
    """Makes the command from the addresses known by process name, and the ports to use."""
    needs: tuple[str, ...] = ()
    """The processes whose addresses have to be known before it can start."""
    is_main: bool = False
    """The run is over when this one ends, well or not. It is never started again."""
    may_leave: bool = False
    """An exit code of 0 means that it was sent home, not that it died."""


class RestartBudget:
    """How often a process may still be started again. Times are seconds of one clock."""

    def __init__(self, settings: LauncherConfig) -> None:
        self._most = settings.max_restarts
        self._window_s = settings.restart_window_s
        self._times: deque[float] = deque()

    def spend(self, now: float) -> float | None:
        """Take one restart; give the pause before it in seconds, None if none is left."""
        while self._times and now - self._times[0] > self._window_s:
            self._times.popleft()
        if len(self._times) >= self._most:
            return None
        self._times.append(now)
        return min(LONGEST_PAUSE_S, float(FIRST_PAUSE_S * 2 ** (len(self._times) - 1)))


class Keeper:
    """The lives of one process.

    Args:
        part: The process.
        settings: Restarts and time limits.
        now: Seconds of a monotonic clock.
        report: Takes a line for people when the process died or stopped announcing itself.

    Attributes:
        restarts: How often it was started again.
        child: Its current or last life.

    """

    def __init__(
        self,
        part: Part,
        settings: LauncherConfig,
        *,
        now: Callable[[], float],
        report: Callable[[str], None],
    ) -> None:
        self.part = part
        self.restarts = 0
        self.child: Child | None = None
        self._settings = settings
        self._budget = RestartBudget(settings)
        self._now = now
        self._report = report
        self._leaving = asyncio.Event()
        self._ports = Ports()

    async def keep(self, addresses: Addresses) -> Ending | None:
        """Start it, and start it again; give the run's end if it is the reason for one."""
        await _first(addresses.known(self.part.needs), self._leaving.wait())
        while not self._leaving.is_set():
            self.child = await Child.start(self.part.command(addresses.all, self._ports))
            died = await self._live(self.child, addresses)
            if self._leaving.is_set():
                return None
            ending, pause_s = self._judge(self.child, died)
            if pause_s is None:
                return ending
            self.restarts += 1
            self._report(f"{self.part.name} {died}; started again after {pause_s:g} s")
            await _first(asyncio.sleep(pause_s), self._leaving.wait())
        return None

    async def stop(self, grace_s: float) -> None:
        """End it for good: SIGTERM, and after `grace_s` seconds SIGKILL."""
        self._leaving.set()
        if self.child is not None:
            await self.child.stop(grace_s)

    def kill(self) -> None:
        """End it for good, at once."""
        self._leaving.set()
        if self.child is not None:
            self.child.kill()

    async def _live(self, child: Child, addresses: Addresses) -> str:
        """See a child through its life; say in words how it ended."""
        limit_s = self._settings.start_timeout_s
        ended = asyncio.ensure_future(child.ended())
        announced = asyncio.ensure_future(child.announced())
        if self._leaving.is_set():  # asked to stop while it was being started
            child.kill()
        await asyncio.wait((ended, announced), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if announced.done():
            listens = announced.result()
            self._ports = Ports(_port(listens.address), _port(listens.metrics))
            addresses.announce(self.part.name, listens.address)
        elif ended.done():
            announced.cancel()
        else:
            announced.cancel()
            child.kill()
            await ended
            return f"did not announce its address within {limit_s:g} s"
        return f"died ({exit_in_words(await ended)})"

    def _judge(self, child: Child, died: str) -> tuple[Ending | None, float | None]:
        """Decide what follows from a death: the run's end, or a pause and another life."""
        name, code = self.part.name, child.exit_code
        lines = tuple(child.log.last_lines(QUOTED_LINES))
        if code == USAGE and self.restarts == 0:
            # Trying again would not help. In a later life it may: the port is taken for a moment.
            errors = tuple(child.log.errors())
            return Ending(USAGE, errors or (f"{name} {died}",), () if errors else lines), None
        if self.part.is_main:
            done = code == DONE
            return (
                Ending(DONE) if done else Ending(TRAINER_DIED, (f"{name} {died}",), lines)
            ), None
        if self.part.may_leave and code == DONE:
            self._report(f"{name} went home")
            return None, None
        pause_s = self._budget.spend(self._now())
        if pause_s is None:
            most, window_s = self._settings.max_restarts, self._settings.restart_window_s
            why = f"{name} {died}, and launcher.max_restarts = {most} within {window_s:g} s are used up"
            return Ending(NOT_KEPT_ALIVE, (why,), lines), None
        return None, pause_s


def _port(address: str) -> int:
    """Give the port of `host:port`; 0 of nothing."""
    return int(address.rpartition(":")[2] or 0)


async def _first(*waits: Coroutine[object, object, object]) -> None:
    """Wait for the first of several things; give up on the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
