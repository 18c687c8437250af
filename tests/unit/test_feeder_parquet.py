from __future__ import annotations

import datetime as dt
import decimal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.config.data import DataConfig, ParquetSource
from headrace.errors import UsageError
from headrace.feeder.sources import parquet as parquet_module
from headrace.feeder.sources.load import open_source
from headrace.feeder.sources.source import Row, Source

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]


def write(path: Path, rows: list[dict[str, Any]], *, group: int = 3, **columns: Any) -> Path:
    table = pa.Table.from_pylist(rows)
    for name, values in columns.items():
        table = table.append_column(name, values)
    pq.write_table(table, path, row_group_size=group)
    return path


def numbered(count: int, *, first: int = 0) -> list[dict[str, Any]]:
    return [{"prompt": f"p{i}", "answer": f"a{i}"} for i in range(first, first + count)]


def opened(path: Path, **settings: Any) -> Source:
    source = ParquetSource(kind="parquet", path=path, **settings)
    return open_source(DataConfig(source=source, train_batch_size=1))


def all_rows(source: Source) -> list[Row]:
    return [source[i] for i in range(len(source))]


def test_a_row_is_found_by_number_across_row_groups(tmp_path: Path) -> None:
    source = opened(write(tmp_path / "rows.parquet", numbered(10), group=3))

    assert len(source) == 10
    for index in (9, 0, 5, 3, 2, 8):
        assert source[index] == Row(f"p{index}", f"a{index}", "rows", {})


def test_a_folder_and_a_pattern_are_their_files_by_name(tmp_path: Path) -> None:
    for name, first in (("b-1", 5), ("a-2", 2), ("a-1", 0)):
        count = {"a-1": 2, "a-2": 3, "b-1": 4}[name]
        write(tmp_path / f"{name}.parquet", numbered(count, first=first))
    (tmp_path / "inner").mkdir()
    write(tmp_path / "inner" / "c.parquet", numbered(1, first=9))
    (tmp_path / "_metadata.parquet").write_bytes(b"not read")
    (tmp_path / "README.md").write_text("not read")

    assert [row.prompt for row in all_rows(opened(tmp_path))] == [f"p{i}" for i in range(10)]
    assert [row.prompt for row in all_rows(opened(tmp_path / "a-*.parquet"))] == [
        f"p{i}" for i in range(5)
    ]
    assert [row.prompt for row in all_rows(opened(tmp_path / "*" / "*.parquet"))] == ["p9"]


def test_chat_messages_and_other_columns_come_as_json_has_them(tmp_path: Path) -> None:
    day = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    rows = [
        {"prompt": CHAT, "answer": 4, "day": day, "price": decimal.Decimal("1.50"), "tags": ["x"]},
        {"prompt": [{"role": "user", "content": "hi", "name": "Ann"}], "answer": 5, "tags": None},
    ]
    good = write(tmp_path / "a.parquet", rows[:1])
    [row] = all_rows(opened(good))

    assert row.prompt == CHAT
    assert row.answer == "4"
    assert row.metadata == {"day": day.isoformat(), "price": "1.50", "tags": ["x"]}
    # A key that one message has is a null of all others in the file: only a value counts.
    mixed = write(tmp_path / "b.parquet", [*rows[:1], *numbered_chats(rows[1])])
    with pytest.raises(UsageError, match=r"b\.parquet, row 1: prompt: a chat message must have"):
        opened(mixed)


def numbered_chats(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**row, "day": None, "price": None}]


def test_the_columns_that_are_kept_can_be_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        [{"q": "a", "level": 1, "image": b"\x89PNG", "answer": "no"}],
    )
    [row] = all_rows(opened(path, prompt_key="q", answer_key=None, keep=["level"]))

    assert row == Row("a", "", "a", {"level": 1})
    with pytest.raises(UsageError, match=r"row 0: image: holds bytes, .*data\.source\.keep"):
        opened(path, prompt_key="q")
    with pytest.raises(UsageError, match=r"no column 'levle'; the columns are: q, level, image"):
        opened(path, prompt_key="q", keep=["levle"])


