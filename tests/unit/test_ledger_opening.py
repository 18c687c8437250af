"""What a run was begun with stays: a journal opens for the same run only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ledger_world import settings

from headrace.errors import UsageError
from headrace.replay.base import to_base
from headrace.replay.events import to_record
from headrace.replay.journal.file import FileJournal
from headrace.replay.ledger import Ledger
from headrace.replay.load import open_ledger
from headrace.replay.settings import LedgerSettings
from headrace.v1 import journal_pb2

RULES = replace(settings(), temperature=0.7)


def opened(directory: Path, rules: LedgerSettings) -> Ledger:
    journal = FileJournal(directory, fsync=False)
    return open_ledger(journal, rules, run_id="r", new_lineage="a")


def begin(directory: Path, **changes: float) -> None:
    event = journal_pb2.RunOpened(
        run_id="r",
        lineage="a",
        n=RULES.n,
        train_batch_size=RULES.batch_size,
        basis=RULES.basis,
    )
    for name, value in changes.items():
        setattr(event, name, value)
    FileJournal(directory, fsync=False).append([to_record(event, 1)])


def test_a_run_keeps_the_temperature_that_it_was_begun_with(tmp_path: Path) -> None:
    assert opened(tmp_path, RULES).temperature == 0.7
    begin(tmp_path, temperature=0.7)
    ledger = opened(tmp_path, RULES)
    assert to_base(ledger, keep_settled=0).run_opened.temperature == 0.7
    with pytest.raises(UsageError, match=r"begun with rollout\.temperature = 0\.7, now it is 1\.0"):
        opened(tmp_path, replace(RULES, temperature=1.0))


def test_a_run_of_before_temperatures_were_written_down_takes_the_one_it_has(
    tmp_path: Path,
) -> None:
    begin(tmp_path)
    assert to_base(opened(tmp_path, RULES), keep_settled=0).run_opened.temperature == 0.7
