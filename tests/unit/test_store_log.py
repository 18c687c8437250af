"""The store's log: what was appended comes back, whatever happened to the files."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.errors import NotReadyError, UsageError
from headrace.store.log import StoreLog
from headrace.store.segment import MARKER, row_bytes
from headrace.trajectory.chunks import Value


def begin(directory: Path, *, segment_bytes: int = 2**20, life: str = "life1") -> StoreLog:
    log = StoreLog.open(directory, run_id="run", new_incarnation=life, fsync=False)
    log.segment_bytes = segment_bytes
    return log


@contextmanager
def opened(
    directory: Path, *, segment_bytes: int = 2**20
) -> Iterator[tuple[StoreLog, dict[str, bytes]]]:
    """Open the log as another life of the store; give it and what it still has."""
    log = begin(directory, segment_bytes=segment_bytes, life="life2")
    try:
        yield log, {value.key: value.data for value in log.recover()}
    finally:
        log.close()


def filled(directory: Path, values: Sequence[Value], *, segment_bytes: int = 2**20) -> None:
    log = begin(directory, segment_bytes=segment_bytes)
    assert list(log.recover()) == []
    for value in values:
        log.append([value])
    log.close()


def value(number: int, *, size: int = 40) -> Value:
    data = bytes([number % 251]) * (size - len(MARKER)) + MARKER
    return Value.sealed(f"e0r{number}_0_0_ab12a1", data)


def contents(values: Sequence[Value]) -> dict[str, bytes]:
    return {value.key: value.data for value in values}


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("rows-*.log"))


@contextmanager
def no_file_beyond(size_bytes: int) -> Iterator[None]:
    """Let the disk be full at this size of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        with structlog.testing.capture_logs():  # or they would be refused, too
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_rows_come_back_in_order_under_the_same_incarnation(tmp_path: Path) -> None:
    put = [value(number) for number in range(20)]
    filled(tmp_path, put, segment_bytes=200)

    with opened(tmp_path) as (log, found):
        assert list(found.items()) == [(one.key, one.data) for one in put]
        assert log.incarnation == "life1"
        assert not log.is_new
        assert (log.torn_bytes, log.damaged_count) == (0, 0)
    assert len(segments(tmp_path)) > 3


def test_what_was_deleted_does_not_come_back(tmp_path: Path) -> None:
    put = [value(number) for number in range(12)]
    log = begin(tmp_path, segment_bytes=200)
    assert list(log.recover()) == []
    log.append(put[:6])
    log.append(put[6:])
    log.forget([put[1].key, put[7].key, "unknown"])
    log.close()

    with opened(tmp_path) as (_, found):
        assert found == contents([one for one in put if one not in (put[1], put[7])])


def test_a_row_that_is_put_again_after_its_deletion_is_there(tmp_path: Path) -> None:
    log = begin(tmp_path)
    assert list(log.recover()) == []
    log.append([value(1), value(2)])
    log.forget([value(1).key])
    log.append([value(1)])
    log.close()

    with opened(tmp_path) as (_, found):
        assert found == contents([value(1), value(2)])


def test_of_two_values_under_a_key_the_later_counts(tmp_path: Path) -> None:
    later = Value.sealed(value(1).key, b"later")
    log = begin(tmp_path)
    assert list(log.recover()) == []
    log.append([value(1)])
    log.append([later])
    assert log.live_bytes == row_bytes(later)
    log.close()

    with opened(tmp_path) as (log, found):
        assert found == {later.key: b"later"}
        log.forget([later.key])
    with opened(tmp_path) as (_, found):
        assert found == {}


def test_a_torn_append_is_cut_off_wherever_it_ended(tmp_path: Path) -> None:
    filled(tmp_path, [value(1), value(2)])
    [path] = segments(tmp_path)
    whole = path.read_bytes()
    first = row_bytes(value(1))
    for size in range(first + 1, len(whole)):
        path.write_bytes(whole[:size])
        with opened(tmp_path) as (log, found):
            assert found == contents([value(1)])
            assert (log.torn_bytes, log.damaged_count) == (size - first, 0)
            log.append([value(3)])
        with opened(tmp_path) as (log, found):
            assert found == contents([value(1), value(3)])
            assert log.torn_bytes == 0


