"""The terminal's keyboard, key by key, without blocking anybody."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from headrace.cli.top.dialog import END

MOST_BYTES: Final = 1024
"""Read at a time: more than anybody types, as much as somebody pastes."""


@contextmanager
def keyboard(press: Callable[[str], None]) -> Iterator[None]:
    """Hand every key to `press`, on the running event loop, as long as the block runs.

    The terminal is put back however the block ends. When it is gone, `press` gets Ctrl-D.
    """
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read() -> None:
        try:
            text = os.read(descriptor, MOST_BYTES).decode(errors="ignore")
        except OSError:
            text = ""
        if not text:
            loop.remove_reader(descriptor)
        press(text or END)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
