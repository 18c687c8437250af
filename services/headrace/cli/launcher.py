"""One child process: start it, learn its address, end it.

Each child has a process group of its own, so that it and what it started end together, and
so that a Ctrl-C at the terminal reaches the launcher alone. Knows nothing of what the
processes are; when to start one again is the supervisor's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.cli.logtail import LogTail
from headrace.cli.parent import MARK
from headrace.errors import UsageError
from headrace.rpc import announce

LOOK_EVERY_S: Final = 0.02
"""How often a child's announcement is looked for."""


@dataclass(frozen=True)
class Command:
    """What is to be started."""

    name: str
    """The process's name, `worker-0`."""
    arguments: Sequence[str]
    """The program and its arguments."""
    log: Path
    """Where its output is appended."""
    announcement: Path
    """Where it announces its address."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beyond the launcher's own."""


class Child:
    """One life of a process."""

    def __init__(self, command: Command, process: asyncio.subprocess.Process, log: LogTail) -> None:
        self.name = command.name
        self.log = log
        """What it wrote in this life."""
        self._announcement = command.announcement
        self._process = process

    @classmethod
    async def start(cls, command: Command) -> Child:
        """Start it. Its announcement of an earlier life is removed.

        Raises:
            UsageError: its files cannot be written.

        """
        try:
            command.log.parent.mkdir(parents=True, exist_ok=True)
            command.announcement.parent.mkdir(parents=True, exist_ok=True)
            command.announcement.unlink(missing_ok=True)
            log = command.log.open("ab")
        except OSError as error:
            raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from error
        with log as output:
            begin = output.tell()
            process = await asyncio.create_subprocess_exec(
                *command.arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **command.environment, MARK: "1"},
                start_new_session=True,
            )
        return cls(command, process, LogTail(command.log, begin))

    @property
    def pid(self) -> int:
        """Its process id, and that of its group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; minus the signal if one killed it; None while it runs."""
        return self._process.returncode

    async def announced(self) -> announce.Announcement:
        """Wait until it has announced where it listens; the caller bounds the wait."""
        while True:
            announced = announce.read(self._announcement)
            if announced is not None and announced.pid == self.pid:
                return announced
            await asyncio.sleep(LOOK_EVERY_S)

    async def ended(self) -> int:
        """Wait until it is gone, sweep its group, and give the exit code."""
        code = await self._process.wait()
        self._signal_group(signal.SIGKILL)  # what it started and left behind
        return code

    async def stop(self, grace_s: float) -> int:
        """Ask it to stop; kill it after `grace_s` seconds."""
        if self.exit_code is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await self.ended()
        except TimeoutError:
            self.kill()
            return await self.ended()

    def withdraw(self) -> None:
        """Remove its announcement: it is gone, and not started again."""
        announce.withdraw(self._announcement, self.pid)

    def kill(self) -> None:
        """Kill it and what it started, at once."""
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # nobody is left
            os.killpg(self.pid, number)
