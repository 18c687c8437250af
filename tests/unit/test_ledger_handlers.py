"""What changes the ledger, by the kinds of events."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import pytest

from headrace import replay
from headrace.replay.ledger import HANDLERS, Ledger
from headrace.v1 import journal_pb2 as journal


def test_every_kind_of_event_is_handled_once() -> None:
    kinds = [each.name for each in journal.JournalRecord.DESCRIPTOR.oneofs_by_name["event"].fields]
    names = [each.name for each in pkgutil.iter_modules(replay.__path__)]
    modules = [
        import_module(f"headrace.replay.{name}") for name in names if name.endswith("_events")
    ]
    handled = [kind for module in modules for kind in module.HANDLERS]
    assert sorted(handled) == sorted(HANDLERS) == sorted(kinds)


def test_a_record_without_an_event_that_is_known_is_an_error() -> None:
    ledger = Ledger(journal.RunOpened(run_id="r", n=1, train_batch_size=1))
    with pytest.raises(KeyError, match="unknown"):
        ledger.apply(journal.JournalRecord(position=2))
