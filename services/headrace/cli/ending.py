"""How a run ended: the exit code, and what to say about it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final

DONE: Final = 0
"""The trainer is done."""
BROKEN: Final = 1
"""The trainer is done, but the audit found something broken."""
USAGE: Final = 2
"""Something is configured or called wrongly."""
NO_CHECKPOINT: Final = 3
"""There are checkpoints, and none of them is valid."""
TRAINER_DIED: Final = 4
"""The trainer died, and cannot go on."""
STALLED: Final = 5
"""A wait lasted too long, and `watchdog.on_stall` is `fail`."""
NOT_KEPT_ALIVE: Final = 6
"""A process died too often."""
INTERRUPTED: Final = 130
"""Somebody pressed Ctrl-C, or sent SIGTERM."""


@dataclass(frozen=True)
class Ending:
    """The end of a run."""

    exit_code: int
    """One of the codes above."""
    reasons: tuple[str, ...] = ()
    """Why, in lines for people; none if all is well."""
    log_lines: tuple[str, ...] = ()
    """What the process that caused it wrote last."""


def exit_in_words(code: int) -> str:
    """Say how a process ended; a negative code is a signal, as subprocess has it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
