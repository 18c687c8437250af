"""The process of `headrace.trainer.sender`, as the trainer sees it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any, Final, Self

from headrace.errors import HeadraceError
from headrace.log import get_logger

END_S: Final = 10.0
"""How long a process that was killed may take to be gone: one that hangs in a driver is not."""
COMMAND: Final = (sys.executable, "-m", "headrace.trainer.sender")

log = get_logger()


class SenderError(HeadraceError):
    """It cannot go on, or is gone."""


class SenderProcess:
    """A process that answers orders, and can be ended at any moment."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str] = COMMAND) -> Self:
        """Start it.

        Raises:
            SenderError: there is no room for another process.

        """
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        except OSError as error:
            raise SenderError(f"no process can be started: {error}") from error
        return cls(process)

    def order(self, **what: Any) -> None:
        """Give an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")

    async def answer(self, key: str) -> dict[str, Any]:
        """Wait for the answer that has a key.

        Raises:
            SenderError: it says what is wrong instead, or nothing.

        """
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise SenderError("the process that sends has died")
        answer: dict[str, Any] = json.loads(line)
        if key not in answer:
            raise SenderError(str(answer.get("error", answer)))
        return answer

    @property
    def is_alive(self) -> bool:
        """Whether it runs, as far as is known."""
        return self._process.returncode is None

    async def end(self) -> None:
        """Kill it, and see that it is gone. Safe to repeat."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            log.warning("sender_not_ended", pid=self._process.pid, after_s=END_S)
