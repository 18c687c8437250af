"""Finds the run that a question of the command line is about, and who answers it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.client import finding
from headrace.client.finding import (
    DirectoryLedger,
    absence_in_words,
    announced_address,
    listens,
)
from headrace.client.ledger import LiveLedger
from headrace.client.queries import Queries
from headrace.client.wire import WireLedger, ask_replay
from headrace.config.load import load_config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError
from headrace.rpc.security import Security

RUNS = Path("runs")
"""Where run directories are, below the current folder."""


@dataclass(frozen=True)
class Found:
    """A run, and how it is looked at."""

    run: Queries
    """Answers the questions."""
    directory: RunDirectory | None
    """Its run directory; None if only an address was given."""
    security: Security
    """What calls to its processes carry."""
    remark: str
    """A line about where the answers come from; empty if from the running replay buffer."""


def newest_run(folder: Path = RUNS) -> Path:
    """Give the run directory below `folder` that was started last.

    Raises:
        UsageError: there is none.

    """
    found = finding.newest_run(folder)
    if found is None:
        raise UsageError(
            f"no run directory below {folder.absolute()}; name one with --run DIR, "
            "or a running replay buffer with --replay HOST:PORT"
        )
    return found


def run_directory(run: Path | None) -> RunDirectory:
    """Give the directory of a run, by default the newest one's.

    Raises:
        UsageError: it is none.

    """
    directory = RunDirectory((run or newest_run()).absolute())
    if not directory.config_file.is_file():
        raise UsageError(f"{directory.path} is not a run directory: it has no config.yaml")
    return directory


def tool_security(replay: str | None, token_file: Path | None, ca: Path | None) -> Security:
    """Read what options say about calls to an address.

    Raises:
        UsageError: a file cannot be used, or there is no address.

    """
    if replay is None and (token_file or ca):
        raise UsageError(
            "--token-file and --ca go with --replay HOST:PORT; a run directory names its own files"
        )
    return Security.for_tool(token_file=token_file, ca=ca)


def find_run(run: Path | None, replay: str | None, security: Security) -> Found:
    """Open the run in a directory, or behind an address, or else the newest one.

    Args:
        run: The directory.
        replay: The address.
        security: What calls to the address carry; the directory names its own files.

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
        return Found(ask_replay(replay, security), None, security, "")
    directory = run_directory(run)
    if announced_address(directory, "replay") is not None:
        # Not read for a run that is over, whose files may be gone.
        security = Security.for_looking(load_config(directory.config_file))
    ledger = DirectoryLedger(directory, security)
    live = ledger.live()
    if live is not None:
        return Found(Queries(live), directory, security, "")
    absent = absence_in_words(directory, "replay")
    remark = f"the replay buffer of {directory.path} {absent}; read from its journal"
    return Found(Queries(ledger.journal()), directory, security, remark)


def find_live(run: Path | None, replay: str | None, security: Security) -> LiveLedger:
    """Open the ledger of a running run, to change something. Arguments as `find_run`'s.

    Raises:
        UsageError: there is no such run.

    """
    if replay is None:
        directory = run_directory(run)
        return DirectoryLedger(directory, Security.for_looking(load_config(directory.config_file)))
    if run is not None:
        raise UsageError("give either --run or --replay, not both")
    return WireLedger(replay, security)
