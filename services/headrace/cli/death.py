"""Why a process died, as far as anybody can tell.

It says so itself, in its log, unless the disk that the log lies on is what is full or gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.cli.logtail import LogTail

ENOUGH_BYTES: Final = 64 * 1024
"""A disk with less room than this has none for a log line either."""


def free_bytes(folder: Path) -> int:
    """Give the room on the disk of a folder, for who is not root."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def cause_of(log: LogTail, *, free: Callable[[Path], int] = free_bytes) -> str:
    """Say in a line what a process that ended by itself died of; empty if that is not known.

    Args:
        log: What it wrote in its life.
        free: Gives the room on the disk of a folder, in bytes.

    """
    folder = log.path.parent
    try:
        is_full = free(folder) < ENOUGH_BYTES
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return f"the disk of {folder} is full" if is_full else log.last_error()
