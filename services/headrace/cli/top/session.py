"""`headrace top` as long as it runs: asks everybody, draws, listens to the keyboard."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Final

import grpc
from rich.console import Console
from rich.live import Live

from headrace.cli.addresses import Addresses
from headrace.cli.places import REPLAY, Places
from headrace.cli.top.dialog import END, Dialog, Mode
from headrace.cli.top.screen import Shown, Where, screen, table
from headrace.cli.top.terminal import keyboard
from headrace.cli.view import SERVICES, View
from headrace.cli.watcher import Watcher
from headrace.errors import HeadraceError, UsageError

LOOK_EVERY_S: Final = 1.0
"""How often addresses, and the prompt that is looked at, are asked for."""
LEAVE: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DRAW_EVERY_S: Final = 0.5
"""How often the screen is drawn while nothing is typed."""


class Top:
    """Looks at one run.

    Args:
        places: where its processes listen.
        console: where it is drawn.
        now: seconds of a monotonic clock.

    """

    def __init__(
        self, places: Places, console: Console, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._places = places
        self._console = console
        self._now = now
        self._view = View(places.name, now(), now(), asker="headrace top")
        self._addresses = Addresses()
        self._watcher = Watcher(
            self._view,
            self._addresses,
            self._addresses.all,
            security=places.security,
            now=now,
        )
        self._dialog = Dialog()
        self._where: Where | None = None
        self._typed = asyncio.Event()

    async def snapshot(self) -> None:
        """Print the run as it is now.

        Raises:
            UsageError: its replay buffer does not answer.

        """
        try:
            await self._reach()
            self._find_processes()
            await self._watcher.ask_all()
            self._view.now = self._now()
            self._console.print(table(self._view))
        finally:
            await self._watcher.close()

    async def run(self) -> None:
        """Draw the run until somebody leaves.

        Raises:
            UsageError: its replay buffer does not answer.

        """
        try:
            await self._reach()
            async with asyncio.TaskGroup() as tasks:
                looking = [
                    tasks.create_task(self._follow(tasks)),
                    tasks.create_task(self._watcher.follow_steps()),
                    tasks.create_task(self._follow_prompt()),
                ]
                with keyboard(self._press), self._signals():
                    await self._draw()
                for task in looking:
                    task.cancel()
        finally:
            await self._watcher.close()

    async def _reach(self) -> None:
        """See whether the run's replay buffer answers, and read the steps so far."""
        address = self._places.addresses({}).get(REPLAY)
        if address is None:
            raise UsageError(
                f"{self._places.name}: no replay buffer is running; what a run leaves behind is "
                "shown by `headrace status --run DIR`"
            )
        self._addresses.announce(REPLAY, address)
        answered = await self._watcher.reach()
        run_id = answered.process.run_id if answered is not None else ""
        if answered is None or self._places.run_id not in ("", run_id):
            raise UsageError(
                f"{address} does not answer as the replay buffer of {self._places.name}; "
                "what a run leaves behind is shown by `headrace status --run DIR`"
            )
        if self._places.directory is None:
            self._view.name = run_id or self._view.name
        else:
            self._view.steps.read(self._places.directory.metrics_file)

    def _find_processes(self) -> list[str]:
        """Learn where processes listen; name the new ones."""
        replay = self._view.replay
        known = set(self._addresses.all)
        passed_on = dict(replay.addresses) if replay is not None else {}
        for name, address in self._places.addresses(passed_on).items():
            self._addresses.announce(name, address)
        # Workers come and go: one that went home is not waited for.
        left = self._places.gone(set(self._addresses.all) - SERVICES)
        self._view.kept = frozenset(set(self._addresses.all) - left)
        return sorted(set(self._addresses.all) - known)

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        asking = [tasks.create_task(self._watcher.keep_asking(REPLAY))]
        try:
            while True:
                asking += [
                    tasks.create_task(self._watcher.keep_asking(name))
                    for name in self._find_processes()
                ]
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            for task in asking:
                task.cancel()

    async def _follow_prompt(self) -> None:
        """Keep what is known of the prompt that is looked at up to date."""
        while True:
            uid = self._dialog.uid
            if self._dialog.mode is Mode.WHERE:
                where = await self._locate(uid)
                if uid == self._dialog.uid:
                    self._where = where
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._typed.wait()

    async def _locate(self, uid: str) -> Where:
        try:
            return await self._watcher.locate(uid)
        except grpc.aio.AioRpcError as error:
            return f"the replay buffer does not answer: {error.details()}"
        except HeadraceError as error:
            return str(error)

    async def _draw(self) -> None:
        # Drawn here only: the view must not change under a thread that draws.
        with Live(console=self._console, screen=True, auto_refresh=False) as live:
            while not self._dialog.over:
                self._view.now = self._now()
                shown = Shown(self._view, self._dialog, self._where)
                live.update(screen(shown, self._console), refresh=True)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DRAW_EVERY_S):
                        await self._typed.wait()

    def _press(self, text: str) -> None:
        before = self._dialog.uid
        self._dialog.press(text)
        if self._dialog.uid != before:
            self._where = None
        self._wake()

    def _wake(self) -> None:
        self._typed.set()
        self._typed = asyncio.Event()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Leave in order when asked to, and draw anew when the terminal has another size."""
        loop = asyncio.get_running_loop()
        handlers = {number: lambda: self._press(END) for number in LEAVE}
        handlers[signal.SIGWINCH] = self._wake
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
