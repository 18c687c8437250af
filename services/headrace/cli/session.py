"""One run from its first process to its last.

    start all ──► over: the trainer is done │ somebody died │ a stall │ Ctrl-C
              ──► stop the trainer, which saves its step first, then the others in their order
              ──► audit ──► stop the replay buffer

Knows no process and no display from the inside.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Final

from headrace.cli.display import Display
from headrace.cli.ending import INTERRUPTED, STALLED, Ending
from headrace.cli.keeper import Part
from headrace.cli.news import News
from headrace.cli.single import makes_checkpoints
from headrace.cli.supervisor import Supervisor
from headrace.cli.view import View
from headrace.cli.watcher import Watcher
from headrace.client.words import wait_in_words
from headrace.config.config import Config
from headrace.rpc.security import Security
from headrace.v1 import replay_pb2

DRAW_EVERY_S: Final = 0.5
"""How often the view is brought up to date and drawn."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a run in order; a second one ends it at once."""


class Session:
    """A run.

    Args:
        config: the run's configuration, resolved.
        parts: its processes.
        stop_order: who is stopped together, and in which order; the rest goes last.
        display: shows it.
        known_resume: the resume that was the last one before.
        now: seconds of a monotonic clock.

    Attributes:
        view: the latest that is known of it.
        news: what was said of it.

    """

    def __init__(
        self,
        config: Config,
        parts: Sequence[Part],
        stop_order: Sequence[Sequence[str]],
        display: Display,
        *,
        known_resume: str = "",
        now: Callable[[], float],
    ) -> None:
        self.view = View(config.run.name, now(), now(), stall_after_s=config.watchdog.stall_after_s)
        self.view.last_resume = known_resume
        self.news = News(display.say, known_resume=known_resume)
        self._saves = makes_checkpoints(config)
        self._fail_on_stall = config.watchdog.on_stall == "fail"
        self._stop_order = stop_order
        self._display = display
        self._now = now
        self._signals = 0
        self._supervisor = Supervisor(
            parts,
            config.launcher,
            report=display.say,
            standing=lambda: self._watcher.standing(),
            now=now,
        )
        self._watcher = Watcher(
            self.view,
            self._supervisor.addresses,
            self._supervisor.names,
            security=Security.from_config(config),
            now=now,
        )

    async def run(self) -> tuple[Ending, replay_pb2.AuditResponse | None]:
        """Run it to its end; give the end, and the last audit if one could be made."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._interrupt)
        self._display.start()
        self._supervisor.start()
        looking = [
            asyncio.create_task(self._watcher.run()),
            asyncio.create_task(self._keep_drawing()),
        ]
        try:
            ending = await self._first_end(looking)
            return ending, await self._stop(saving=ending.exit_code == INTERRUPTED)
        finally:
            self._supervisor.kill()
            await self._supervisor.stop(self._supervisor.names)
            for task in looking:
                task.cancel()
            await asyncio.gather(*looking, return_exceptions=True)
            await self._watcher.close()
            self._display.stop()
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    async def _first_end(self, looking: Sequence[asyncio.Task[None]]) -> Ending:
        """Wait for the run's end; a watcher that fails ends it, too."""
        over = asyncio.create_task(self._supervisor.over())
        done, _ = await asyncio.wait((over, *looking), return_when=asyncio.FIRST_COMPLETED)
        if over not in done:
            over.cancel()
            for task in done:
                task.result()
        return await over

    async def _stop(self, *, saving: bool) -> replay_pb2.AuditResponse | None:
        self.view.stopping = True
        await self._watcher.ask_all()
        for names in self._stop_order:
            self.view.leaving = tuple(names)
            await self._supervisor.stop(names, saving=saving)
        audit = await self._watcher.audit()
        await self._watcher.ask_all()
        self.view.leaving = ("replay",)
        await self._supervisor.stop(self._supervisor.names)
        self.view.now = self._now()
        return audit

    async def _keep_drawing(self) -> None:
        while True:
            self.view.now = self._now()
            self.view.kept = self._supervisor.kept
            self.view.restarts = self._supervisor.restarts
            self.view.deaths = self._supervisor.deaths
            self.view.warnings.extend(self._supervisor.log_warnings())
            self.news.tell(self.view)
            on = self.view.replay is not None and not self.view.replay.ended
            if on and not self.view.stopping:
                self._supervisor.call_back()
            if self._fail_on_stall and not self.view.stopping:
                self._check_stalls()
            self._display.update(self.view)
            await asyncio.sleep(DRAW_EVERY_S)

    def _check_stalls(self) -> None:
        stalls = [wait_in_words(name, wait) for name, wait in self.view.stalls()]
        if stalls:
            self._supervisor.end(Ending(STALLED, tuple(f"stalled: {stall}" for stall in stalls)))

    def _interrupt(self) -> None:
        self._signals += 1
        if self._signals == 1:
            first = "the trainer saves its step first" if self._saves else "in order"
            self._display.say(f"stopping: {first}; a second Ctrl-C kills everything at once")
            self._supervisor.end(Ending(INTERRUPTED, ("interrupted",)))
        else:
            self._supervisor.kill()
