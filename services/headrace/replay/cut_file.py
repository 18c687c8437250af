"""The ledger's part of a checkpoint: `ledger.pb`, a LedgerBase at the cut's position.

It is read from the journal as a restart would read it, so that the running ledger goes on meanwhile.
Blocks: call it from a thread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from headrace.checkpoint.storage import DamagedError, fetch, write_part
from headrace.errors import CannotResumeError, HeadraceError, SnapshotFailedError
from headrace.failpoints import reach
from headrace.replay.base import to_base
from headrace.replay.events import SCHEMA_VERSION
from headrace.replay.group import LIVE
from headrace.replay.journal.base import Journal
from headrace.replay.load import load_until
from headrace.replay.resuming import Sessions
from headrace.v1 import journal_pb2, resume_pb2

FILE: Final = "ledger.pb"


def write_cut(
    journal: Journal, position: int, *, uri: str, keep_settled: int
) -> resume_pb2.CheckpointPart:
    """Write the ledger as it was at a durable position.

    Args:
        journal: Where it is read from.
        position: The cut.
        uri: The checkpoint's directory.
        keep_settled: Settled groups that it holds one by one; the others are in its counts.

    Raises:
        SnapshotFailedError: the file could not be written.

    """
    ledger = load_until(journal, position)
    base = to_base(ledger, keep_settled=keep_settled, keep_uncovered=True)
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-cut-") as folder:
            file = Path(folder) / FILE
            file.write_bytes(base.SerializeToString(deterministic=True))
            part = write_part(uri, name="ledger", owner="replay", source=file, target=FILE)
    except (OSError, HeadraceError) as error:
        raise SnapshotFailedError(f"the ledger could not be written to {uri}: {error}") from error
    reach("ledger_part.written")
    return part


def read_cut(part: resume_pb2.CheckpointPart) -> journal_pb2.LedgerBase:
    """Read it back.

    Raises:
        CannotResumeError: it is missing, damaged, or of another version.

    """
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-cut-") as folder:
            fetch(part, Path(folder) / "part")
            data = (Path(folder) / "part" / FILE).read_bytes()
        base = journal_pb2.LedgerBase.FromString(data)
    except (DamagedError, OSError, HeadraceError, DecodeError) as error:
        raise CannotResumeError(f"the ledger in {part.uri} cannot be read: {error}") from error
    if base.schema_version != SCHEMA_VERSION:
        raise CannotResumeError(
            f"the ledger in {part.uri} has schema {base.schema_version}; this version of headrace "
            f"reads {SCHEMA_VERSION}"
        )
    return base


def sessions_of(base: journal_pb2.LedgerBase) -> Mapping[str, Sessions]:
    """Give the sessions of the live groups in a cut."""
    return {
        stored.group.uid: {record.session: record for record in stored.group.sessions}
        for stored in base.groups
        if stored.group.state in LIVE
    }