def test_a_rows_own_data_source_is_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [{"prompt": "a", "answer": "", "data_source": "gsm8k"}])

    assert opened(path)[0].data_source == "gsm8k"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"question": "a", "answer": "b", "level": 1}],
            r"a\.parquet: no column 'prompt'; the columns are: question, answer, level; "
            r"set data\.source\.prompt_key",
        ),
        ([{"prompt": "a"}], r"no column 'answer'; .*null if there are no answers"),
        ([*numbered(4), {"prompt": "", "answer": ""}], r"a\.parquet, row 4: prompt: is empty"),
        ([*numbered(4), {"prompt": None, "answer": ""}], r"row 4: prompt: must be text or a list"),
        ([{"prompt": 3, "answer": ""}], r"row 0: prompt: must be text or a list .*3 \(int\)"),
        ([{"prompt": ["a"], "answer": ""}], r"row 0: prompt: a chat message must have"),
        (
            [{"prompt": "a", "answer": "", "score": float("nan")}],
            r"row 0: its other columns cannot be written as JSON",
        ),
    ],
)
def test_a_bad_file_is_one_clear_error_at_opening(
    rows: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.parquet", rows)

    with pytest.raises(UsageError, match=message) as raised:
        opened(path)
    assert "\n" not in str(raised.value)


def test_what_is_no_parquet_file_or_not_there_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("prompt,answer\n")
    cut = write(tmp_path / "cut.parquet", numbered(5))
    cut.write_bytes(cut.read_bytes()[:-20])
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, message in (
        (tmp_path / "text.parquet", r"cannot read .*text\.parquet as parquet: Arrow"),
        (cut, r"cannot read .*cut\.parquet as parquet: Arrow"),
        (tmp_path / "nowhere.parquet", r"cannot read .*nowhere\.parquet: No such file"),
        (empty, r"empty has no \.parquet files"),
        (tmp_path / "x-*.parquet", r"x-\*\.parquet matches no file"),
    ):
        with pytest.raises(UsageError, match=r"data\.source\.path: .*" + message) as raised:
            opened(path)
        assert "\n" not in str(raised.value)


def test_no_rows_is_one_clear_error(tmp_path: Path) -> None:
    schema = pa.schema([("prompt", pa.string()), ("answer", pa.string())])
    pq.write_table(schema.empty_table(), tmp_path / "a.parquet")

    with pytest.raises(UsageError, match=r"a\.parquet has no rows"):
        opened(tmp_path / "a.parquet")


def test_a_file_that_was_damaged_after_opening_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_module, "CACHE_BYTES", 0)
    path = write(tmp_path / "a.parquet", numbered(100), group=50)
    source = opened(path)
    path.unlink()

    with pytest.raises(UsageError, match=r"cannot read .*a\.parquet as parquet: FileNotFound"):
        source[0]


def test_decoded_row_groups_are_kept_up_to_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet", numbered(40), group=10)
    decoded: list[int] = []
    decode = parquet_module.RowGroups._decode

    def counted(self: parquet_module.RowGroups, chunk: Any) -> Any:
        decoded.append(chunk.number)
        return decode(self, chunk)

    monkeypatch.setattr(parquet_module.RowGroups, "_decode", counted)
    source = opened(path)
    for index in (39, 0, 25, 13):
        assert source[index].prompt == f"p{index}"
    assert decoded == [0, 1, 2, 3]

    one_group = pq.ParquetFile(path).read_row_group(0).nbytes
    monkeypatch.setattr(parquet_module, "CACHE_BYTES", 2.5 * one_group)
    source = opened(path)
    decoded.clear()
    for index in (39, 25, 0, 26, 38):  # groups 2 and 3 are there; 0 puts 3 out, and 3 puts 0 out
        assert source[index].prompt == f"p{index}"
    assert decoded == [0, 3]


def test_the_fingerprint_is_that_of_the_content(tmp_path: Path) -> None:
    first = opened(write(tmp_path / "a.parquet", numbered(4))).fingerprint()

    assert opened(write(tmp_path / "b.parquet", numbered(4))).fingerprint() == first
    assert opened(write(tmp_path / "b.parquet", numbered(5))).fingerprint() != first
    assert opened(tmp_path / "a.parquet", answer_key=None).fingerprint() != first
    assert opened(tmp_path / "a.parquet", keep=[]).fingerprint() != first


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"
        "from headrace.config.data import DataConfig\n"
        "from headrace.errors import UsageError\n"
        "from headrace.feeder.sources.load import open_source\n"
        f"s = {{'kind': 'parquet', 'path': {str(write(tmp_path / 'a.parquet', numbered(1)))!r}}}\n"
        "try:\n"
        "    open_source(DataConfig(source=s, train_batch_size=1))\n"
        "except UsageError as error:\n"
        "    assert \"pip install 'headrace[feeder]'\" in str(error), error\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
