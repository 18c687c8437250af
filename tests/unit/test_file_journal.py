"""The file journal: what was acknowledged is there, what was torn is cut, two writers never."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from headrace.errors import UsageError, WriterFencedError
from headrace.replay.events import to_record
from headrace.replay.journal.base import JournalDamagedError
from headrace.replay.journal.file import FileJournal
from headrace.replay.journal.segment import MAGIC
from headrace.v1 import journal_pb2

LOG = "events-0000000000000001.log"


def records(first: int, count: int) -> list[journal_pb2.JournalRecord]:
    return [
        to_record(journal_pb2.CreditAdded(request_id=f"q{i}", count=i), i)
        for i in range(first, first + count)
    ]


def positions(journal: FileJournal) -> list[int]:
    return [record.position for record in journal.replay()]


def test_what_was_appended_is_read_back_in_order(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=True)
    journal.append(records(1, 3))
    journal.append(records(4, 2))
    again = FileJournal(tmp_path, fsync=True)
    assert positions(again) == [1, 2, 3, 4, 5]
    assert [r.position for r in again.replay(after_position=3)] == [4, 5]
    assert [r.credit_added.count for r in again.read([5, 2])] == [5, 2]
    assert again.position == 5


@hypothesis_settings(deadline=None)
@given(cut=st.integers(1, 200), garbage=st.binary(max_size=40))
def test_a_torn_tail_is_cut_at_the_last_whole_record_and_reported(
    tmp_path_factory: pytest.TempPathFactory, cut: int, garbage: bytes
) -> None:
    directory = tmp_path_factory.mktemp("journal")
    journal = FileJournal(directory, fsync=False)
    journal.append(records(1, 3))
    whole = (directory / LOG).stat().st_size
    journal.append(records(4, 4))
    log = directory / LOG
    data = log.read_bytes()
    kept = data[: max(whole, len(data) - cut)]
    log.write_bytes(kept)

    again = FileJournal(directory, fsync=False)
    assert positions(again)[:3] == [1, 2, 3]
    assert again.position >= 3
    assert log.stat().st_size + again.torn_bytes == len(kept)
    again.append(records(again.position + 1, 2))
    assert positions(FileJournal(directory, fsync=False)) == list(range(1, again.position + 1))


def test_a_bad_checksum_at_the_very_end_is_a_torn_tail(tmp_path: Path) -> None:
    FileJournal(tmp_path, fsync=False).append(records(1, 2))
    log = tmp_path / LOG
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    again = FileJournal(tmp_path, fsync=False)
    assert positions(again) == [1]
    assert again.torn_bytes > 0


def test_damage_before_the_tail_is_refused(tmp_path: Path) -> None:
    FileJournal(tmp_path, fsync=False).append(records(1, 3))
    log = tmp_path / LOG
    data = bytearray(log.read_bytes())
    data[len(MAGIC) + 10] ^= 1
    log.write_bytes(data)
    with pytest.raises(JournalDamagedError, match="damaged at byte"):
        FileJournal(tmp_path, fsync=False)


@pytest.mark.parametrize("byte", range(4))
def test_a_damaged_length_is_no_torn_tail(tmp_path: Path, byte: int) -> None:
    FileJournal(tmp_path, fsync=False).append(records(1, 3))
    log = tmp_path / LOG
    data = bytearray(log.read_bytes())
    data[len(MAGIC) + byte] ^= 0x80
    log.write_bytes(data)

    with pytest.raises(JournalDamagedError, match=rf"before its tail.*move {tmp_path} away"):
        FileJournal(tmp_path, fsync=False)

    assert log.read_bytes() == data


def test_zeros_that_a_power_loss_left_at_the_end_are_a_torn_tail(tmp_path: Path) -> None:
    FileJournal(tmp_path, fsync=False).append(records(1, 2))
    log = tmp_path / LOG
    whole = log.read_bytes()
    log.write_bytes(whole + bytes(4096))
    again = FileJournal(tmp_path, fsync=False)
    assert (again.torn_bytes, positions(again)) == (4096, [1, 2])

    log.write_bytes(whole + bytes(64) + whole[len(MAGIC) :])
    with pytest.raises(JournalDamagedError, match="before its tail"):
        FileJournal(tmp_path, fsync=False)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / LOG).write_bytes(b"something else entirely")
    with pytest.raises(JournalDamagedError, match="not a headrace journal"):
        FileJournal(tmp_path, fsync=False)


def test_the_older_of_two_writers_is_fenced_and_writes_nothing(tmp_path: Path) -> None:
    older = FileJournal(tmp_path, fsync=False)
    older.append(records(1, 1))
    newer = FileJournal(tmp_path, fsync=False)
    with pytest.raises(WriterFencedError):
        older.append(records(2, 1))
    newer.append(records(2, 1))
    assert newer.writer_epoch == older.writer_epoch + 1
    assert [r.writer_epoch for r in newer.replay()] == [1, 2]


def test_a_thread_that_trims_does_not_let_another_writer_into_an_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = FileJournal(tmp_path, fsync=True)
    syncing, synced = threading.Event(), threading.Event()

    def slow_disk(fd: int) -> None:
        syncing.set()
        synced.wait()

    monkeypatch.setattr(os, "fdatasync", slow_disk)
    append = threading.Thread(target=journal.append, args=(records(1, 1),))
    append.start()
    syncing.wait()
    trim = threading.Thread(target=journal.trim, args=(1,))
    trim.start()
    trim.join(0.2)
    with (tmp_path / "lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    synced.set()
    append.join()
    trim.join()
    assert journal.position == 1


def test_a_reader_does_not_fence_the_writer_nor_cut_its_tail(tmp_path: Path) -> None:
    writer = FileJournal(tmp_path, fsync=False)
    writer.append(records(1, 1))
    reader = FileJournal(tmp_path, fsync=False, writable=False)
    assert positions(reader) == [1]
    writer.append(records(2, 1))


def test_a_directory_that_cannot_be_used_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be opened"):
        FileJournal(tmp_path / "file" / "journal", fsync=False)
    with pytest.raises(UsageError, match="cannot be opened"):
        FileJournal(tmp_path / "missing", fsync=False, writable=False)
    (tmp_path / "lock").write_text("")
    with pytest.raises(UsageError, match="holds no journal"):
        FileJournal(tmp_path, fsync=False, writable=False)


def test_records_go_on_in_a_new_segment_and_old_segments_can_go(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=False, segment_events=2)
    for position in range(1, 8):
        journal.append(records(position, 1))
    assert positions(FileJournal(tmp_path, fsync=False, writable=False)) == list(range(1, 8))
    journal.trim(5)
    assert journal.first_position == 1, "nothing goes that no base covers"
    journal.write_base(journal_pb2.LedgerBase(position=6))
    journal.trim(5)
    assert journal.first_position == 5
    assert journal.read([3, 6])[0].position == 6

    again = FileJournal(tmp_path, fsync=False)
    assert again.base == journal.base
    assert (again.first_position, again.position) == (5, 7)
    assert [r.position for r in again.replay(after_position=6)] == [7]


def test_a_damaged_base_or_a_missing_segment_is_refused(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=False, segment_events=2)
    for position in range(1, 7):
        journal.append(records(position, 1))
    journal.write_base(journal_pb2.LedgerBase(position=2))
    middle = tmp_path / "events-0000000000000003.log"
    data = middle.read_bytes()
    middle.unlink()
    with pytest.raises(JournalDamagedError, match="does not reach"):
        FileJournal(tmp_path, fsync=False)
    middle.write_bytes(data)
    base = tmp_path / "base-0000000000000002.pb"
    base.write_bytes(base.read_bytes() + b"x")
    with pytest.raises(JournalDamagedError, match="is damaged"):
        FileJournal(tmp_path, fsync=False)
