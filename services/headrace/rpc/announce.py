"""The file in which a process announces where it listens.

`{"address": "127.0.0.1:40001", "pid": 4711, "metrics": "127.0.0.1:40002"}`, replaced as a whole
or not at all. It stays when the process goes: whoever reads it compares the process id.
"""

from __future__ import annotations

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
