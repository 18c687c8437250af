"""A folder of one process, which is gone when the process is, or soon after.

Whoever lives holds a lock on its folder (flock, which ends with the process, however it ends), so
that the next process to start can tell what a killed one has left behind. Knows nothing of what is
kept in it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from headrace.errors import UsageError
from headrace.log import get_logger

PREFIX: Final = "headrace-weights-"

log = get_logger()


class Scratch:
    """The folder, from entering to leaving.

    Args:
        parent: where it is made; None = the system's folder for temporary files.

    Attributes:
        path: the folder, for this user only.

    Raises:
        UsageError: it cannot be made.

    """

    path: Path
    _lock: int

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent or Path(tempfile.gettempdir())

    def __enter__(self) -> Self:
        try:
            self._parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self._parent)
            self.path, self._lock = _make(self._parent)
        except OSError as error:
            raise UsageError(
                f"weights.tmpdir: no folder can be made in {self._parent}: {error.strerror}; "
                "give one that this user may write to"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_leftovers(parent: Path) -> None:
    """Remove the folders whose processes are gone."""
    for path in parent.glob(f"{PREFIX}*"):
        lock = _locked(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
            log.info("leftover_removed", path=str(path))


def _make(parent: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = _locked(path)
        if lock is None:  # somebody took it for a leftover before it was locked
            continue
        if path.exists():
            return path, lock
        os.close(lock)


def _locked(path: Path) -> int | None:
    """Lock a folder of this user; None if somebody holds it, or it is none."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone, another user's, or no folder
        return None
    try:
        if os.fstat(folder).st_uid != os.getuid():
            raise BlockingIOError
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(folder)
        return None
    return folder
