"""One rehearsal from its first process to its last, with whatever strikes it.

The processes are those of `headrace run`, kept alive by the same supervisor. Knows nothing of what
is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from headrace.cli.fleet import parts, stop_order, worker_names
from headrace.cli.keeper import Part, Ports
from headrace.cli.launcher import Command
from headrace.cli.rundirs import RunLock, make_run_directory, write_config
from headrace.cli.supervisor import Supervisor
from headrace.config.config import Config
from headrace.config.rundir import RunDirectory
from headrace.v1 import replay_pb2, resume_pb2
from headrace.verify.progress import progress_in_words
from headrace.verify.recorder import Recorder
from headrace.verify.strikes import Strikes

LOSSES: Final = 2
"""How often the store loses all it has, its disk included, and the trainer dies with it."""
POLL_S: Final = 0.05
FAILPOINT: Final = "failpoint "
"""How a process begins the line in which it says at which point it dies."""
LAST_LINES: Final = 3


@dataclass(frozen=True)
class Played:
    """What there is to be judged."""

    config: Config
    directory: RunDirectory
    recorder: Recorder
    strikes: Strikes
    exit_code: int
    """How the run ended."""
    reasons: tuple[str, ...]
    """Why, if not well."""
    audit: replay_pb2.AuditResponse | None
    """What the run said of itself in the end; None if nobody answered."""
    seconds: float


def processes(config: Config) -> list[str]:
    """Name those that can be killed."""
    return ["replay", "store", "feeder", "checkpoint", "trainer", *worker_names(config)]


async def play(
    config: Config, strikes: Strikes, *, limit_s: float, report: Callable[[str], None]
) -> Played:
    """Run it to its end.

    Args:
        config: The rehearsal's.
        strikes: What is done to it.
        limit_s: A run that has not ended by then is given up.
        report: Takes lines for people.

    Raises:
        UsageError: the directory cannot be used.

    """
    config, directory = make_run_directory(config)
    with RunLock(directory):
        write_config(config, directory)
        game = _Game(config, directory, strikes, report)
        return await game.play(limit_s)


class _Game:
    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        strikes: Strikes,
        report: Callable[[str], None],
    ) -> None:
        self._config = config
        self._directory = directory
        self._strikes = strikes
        self._report = report
        self._noted: set[int] = set()
        """Lives whose end was looked at, by process id."""
        armed = [self._armed(part) for part in parts(config, directory, {})]
        self._supervisor = Supervisor(armed, config.launcher, report=lambda _: None)
        self._recorder = Recorder(lambda: self._supervisor.addresses.all.get("replay"))

    async def play(self, limit_s: float) -> Played:
        begun = time.monotonic()
        recording = asyncio.create_task(self._recorder.run())
        striking = asyncio.create_task(self._strike())
        telling = asyncio.create_task(self._tell())
        self._supervisor.start()
        reasons: tuple[str, ...] = ()
        code, audit = -1, None
        try:
            async with asyncio.timeout(limit_s):
                ending = await self._supervisor.over()
                code, reasons = ending.exit_code, (*ending.reasons, *ending.log_lines)
        except TimeoutError:
            reasons = (f"it had not ended after {limit_s:g} s", self._where())
        striking.cancel()
        self._note_deaths()
        with contextlib.suppress(Exception):  # whoever does not answer is missing in the verdict
            audit = await self._recorder.audit()
        await self._stop([recording, striking, telling])
        seconds = time.monotonic() - begun
        return Played(
            self._config,
            self._directory,
            self._recorder,
            self._strikes,
            code,
            reasons,
            audit,
            seconds,
        )

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        for names in stop_order(self._config):
            await self._supervisor.stop(names)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._supervisor.stop(self._supervisor.names)

    def _armed(self, part: Part) -> Part:
        """Have each life of a process armed with its next point."""

        def command(addresses: Mapping[str, str], ports: Ports) -> Command:
            self._note_death(part.name)
            plain = part.command(addresses, ports)
            extra = self._strikes.environment(part.name)
            return replace(plain, environment={**plain.environment, **extra})

        return replace(part, command=command)

    def _note_death(self, name: str) -> None:
        """Find out whether the end of a life was one of its points."""
        child = self._supervisor.life(name)
        if child is None or child.exit_code is None or child.pid in self._noted:
            return
        self._noted.add(child.pid)
        for line in child.log.last_lines(LAST_LINES):
            if line.startswith(FAILPOINT):
                point = line.removeprefix(FAILPOINT).strip()
                self._report(f"{name} died at {point}")
                self._strikes.died_at(name, point)

    def _note_deaths(self) -> None:
        for name in self._supervisor.names:
            self._note_death(name)

    async def _strike(self) -> None:
        """Kill at random moments; now and then the store loses everything."""
        await self._under_way()
        kills = self._strikes.kills
        losses = {len(kills) * (number + 1) // (LOSSES + 1) for number in range(LOSSES)}
        for number, kill in enumerate(kills):
            await asyncio.sleep(kill.after_s)
            if number in losses:
                await self._lose_store()
            elif kill.process == "trainer":
                await self._progress()
            await self._kill(kill.process)
            self._strikes.killed[kill.process] += 1
        if kills:
            self._report(f"{len(kills)} random kills are done")

    async def _under_way(self) -> None:
        while self._recorder.last.committed_step < 1:  # noqa: ASYNC110 (no event for it)
            await asyncio.sleep(POLL_S)

    async def _progress(self) -> None:
        """Wait until the newest trainer has done something that can be lost."""
        while True:
            status = self._recorder.last
            resume = status.resume
            at_work = not status.HasField("resume") or (
                resume.phase == resume_pb2.RESUME_PHASE_OPEN
                and resume.trainer_incarnation == status.trainer_incarnation
                and status.committed_step > resume.step
            )
            if at_work:
                return
            await asyncio.sleep(POLL_S)

    async def _lose_store(self) -> None:
        while not self._recorder.last.saved_step:  # noqa: ASYNC110 (no event for it)
            await asyncio.sleep(POLL_S)
        await self._progress()
        self._report("the store loses all it has, and the trainer dies")
        await self._kill("store", then=lambda: shutil.rmtree(self._directory.store, True))
        await asyncio.sleep(0.2)
        await self._kill("trainer")

    async def _kill(self, name: str, then: Callable[[], None] | None = None) -> None:
        """Kill a process, once it has a life that can be ended."""
        while (child := self._supervisor.life(name)) is None or child.exit_code is not None:  # noqa: ASYNC110 (no event for it)
            await asyncio.sleep(POLL_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        if then is not None:
            then()

    async def _tell(self) -> None:
        """Say now and then how far it is."""
        said = 0.0
        while True:
            await asyncio.sleep(1)
            if time.monotonic() - said > 5:
                said = time.monotonic()
                self._report(self._where())

    def _where(self) -> str:
        # The announcement of an earlier life is removed when a process is started again.
        starting = [
            name
            for name in self._supervisor.kept
            if not self._directory.endpoint_file(name).exists()
        ]
        parts = [progress_in_words(self._recorder.last, starting)]
        if kills := len(self._strikes.kills):
            parts.append(f"{sum(self._strikes.killed.values())} of {kills} random kills")
        if reached := len(self._strikes.reached):
            parts.append(f"{reached} points reached")
        return ", ".join(parts)
