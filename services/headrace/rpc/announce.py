"""The file in which a process announces where it listens.

`{"address": "127.0.0.1:40001", "pid": 4711, "metrics": "127.0.0.1:40002"}`, replaced as a whole
or not at all. `headrace run` removes it when the process is gone for good; what outlives a launcher
that was killed names a process that is not there.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.errors import UsageError


@dataclass(frozen=True)
class Announcement:
    """Where a process listens."""

    address: str
    """`host:port`"""
    pid: int
    """Its process id."""
    metrics: str = ""
    """`host:port` of its metrics."""

    @property
    def lives(self) -> bool:
        """Whether there is a process of that id on this machine."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def write(path: Path, address: str, *, metrics: str = "") -> None:
    """Announce that this process listens on `address`, and serves its metrics on `metrics`.

    Raises:
        UsageError: The file cannot be written.

    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(asdict(Announcement(address, os.getpid(), metrics))))
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"cannot announce an address in {path}: {error.strerror}") from error


def withdraw(path: Path, pid: int) -> None:
    """Remove what a process has announced, now that it is gone; another's is left alone."""
    with contextlib.suppress(UsageError, OSError):
        announced = read(path)
        if announced is not None and announced.pid == pid:
            path.unlink(missing_ok=True)


def read(path: Path) -> Announcement | None:
    """Return what was announced last; None if nothing was.

    Raises:
        UsageError: The file cannot be read, or is no announcement.

    """
    try:
        fields = json.loads(path.read_text())
        return Announcement(
            address=str(fields["address"]),
            pid=int(fields["pid"]),
            metrics=str(fields.get("metrics", "")),
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read an address from {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} does not announce a process's address; remove it and start the process again"
        ) from error