def test_a_flipped_bit_costs_the_row_it_is_in_and_no_other(tmp_path: Path) -> None:
    put = [value(number) for number in range(3)]
    filled(tmp_path, put)
    [path] = segments(tmp_path)
    whole = path.read_bytes()
    size = row_bytes(put[0])
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with opened(tmp_path) as (log, found):
            assert found == contents([one for i, one in enumerate(put) if i != at // size])
            assert log.damaged_count + bool(log.torn_bytes) == 1


def test_what_is_damaged_is_said_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path, [value(1), value(2)])
    [path] = segments(tmp_path)
    data = bytearray(path.read_bytes())
    data[row_bytes(value(1)) - 1] ^= 1
    path.write_bytes(data)

    with opened(tmp_path) as (log, _):
        assert log.damaged_count == 1

    said = capsys.readouterr()
    assert "store_log_damaged" in said.out + said.err
    assert value(1).key in said.out + said.err


def test_a_damaged_list_of_the_dead_brings_back_only_what_it_named_there(tmp_path: Path) -> None:
    put = [value(number) for number in range(4)]
    filled(tmp_path, put)
    with opened(tmp_path) as (log, _):
        log.forget([put[0].key])
        log.forget([put[1].key])
    [dead] = tmp_path.glob("dead-*.log")
    data = bytearray(dead.read_bytes())
    data[0] ^= 1
    dead.write_bytes(data[:-3] if len(data) > 24 else data + b"torn")

    with opened(tmp_path) as (log, found):
        assert found == contents([put[0], put[2], put[3]])
        log.forget([put[2].key])
    with opened(tmp_path) as (_, found):
        assert found == contents([put[0], put[3]])


def test_the_files_stay_small_over_many_puts_and_deletions(tmp_path: Path) -> None:
    log = begin(tmp_path, segment_bytes=2000)
    assert list(log.recover()) == []
    keep = [value(number) for number in range(10**6, 10**6 + 5)]
    sizes = []
    for round_number in range(300):
        rows = [value(100 * round_number + i) for i in range(10)]
        log.append([*rows, *keep[round_number : round_number + 1]])
        log.forget([one.key for one in rows])
        sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
        assert log.size_bytes <= 4 * log.live_bytes + 2 * 2000
    log.close()

    assert max(sizes[20:]) <= 2 * max(sizes[:20])
    with opened(tmp_path) as (_, found):
        assert found == contents(keep)


def test_when_all_is_deleted_nothing_is_left(tmp_path: Path) -> None:
    put = [value(number) for number in range(20)]
    log = begin(tmp_path, segment_bytes=300)
    assert list(log.recover()) == []
    log.append(put)
    log.forget([one.key for one in put])
    assert (len(log), log.size_bytes) == (0, 0)
    log.close()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "log.json"]
    with opened(tmp_path) as (_, found):
        assert found == {}


def test_a_crash_between_rewriting_and_removal_changes_nothing(tmp_path: Path) -> None:
    put = [value(number) for number in range(10)]
    log = begin(tmp_path, segment_bytes=500)
    assert list(log.recover()) == []
    log.append(put)
    log.append([value(99)])
    before = segments(tmp_path)[0].read_bytes()
    log.forget([one.key for one in put[:8]])  # the rest moves on
    log.close()
    assert segments(tmp_path)[0].name != "rows-00000001.log"
    (tmp_path / "rows-00000001.log").write_bytes(before)
    (tmp_path / "dead-00000001.log").unlink(missing_ok=True)

    with opened(tmp_path) as (log, found):
        assert {one.key for one in put[8:]} <= set(found)
        log.forget([one.key for one in put])
    with opened(tmp_path) as (_, found):
        assert found == contents([value(99)])


def test_a_list_of_the_dead_without_its_rows_kills_no_later_ones(tmp_path: Path) -> None:
    filled(tmp_path, [value(1)])
    with opened(tmp_path) as (log, _):
        log.append([value(2)])
        log.forget([value(1).key])
    segments(tmp_path)[0].unlink()

    with opened(tmp_path) as (log, found):
        assert found == {}
        log.append([value(3)])
    with opened(tmp_path) as (_, found):
        assert found == contents([value(3)])


def test_a_full_disk_refuses_the_put_and_keeps_what_was_there(tmp_path: Path) -> None:
    log = begin(tmp_path)
    assert list(log.recover()) == []
    log.append([value(1)])
    with (
        no_file_beyond(row_bytes(value(1)) + 10),
        pytest.raises(NotReadyError, match="disk full: "),
    ):
        log.append([value(2), value(3)])
    assert len(log) == 1
    assert log.size_bytes == segments(tmp_path)[0].stat().st_size == row_bytes(value(1))

    log.append([value(2), value(3)])
    log.close()

    with opened(tmp_path) as (log, found):
        assert found == contents([value(1), value(2), value(3)])
        assert log.torn_bytes == 0


