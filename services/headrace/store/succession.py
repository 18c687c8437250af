"""The log of restored rows: it is written beside the one that is there, and takes its place at once.

    begin_beside ──► append … ──► take_over = one durable write of log.json ──► discard

Until `take_over` a crash leaves the older log as it was; from then on the newer one. What lies there
and belongs to neither is removed at the next start. All of it blocks.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.errors import NotReadyError
from headrace.log import get_logger
from headrace.store import identity
from headrace.store.identity import Identity
from headrace.store.log import StoreLog
from headrace.store.segment import numbers

PREFIX = "restored-"
"""How the folders of restored rows begin."""

_log = get_logger()


def begin_beside(older: StoreLog, found: Identity) -> StoreLog:
    """Begin a log that is nobody's yet, in the folder that its identity names.

    Raises:
        NotReadyError: the disk refused.

    """
    assert found.rows.startswith(PREFIX)
    try:
        (older.directory / found.rows).mkdir()
        identity.sync_directory(older.directory)
    except OSError as error:
        raise NotReadyError(f"the store's log cannot be begun anew: {error}") from error
    return StoreLog(older.directory, found, is_new=False, lock=None, fsync=older.fsync)


def take_over(newer: StoreLog, older: StoreLog) -> None:
    """Put the newer log in the place of the older one, which is nobody's then.

    Raises:
        NotReadyError: the disk refused; the older one is still in its place.

    """
    newer.identify(newer.identity)
    newer.take_lock_of(older)


def discard(log: StoreLog) -> None:
    """Remove a log's rows. Doesn't fail: what can't be removed now is at the next start."""
    log.close()
    _remove(log.directory, log.identity.rows)


def remove_others(directory: Path, rows: str) -> None:
    """Remove rows in a log's directory that are not in the folder `rows`: a crash left them."""
    there = {path.name for path in directory.glob(f"{PREFIX}*")} | {""}
    for other in there - {rows}:
        _remove(directory, other)


def _remove(directory: Path, rows: str) -> None:
    try:
        if rows:
            shutil.rmtree(directory / rows)
            return
        for what in ("rows", "dead"):
            for number in numbers(directory, what):
                (directory / f"{what}-{number:08d}.log").unlink()
    except OSError as error:
        _log.warning("store_log_not_trimmed", path=str(directory / rows), error=str(error))
