"""From a journal to a ledger."""

from __future__ import annotations

from headrace.errors import UsageError
from headrace.replay.events import SCHEMA_VERSION
from headrace.replay.journal.base import Journal, JournalDamagedError
from headrace.replay.ledger import Ledger
from headrace.replay.settings import LedgerSettings
from headrace.v1 import journal_pb2


def open_ledger(
    journal: Journal, settings: LedgerSettings, *, run_id: str, new_lineage: str
) -> Ledger:
    """Replay the journal; an empty one begins a run, whose first event is still to be written.

    Raises:
        UsageError: the run was begun with another id, n, batch size or basis.
        JournalDamagedError: a record that this version cannot read.

    """
    records = journal.replay()
    first = next(records, None)
    wanted = journal_pb2.RunOpened(
        run_id=run_id,
        lineage=new_lineage,
        n=settings.n,
        train_batch_size=settings.batch_size,
        basis=settings.basis,
    )
    if first is None:
        return Ledger(wanted)
    _check_schema(first)
    if first.WhichOneof("event") != "run_opened":
        msg = "the journal does not begin with the run's opening"
        raise JournalDamagedError(msg)
    _check_same_run(first.run_opened, wanted)
    ledger = Ledger(first.run_opened)
    ledger.take_events()
    for record in records:
        _check_schema(record)
        ledger.apply(record)
    return ledger


def _check_schema(record: journal_pb2.JournalRecord) -> None:
    if record.schema_version != SCHEMA_VERSION or record.WhichOneof("event") is None:
        msg = (
            f"journal record {record.position} has schema {record.schema_version}; this version "
            f"of headrace reads {SCHEMA_VERSION}"
        )
        raise JournalDamagedError(msg)


def _check_same_run(opened: journal_pb2.RunOpened, wanted: journal_pb2.RunOpened) -> None:
    names = {
        "run_id": "run.run_id",
        "n": "rollout.n",
        "train_batch_size": "data.train_batch_size",
        "basis": "sampler.basis",
    }
    for field, key in names.items():
        before, now = getattr(opened, field), getattr(wanted, field)
        if before != now:
            msg = (
                f"this run was begun with {key} = {before}, now it is {now}: set it back, or start "
                "a new run in another run.run_dir"
            )
            raise UsageError(msg)
