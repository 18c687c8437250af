"""Whose log a directory holds: the run, the store's incarnation, and the lock on it."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.errors import UsageError

FORMAT = "headrace store log"
VERSION = 2
_READABLE = (1, VERSION)
_NAME = "log.json"
_REMEDY = (
    "restore it, or remove the directory: trajectories that were in it are then generated again"
)


@dataclass(frozen=True, slots=True)
class Identity:
    """What stands beside the log."""

    run_id: str
    """The run that the rows belong to."""
    store_incarnation: str
    """The store that confirmed them; one that finds its log again is still the same."""
    rows: str = ""
    """The folder, below the log's, in which the rows lie; empty = the log's own. Rows that were
    restored have one of their own, so that one write of this puts all of them in place."""
    restore_id: str = ""
    """The restoring that they come from; empty if the log began without rows."""
    hold_id: str = ""
    """The hold under which they were restored, while the ledger does not know them yet: until it
    is over they are neither swept nor registered."""
    held_until_unix_s: float = 0.0
    """When that hold is over at the latest, Unix seconds."""


def lock(directory: Path) -> int:
    """Make the directory, if need be, and lock it for this process.

    Returns:
        A file descriptor; closing it, or the end of the process, gives the lock away.

    Raises:
        UsageError: another store has it, or the directory cannot be used.

    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(
            f"the store's log in {directory} cannot be opened: {error.strerror}"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, 20, 0).decode(errors="replace").strip()
        os.close(fd)
        raise UsageError(
            f"the log in {directory} is in use by another store (process {holder or 'unknown'}); "
            "stop it first, or give this one another run directory"
        ) from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


def read(directory: Path, *, run_id: str) -> Identity | None:
    """Read whose log it is; None if none was begun here.

    Raises:
        UsageError: it is another run's, of another version, or not readable.

    """
    path = directory / _NAME
    try:
        found = json.loads(path.read_bytes())
        version, given = found["version"], set(Identity.__slots__) & set(found)
        there = Identity(**{name: found[name] for name in given})
    except FileNotFoundError:
        if any(directory.glob("rows-*.log")) or any(directory.glob("*/rows-*.log")):
            raise UsageError(
                f"{directory} holds trajectories, but {_NAME} is missing: {_REMEDY}"
            ) from None
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged ({error}): {_REMEDY}") from error
    if found.get("format") != FORMAT or version not in _READABLE:
        raise UsageError(
            f"{path}: the log has version {version}, this program reads version {VERSION}: use the "
            "program that wrote it, or another run directory"
        )
    if there.run_id != run_id:
        raise UsageError(
            f"the log in {directory} belongs to run {there.run_id!r}, not to {run_id!r}: give this "
            "run another directory, or remove that one"
        )
    return there


def write(directory: Path, identity: Identity) -> None:
    """Say, durably, whose log it is from now on. Raises OSError."""
    temporary = directory / f"{_NAME}.tmp"
    with temporary.open("w") as file:
        json.dump({"format": FORMAT, "version": VERSION, **asdict(identity)}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / _NAME)
    sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Make names in the directory durable. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
