"""`connect`: from an address or a directory to a `Run`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from headrace.client.finding import DirectoryLedger, announced_address, newest_run
from headrace.client.run import Run
from headrace.client.wire import WireLedger
from headrace.config.load import load_config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError
from headrace.rpc.certificates import read_authority
from headrace.rpc.security import Security, read_token

PATIENCE_S: Final = 30.0
"""How long a replay buffer that is being started again is waited for."""


def connect(
    target: str | Path = "runs",
    *,
    token: str | Path | None = None,
    ca: str | Path | None = None,
    checkpoint: str | None = None,
    patience_s: float = PATIENCE_S,
) -> Run:
    """Open a run.

    Args:
        target: The address of its replay buffer, `host:port`; the others are found through it.
            Or a run directory, `runs/NAME`, or a folder of them, of which the newest is taken:
            such a run can be looked at after its end, too, from its journal.
        token: The run's token, or the path of the file that holds it. A run directory names it.
        ca: The file with the authority's certificate, for a run with TLS. A run directory names
            it.
        checkpoint: The address of the checkpoint coordinator, for `run.checkpoints()`. A run
            directory on this machine names it, and so does a replay buffer that is configured
            with it (`endpoints.checkpoint`).
        patience_s: How long a replay buffer that is being started again is waited for.

    Raises:
        UsageError: there is no such run, or nobody answers for it.
        TokenRefusedError: the token is not the run's.

    """
    path = Path(target)
    if path.is_dir():
        return _in_directory(path, token, ca, checkpoint, patience_s)
    address = str(target)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{address!r} is neither a directory nor an address; write host:port")
    security = _security(token, ca)
    # Without patience, so that a mistake shows here and at once.
    WireLedger(address, security).status()
    ledger = WireLedger(address, security, patience_s=patience_s)
    return Run(ledger, security=security, checkpoint=checkpoint, patience_s=patience_s)


def _in_directory(
    path: Path,
    token: str | Path | None,
    ca: str | Path | None,
    checkpoint: str | None,
    patience_s: float,
) -> Run:
    found = path if (path / "config.yaml").is_file() else newest_run(path)
    if found is None:
        raise UsageError(f"{path.absolute()} is no run directory, and there is none in it")
    directory = RunDirectory(found.absolute())
    section = load_config(directory.config_file).security
    try:
        security = _security(
            section.token_file if token is None else token,
            (section.tls.ca if section.tls else None) if ca is None else ca,
        )
    except UsageError:
        if announced_address(directory, "replay") is not None:
            raise
        security = Security()  # a run that is over outlives its tokens and certificates
    address = announced_address(directory, "replay")
    if address is not None and (token is not None or ca is not None):
        # Else who refuses them would be taken for a stranger, and the journal be read.
        WireLedger(address, security).status()
    ledger = DirectoryLedger(directory, security, patience_s=patience_s)
    ledger.status()  # so that a mistake shows here
    return Run(
        ledger,
        security=security,
        directory=directory,
        checkpoint=checkpoint,
        patience_s=patience_s,
    )


def _security(token: str | Path | None, ca: str | Path | None) -> Security:
    return Security(
        token=read_token("token", token) if isinstance(token, Path) else token or "",
        authority=read_authority("ca", Path(ca), now=datetime.now(UTC)) if ca else None,
    )
