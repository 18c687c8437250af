"""How a trainer leaves that is told to: when its step is done and saved, or when its time is up.

    told to stop ──► the step goes on to its end, and is saved ──► gone
          │ nothing would be lost                          │ grace over
          └────────────────────────────────────────────────┴──► every wait ends ──► gone

A second signal ends the process at once. Knows nothing of what a step or a checkpoint is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from headrace.log import get_logger

INTERRUPTED: Final = 130
"""The exit code."""
LOOK_EVERY_S: Final = 0.05
"""Pause between two looks at whether there is still something to wait for."""
LAST_S: Final = 10.0
"""How long after its time is up what cannot be interrupted, a computation, may go on."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

log = get_logger()


class Departure:
    """Watches over the end of a process.

    Args:
        asked: set when the process is told to stop.
        grace_s: how long it may take then.

    Attributes:
        asked: as given: ends the training at the end of the step.
        leaving: set when every wait has to end.
        loses_nothing: asked again and again; true once there is nothing to wait for.

    """

    def __init__(self, asked: asyncio.Event, *, grace_s: float) -> None:
        self.asked = asked
        self.leaving = asyncio.Event()
        self.loses_nothing: Callable[[], bool] = lambda: True
        self._grace_s = grace_s
        self._watching = asyncio.create_task(self._watch())

    def close(self) -> None:
        """Stop watching: the process has come to its end."""
        self._watching.cancel()

    async def _watch(self) -> None:
        await self.asked.wait()
        _on_signals(lambda: _end("a second signal"))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._grace_s
        if not self.loses_nothing():
            log.info("leaving", when="the step is done and saved", at_most_s=self._grace_s)
        # What is asked about changes in several places; it is not worth an event in each.
        while not self.loses_nothing() and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        self.leaving.set()
        await asyncio.sleep(max(0.0, deadline - loop.time()) + LAST_S)
        _end(f"not done {LAST_S:g} s after checkpoint.preempt_grace_s = {self._grace_s:g} s")


def _on_signals(act: Callable[[], None]) -> None:
    if threading.current_thread() is threading.main_thread():  # Python allows no other
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, act)


def _end(reason: str) -> None:
    log.warning("ended_at_once", reason=reason)
    os._exit(INTERRUPTED)
