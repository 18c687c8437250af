"""From a journal to a ledger."""

from __future__ import annotations

from headrace.errors import UsageError
from headrace.replay.base import from_base
from headrace.replay.events import SCHEMA_VERSION
from headrace.replay.journal.base import Journal, JournalDamagedError
from headrace.replay.ledger import Ledger
from headrace.replay.settings import LedgerSettings
from headrace.v1 import journal_pb2


def open_ledger(
    journal: Journal, settings: LedgerSettings, *, run_id: str, new_lineage: str
) -> Ledger:
    """Load the journal; an empty one begins a run, whose first event is still to be written.

    Raises:
        UsageError: the run was begun with another id, n, batch size, basis or temperature.
        JournalDamagedError: a record that this version cannot read.

    """
    wanted = journal_pb2.RunOpened(
        run_id=run_id,
        lineage=new_lineage,
        n=settings.n,
        train_batch_size=settings.batch_size,
        basis=settings.basis,
        temperature=settings.temperature,
    )
    if not journal.position:
        return Ledger(wanted)
    ledger = load_until(journal, journal.position)
    ledger.temperature = ledger.temperature or settings.temperature
    opened = journal_pb2.RunOpened(
        run_id=ledger.run_id,
        n=ledger.n,
        train_batch_size=ledger.batch_size,
        basis=ledger.basis,
        temperature=ledger.temperature,
    )
    _check_same_run(opened, wanted)
    return ledger


def load_until(journal: Journal, position: int) -> Ledger:
    """Load the ledger as it was at a durable position, which no base lies behind.

    Raises:
        JournalDamagedError: a record that this version cannot read.

    """
    base = journal.base
    if base is not None and base.position > position:
        msg = f"the journal was compacted up to {base.position}: position {position} is gone"
        raise JournalDamagedError(msg)
    records = journal.replay(after_position=base.position if base else 0)
    if base is not None:
        _check_schema(base.schema_version, base.position)
        ledger = from_base(base)
    else:
        first = next(records)
        _check_schema(first.schema_version, 1)
        if first.WhichOneof("event") != "run_opened":
            msg = "the journal does not begin with the run's opening"
            raise JournalDamagedError(msg)
        ledger = Ledger(first.run_opened)
        ledger.take_events()
    for record in records:
        if record.position > position:
            break
        _check_schema(record.schema_version, record.position)
        if record.WhichOneof("event") is None:
            msg = f"journal record {record.position} is of a kind that this version does not know"
            raise JournalDamagedError(msg)
        ledger.apply(record)
    return ledger


def _check_schema(version: int, position: int) -> None:
    if version != SCHEMA_VERSION:
        msg = (
            f"journal record {position} has schema {version}; this version of headrace reads "
            f"{SCHEMA_VERSION}"
        )
        raise JournalDamagedError(msg)


def _check_same_run(opened: journal_pb2.RunOpened, wanted: journal_pb2.RunOpened) -> None:
    names = {
        "run_id": "run.run_id",
        "n": "rollout.n",
        "train_batch_size": "data.train_batch_size",
        "basis": "sampler.basis",
        "temperature": "rollout.temperature",
    }
    for field, key in names.items():
        before, now = getattr(opened, field), getattr(wanted, field)
        if before != now:
            msg = (
                f"this run was begun with {key} = {before}, now it is {now}: set it back, or start "
                "a new run in another run.run_dir"
            )
            raise UsageError(msg)
