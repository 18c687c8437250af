"""A process of the benchmark's own, which does not outlive it.

Knows nothing of what the process serves. If that does not come up, its reason is told in a line.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace.errors import HeadraceError, UsageError
from headrace.log import configure
from headrace.rpc import announce

LOOK_EVERY_S: Final = 0.02
"""How often one looks whether a process has announced itself."""
STOP_S: Final = 10.0
"""How long a process may take to stop."""

_T = TypeVar("_T")
_SPAWN = multiprocessing.get_context("spawn")


class Child:
    """A process that runs `serve(pipe, *arguments)`; `serve` is found there by its name."""

    def __init__(self, name: str, serve: Callable[..., object], *arguments: Any) -> None:
        self._name = name
        self._pipe, there = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_be, args=(name, there, serve, arguments), name=name, daemon=True
        )
        self._process.start()
        there.close()

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    async def receive(self) -> Any:
        """Wait for what it `tell`s.

        Raises:
            UsageError: it ended, for a reason that it said.

        """
        while not self._pipe.poll():
            self.check()
            await asyncio.sleep(LOOK_EVERY_S)
        return self._hear()

    async def announced(self, path: Path) -> announce.Announcement:
        """Wait until it has announced itself there.

        Raises:
            UsageError: it ended instead, for a reason that it said.

        """
        while (found := announce.read(path)) is None:
            self.check()
            await asyncio.sleep(LOOK_EVERY_S)
        return found

    async def answers(self, question: Coroutine[Any, Any, _T]) -> _T:
        """Wait for an answer, as long as it is there to give one.

        Raises:
            UsageError: it ended instead, for a reason that it said.

        """
        asking = asyncio.create_task(question)
        try:
            while not asking.done():
                self.check()
                await asyncio.wait((asking,), timeout=LOOK_EVERY_S)
        finally:
            asking.cancel()
        return await asking

    def check(self) -> None:
        """See that it is there.

        Raises:
            UsageError: it ended, for a reason that it said.

        """
        if self._process.is_alive():
            return
        if self._pipe.poll():
            self._hear()
        raise self._ended()

    def _hear(self) -> Any:
        try:
            message = json.loads(self._pipe.recv_bytes())
        except EOFError:
            raise self._ended() from None
        if "error" in message:
            raise UsageError(message["error"])
        return message["value"]

    def _ended(self) -> UsageError:
        self._process.join(STOP_S)
        return UsageError(f"the {self._name} ended (exit code {self._process.exitcode})")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.join(STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


@asynccontextmanager
async def running(name: str, serve: Callable[..., object], *arguments: Any) -> AsyncIterator[Child]:
    """Have a process while the block runs."""
    child = Child(name, serve, *arguments)
    try:
        yield child
    finally:
        await asyncio.to_thread(child.stop)


def tell(pipe: Connection, value: object) -> None:
    """Say something to the parent, as JSON."""
    pipe.send_bytes(json.dumps({"value": value}).encode())


def _be(
    name: str, pipe: Connection, serve: Callable[..., object], arguments: tuple[Any, ...]
) -> None:
    """Be the process."""
    configure(name, "bench", level="error")
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    try:
        serve(pipe, *arguments)
    except HeadraceError as error:
        pipe.send_bytes(json.dumps({"error": str(error)}).encode())
    except KeyboardInterrupt:
        pass


def _end_with_parent(pipe: Connection) -> None:
    """Wait until nobody holds the other end any more, however the parent went."""
    try:
        pipe.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