def test_on_a_full_disk_deletions_make_room_and_are_written_later(tmp_path: Path) -> None:
    put = [value(number) for number in range(6)]
    log = begin(tmp_path, segment_bytes=50)
    assert list(log.recover()) == []
    for one in put[:3]:
        log.append([one])
    log.append(put[3:])
    with no_file_beyond(0):
        log.forget([put[0].key, put[3].key])
    assert len(segments(tmp_path)) == 3
    assert (
        not list(tmp_path.glob("dead-*.log"))
        or not next(iter(tmp_path.glob("dead-*.log"))).read_bytes()
    )
    log.forget([put[4].key])
    log.close()

    with opened(tmp_path) as (_, found):
        assert found == contents([put[1], put[2], put[5]])


def test_a_second_store_on_one_log_is_refused_by_name(tmp_path: Path) -> None:
    log = begin(tmp_path)
    with pytest.raises(UsageError, match=rf"in use by another store \(process {os.getpid()}\)"):
        begin(tmp_path)
    log.close()

    with opened(tmp_path) as (log, _):
        assert log.incarnation == "life1"


def test_the_log_of_another_run_is_refused_by_name(tmp_path: Path) -> None:
    filled(tmp_path, [value(1)])
    with pytest.raises(UsageError, match="belongs to run 'run', not to 'other'"):
        StoreLog.open(tmp_path, run_id="other", new_incarnation="x", fsync=False)
    with opened(tmp_path) as (_, found):
        assert found == contents([value(1)])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "is damaged"),
        ("nonsense", "is damaged"),
        ("[1]", "is damaged"),
        (None, r"log\.json is missing"),
    ],
)
def test_a_log_of_which_nobody_knows_whose_it_is_is_refused(
    tmp_path: Path, text: str | None, why: str
) -> None:
    filled(tmp_path, [value(1)])
    if text is None:
        (tmp_path / "log.json").unlink()
    else:
        (tmp_path / "log.json").write_text(text)
    with pytest.raises(UsageError, match=why):
        begin(tmp_path)


def test_a_log_of_a_later_version_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, [value(1)])
    said = json.loads((tmp_path / "log.json").read_text())
    (tmp_path / "log.json").write_text(json.dumps({**said, "version": 3}))
    with pytest.raises(UsageError, match="has version 3, this program reads version 2"):
        begin(tmp_path)


def test_a_directory_that_cannot_be_made_is_a_user_s_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be opened"):
        begin(tmp_path / "file" / "log")


class LogMachine(RuleBasedStateMachine):
    """Puts, deletions, crashes, against a dict."""

    @initialize()
    def start(self) -> None:
        import tempfile

        self.scratch = tempfile.TemporaryDirectory()
        self.log = begin(Path(self.scratch.name), segment_bytes=400)
        assert list(self.log.recover()) == []
        self.model: dict[str, bytes] = {}

    @rule(
        keys=st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True),
        size=st.integers(4, 120),
    )
    def put(self, keys: list[int], size: int) -> None:
        rows = [value(number, size=size) for number in keys]
        self.log.append(rows)
        self.model |= contents(rows)

    @rule(keys=st.sets(st.integers(0, 30), max_size=12))
    def delete(self, keys: set[int]) -> None:
        named = [value(number).key for number in keys]
        self.log.forget(named)
        for key in named:
            self.model.pop(key, None)

    @rule(torn=st.binary(max_size=30))
    def crash(self, torn: bytes) -> None:
        directory = Path(self.scratch.name)
        self.log.close()
        if torn and segments(directory):
            with segments(directory)[-1].open("ab") as file:
                file.write(torn)
        self.log = begin(directory, segment_bytes=400, life="another")
        assert {value.key: value.data for value in self.log.recover()} == self.model
        assert self.log.incarnation == "life1"

    @rule(keys=st.lists(st.integers(0, 30), min_size=1, max_size=4, unique=True))
    def put_on_a_full_disk(self, keys: list[int]) -> None:
        with no_file_beyond(0), pytest.raises(NotReadyError):
            self.log.append([value(number) for number in keys])

    @invariant()
    def the_files_are_bounded(self) -> None:
        if hasattr(self, "log"):
            assert len(self.log) == len(self.model)
            assert self.log.size_bytes <= 4 * self.log.live_bytes + 2 * (400 + 8 * 160)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
            self.scratch.cleanup()


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
