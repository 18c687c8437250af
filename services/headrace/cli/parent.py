"""A child that does not outlive the `headrace run` that started it.

The launcher holds the other end of the child's standard input and never writes to it.
When the launcher is gone, however it went, the pipe ends, and the child kills its own
process group: everything else in a run survives a kill by design, an orphan would hold the
run directory's files and ports. Knows nothing of what the child does.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

MARK: Final = "HEADRACE_STDIN_IS_PARENT"
"""The environment variable by which the launcher says so."""


def die_with_parent() -> None:
    """Watch the launcher, if there is one. Children of this process are not concerned."""
    if os.environ.pop(MARK, None) is None:
        return
    pipe = os.dup(0)  # not inheritable, unlike 0
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_watch, args=(pipe,), name="parent", daemon=True).start()


def _watch(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os.killpg(0, signal.SIGKILL)
