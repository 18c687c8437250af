"""Keeps all processes of a run alive until the run is over, and then ends them in order.

Knows neither what the processes are for nor what is shown of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from headrace.cli.addresses import Addresses
from headrace.cli.ending import Ending
from headrace.cli.keeper import AskStanding, Keeper, Part
from headrace.cli.launcher import Child
from headrace.cli.standing import Standing
from headrace.config.services import LauncherConfig


async def nobody_knows() -> Standing | None:
    """Stand in for a ledger that does not answer."""
    return None


class Supervisor:
    """The processes of a run.

    Args:
        parts: The processes. Each is started once the addresses it needs are known.
        settings: Restarts and time limits.
        report: Takes lines for people.
        standing: Asks where the run stands, when somebody died or went home.
        now: Seconds of a monotonic clock.

    Attributes:
        addresses: Where the processes listen.

    """

    def __init__(
        self,
        parts: Sequence[Part],
        settings: LauncherConfig,
        *,
        report: Callable[[str], None],
        standing: AskStanding = nobody_knows,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.addresses = Addresses()
        self._settings = settings
        self._keepers = {
            part.name: Keeper(part, settings, now=now, report=report, standing=standing)
            for part in parts
        }
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._over: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Start everything, in the order of the addresses that are needed."""
        for name, keeper in self._keepers.items():
            self._tasks[name] = asyncio.create_task(self._keep(keeper), name=f"keep {name}")

    async def over(self) -> Ending:
        """Wait until the run is over, by whatever reason comes first."""
        return await asyncio.shield(self._over)

    def end(self, ending: Ending) -> None:
        """Say that the run is over. Only the first reason counts."""
        if not self._over.done():
            self._over.set_result(ending)

    @property
    def names(self) -> list[str]:
        """The processes, in the order they were given."""
        return list(self._keepers)

    @property
    def kept(self) -> frozenset[str]:
        """The processes that should be alive."""
        return frozenset(
            name
            for name, task in self._tasks.items()
            if not task.done() and not self._keepers[name].at_home
        )

    @property
    def restarts(self) -> dict[str, int]:
        """How often each process was started again; only those that were."""
        return {name: keeper.restarts for name, keeper in self._keepers.items() if keeper.restarts}

    @property
    def deaths(self) -> dict[str, str]:
        """How each of those died last, in words."""
        return {name: self._keepers[name].last_death for name in self.restarts}

    def life(self, name: str) -> Child | None:
        """Give the current or last life of a process; None before the first."""
        return self._keepers[name].child

    def log_warnings(self) -> list[str]:
        """Give the warnings that the processes have logged since the last call."""
        return [
            f"{name}: {line}"
            for name, keeper in self._keepers.items()
            if keeper.child is not None
            for line in keeper.child.log.new_warnings()
        ]

    def call_back(self) -> None:
        """Start those again that went home: the run goes on."""
        for keeper in self._keepers.values():
            keeper.call_back()

    async def stop(self, names: Iterable[str], *, saving: bool = False) -> None:
        """End these processes for good, together; those that do not go in time are killed.

        Args:
            names: The processes.
            saving: Whether they get the time to save what they do.

        """
        names = list(names)
        await asyncio.gather(*(self._stop(self._keepers[name], saving) for name in names))
        for name in names:
            if name in self._tasks:
                await self._tasks[name]

    def kill(self) -> None:
        """End all processes for good, at once."""
        for keeper in self._keepers.values():
            keeper.kill()

    async def _stop(self, keeper: Keeper, saving: bool) -> None:
        await keeper.stop(self._settings.stop_grace_s + (keeper.part.saving_s if saving else 0.0))

    async def _keep(self, keeper: Keeper) -> None:
        try:
            ending = await keeper.keep(self.addresses)
        except Exception as error:
            if not self._over.done():
                self._over.set_exception(error)
            return
        if ending is not None:
            self.end(ending)
