"""Finds the run that a question is about, and somebody who can answer it.

That is the replay buffer while the run lives, and its journal, read without changing it,
once the run is over.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from headrace.client import Run, connect
from headrace.config.load import load_config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError
from headrace.rpc import announce

RUNS = Path("runs")
"""Where run directories are, below the current folder."""

CONNECT_TIMEOUT_S = 1.0
"""How long a connection on loopback may take before nobody is there."""


@dataclass(frozen=True)
class Found:
    """A run, and how it is looked at."""

    run: Run
    """Answers the questions."""
    directory: RunDirectory | None
    """Its run directory; None if only an address was given."""
    remark: str
    """A line about where the answers come from; empty if from the running replay buffer."""


def newest_run(folder: Path = RUNS) -> Path:
    """Give the run directory below `folder` that was started last.

    Raises:
        UsageError: there is none.

    """
    found = list(folder.glob("*/config.yaml"))
    if not found:
        raise UsageError(
            f"no run directory below {folder.absolute()}; name one with --run DIR, "
            "or a running replay buffer with --replay HOST:PORT"
        )
    return max(found, key=lambda file: file.stat().st_mtime).parent


def find_run(run: Path | None, replay: str | None) -> Found:
    """Open the run in a directory, or behind an address, or else the newest one.

    Raises:
        UsageError: there is no such run, or nobody can answer for it.

    """
    if replay is not None:
        if run is not None:
            raise UsageError("give either --run or --replay, not both")
        if not listens(replay):
            raise UsageError(
                f"no replay buffer listens on {replay}; a run that is over can be read with "
                "--run DIR"
            )
        return Found(connect(replay), None, "")
    directory = RunDirectory((run or newest_run()).absolute())
    if not directory.config_file.is_file():
        raise UsageError(f"{directory.path} is not a run directory: it has no config.yaml")
    live = _live(directory)
    if live is not None:
        return Found(live, directory, "")
    remark = f"the replay buffer of {directory.path} is not running; read from its journal"
    return Found(_from_journal(directory), directory, remark)


def announced_address(directory: RunDirectory, process: str) -> str | None:
    """Give the address a process of a run listens on; None if it does not."""
    announced = announce.read(directory.endpoint_file(process))
    if announced is None or not listens(announced.address):
        return None
    return announced.address


def listens(address: str) -> bool:
    """Try whether anybody listens on `host:port`.

    Raises:
        UsageError: it is no such address.

    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{address!r} is not an address; write host:port")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False


def _live(directory: RunDirectory) -> Run | None:
    address = announced_address(directory, "replay")
    if address is None:
        return None
    run = connect(address)
    try:
        run_id = run.status().process.run_id
    except UsageError:  # somebody else has the port by now
        return None
    return run if run_id == load_config(directory.config_file).run.run_id else None


def _from_journal(directory: RunDirectory) -> Run:
    # Imported here, as a question to a running replay buffer needs none of its code.
    from headrace.replay.offline import open_ledger

    if not directory.journal.exists():
        raise UsageError(
            f"the replay buffer of {directory.path} is not running, and there is no journal yet"
        )
    return Run(open_ledger(directory.journal, load_config(directory.config_file)))
