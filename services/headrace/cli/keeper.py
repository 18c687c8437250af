"""Keeps one process of a run alive.

    waiting for the addresses it needs ──► starting ──► announced ──► gone
                                              ▲                        │
                                              ├──── after a pause ◄────┤ died
                                              └──── called back ◄──────┘ went home

A process that died is started again on the same ports, so that nobody has to be told. How
often is bounded; then the run is over. Knows nothing of gRPC and of the other processes
but their addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from headrace.cli.addresses import Addresses
from headrace.cli.death import cause_of
from headrace.cli.ending import (
    DONE,
    INTERRUPTED,
    NO_CHECKPOINT,
    NOT_KEPT_ALIVE,
    TRAINER_DIED,
    USAGE,
    Ending,
    exit_in_words,
)
from headrace.cli.launcher import Child, Command
from headrace.cli.lives import Attempts, RestartBudget
from headrace.cli.standing import Standing
from headrace.config.services import LauncherConfig

QUOTED_LINES: Final = 8
"""Lines of its log that are shown when a process ends the run."""
FINAL: Final = (NO_CHECKPOINT, TRAINER_DIED)
"""Exit codes of a trainer that cannot go on, and that would not be changed by another try."""


class Ports(NamedTuple):
    """Where a process is to listen; 0 = on a free port."""

    calls: int = 0
    metrics: int = 0


AskStanding: TypeAlias = Callable[[], Awaitable[Standing | None]]
"""Asks where the run stands; None if nobody can say."""


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
    """The run is over when this one is done, or dead for good."""
    resumes: bool = False
    """Whether a main process that died is started again, as it goes on where the run was."""
    may_leave: bool = False
    """An exit code of 0 means that it was sent home, not that it died."""
    saving_s: float = 0.0
    """How much longer than others it may take to stop when there is something to be saved."""


class _Next(NamedTuple):
    """What follows from the end of a life; neither of them: it stays away for good."""

    ending: Ending | None = None
    """The run's end."""
    pause_s: float | None = None
    """Another life after so many seconds; infinite: once it is called back."""


HOME: Final = _Next(pause_s=float("inf"))


class Keeper:
    """The lives of one process.

    Args:
        part: The process.
        settings: Restarts and time limits.
        now: Seconds of a monotonic clock.
        report: Takes a line for people when the process died or stopped announcing itself.
        standing: Asks where the run stands.

    Attributes:
        restarts: How often it was started again.
        last_death: How the life ended after which it was started again last, in words.
        child: Its current or last life.
        at_home: Whether it left in order, and comes again when it is called back.

    """

    def __init__(
        self,
        part: Part,
        settings: LauncherConfig,
        *,
        now: Callable[[], float],
        report: Callable[[str], None],
        standing: AskStanding,
    ) -> None:
        self.part = part
        self.restarts = 0
        self.last_death = ""
        self.child: Child | None = None
        self.at_home = False
        self._settings = settings
        self._budget = RestartBudget(settings)
        self._attempts = Attempts(settings)
        self._now = now
        self._report = report
        self._standing = standing
        self._leaving = asyncio.Event()
        self._called = asyncio.Event()
        self._ports = Ports()

    async def keep(self, addresses: Addresses) -> Ending | None:
        """Start it, and start it again; give the run's end if it is the reason for one."""
        try:
            return await self._keep(addresses)
        finally:
            self._withdraw()

    async def _keep(self, addresses: Addresses) -> Ending | None:
        await _first(addresses.known(self.part.needs), self._leaving.wait())
        while not self._leaving.is_set():
            self.child = await Child.start(self.part.command(addresses.all, self._ports))
            died = await self._live(self.child, addresses)
            if self._leaving.is_set():
                return None
            then = await self._judge(self.child, died)
            if self._leaving.is_set():
                return then.ending
            if then is HOME:
                await self._stay_at_home()
            elif then.pause_s is None:
                return then.ending
            else:
                self.restarts += 1
                self.last_death = died
                self._report(f"{self.part.name} {died}; started again after {then.pause_s:g} s")
                await _first(asyncio.sleep(then.pause_s), self._leaving.wait())
        return None

    def call_back(self) -> None:
        """Start it again if it is at home: there is something to do."""
        if self.at_home:
            self._called.set()

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

    def _withdraw(self) -> None:
        if self.child is not None:
            self.child.withdraw()

    async def _stay_at_home(self) -> None:
        self._withdraw()
        self._called.clear()
        self.at_home = True
        await _first(self._called.wait(), self._leaving.wait())
        self.at_home = False
        if not self._leaving.is_set():
            self._report(f"{self.part.name} is called back: the run goes on")

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
        code = await ended
        cause = cause_of(child.log) if code >= 0 else ""  # else it was killed by somebody
        return f"died ({exit_in_words(code)})" + (f": {cause}" if cause else "")

    async def _judge(self, child: Child, died: str) -> _Next:
        """Decide what follows from a death."""
        name, code = self.part.name, child.exit_code
        if code == USAGE and (self.restarts == 0 or self.part.is_main):
            # Trying again would not help. With others than the trainer it may in a later life:
            # the port is taken for a moment.
            return _Next(self._refusal(child, died, USAGE))
        if self.part.is_main:
            return await self._judge_main(child, died)
        if self.part.may_leave and code == DONE:
            self._report(f"{name} went home")
            standing = await self._standing()
            # Who was sent home while the run is on is not wanted any more.
            return HOME if standing is None or standing.ended else _Next()
        pause_s = self._budget.spend(self._now())
        if pause_s is None:
            why = f"{name} {died}, and {self._budget.in_words()}"
            return _Next(Ending(NOT_KEPT_ALIVE, (why,), _last_lines(child)))
        return _Next(pause_s=pause_s)

    async def _judge_main(self, child: Child, died: str) -> _Next:
        name, code = self.part.name, child.exit_code
        if code == DONE:
            return _Next(Ending(DONE))
        if code == INTERRUPTED:
            return _Next(Ending(INTERRUPTED, (f"somebody else told the {name} to stop",)))
        if code in FINAL:
            return _Next(self._refusal(child, died, code))
        if not self.part.resumes:
            return _Next(Ending(TRAINER_DIED, (f"{name} {died}",), _last_lines(child)))
        crashed = code is not None and code >= 0
        pause_s = self._attempts.spend(await self._standing(), crashed=crashed)
        if pause_s is None:
            why = f"{name} {died}, {self._attempts.in_words()}"
            return _Next(Ending(TRAINER_DIED, (why,), _last_lines(child)))
        return _Next(pause_s=pause_s)

    def _refusal(self, child: Child, died: str, code: int) -> Ending:
        """End the run with what the process says of it, or else with its last words."""
        errors = tuple(child.log.errors())
        reasons = errors or (f"{self.part.name} {died}",)
        return Ending(code, reasons, () if errors else _last_lines(child))


def _last_lines(child: Child) -> tuple[str, ...]:
    return tuple(child.log.last_lines(QUOTED_LINES))


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
