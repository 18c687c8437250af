"""Folders of `Dataset.save_to_disk`. The one in tests/data/hf was written by datasets 5.2.0."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.config.data import DataConfig, HfSource
from headrace.errors import UsageError
from headrace.feeder.sources.load import open_source
from headrace.feeder.sources.source import Source

REAL = Path(__file__).parents[1] / "data" / "hf"
TRAIN = ["16", "22", "8", "14", "10", "0", "2", "18", "4", "20"]
"""The answers of its training split, in order: it was shuffled before it was saved."""


def opened(path: Path, **settings: Any) -> Source:
    source = HfSource(kind="hf", path=path, **settings)
    return open_source(DataConfig(source=source, train_batch_size=1))


def saved(folder: Path, *files: list[dict[str, Any]], split: str | None = None) -> Path:
    """Write a folder as `save_to_disk` does, of two rows a batch."""
    folder.mkdir(exist_ok=True)
    names = [f"data-{i:05}-of-{len(files):05}.arrow" for i in range(len(files))]
    for name, rows in zip(names, files, strict=True):
        table = pa.Table.from_pylist(rows)
        with (
            pa.OSFile(str(folder / name), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as w,
        ):
            w.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names], "_split": split}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def numbered(count: int, *, first: int = 0) -> list[dict[str, Any]]:
    return [{"prompt": f"p{i}", "answer": f"a{i}"} for i in range(first, first + count)]


def test_a_folder_that_datasets_wrote_is_read_without_it() -> None:
    source = opened(REAL, split="train")

    assert [source[i].answer for i in range(len(source))] == TRAIN
    assert source[9].prompt == "10+10?"
    assert source[9].data_source == "hf"
    assert source[9].metadata == {
        "level": 1,
        "chat": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "10+10?"},
        ],
    }
    assert len(opened(REAL, split="test")) == 2


def test_chat_messages_in_a_column_are_a_prompt() -> None:
    row = opened(REAL, split="test", prompt_key="chat", keep=["level"])[1]

    assert row.prompt == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "11+11?"},
    ]
    assert (row.answer, row.metadata) == ("22", {"level": 2})


def test_a_row_is_found_by_number_across_files_and_batches(tmp_path: Path) -> None:
    source = opened(saved(tmp_path / "words", numbered(5), numbered(4, first=5)))

    assert len(source) == 9
    for index in (8, 0, 5, 4, 6, 1):
        assert source[index].prompt == f"p{index}"
    assert source[0].data_source == "words"


def test_a_split_must_be_named_if_there_are_some_and_only_then(tmp_path: Path) -> None:
    for settings, message in (
        ({}, r"data\.source\.split: is required: .*hf has the splits train, test"),
        ({"split": "dev"}, r"has no 'dev'; the splits are: train, test"),
    ):
        with pytest.raises(UsageError, match=message):
            opened(REAL, **settings)
    single = saved(tmp_path / "one", numbered(2), split="train")
    assert len(opened(single)) == len(opened(single, split="train")) == 2
    with pytest.raises(UsageError, match=r"one data set and not its split 'test'; leave"):
        opened(single, split="test")


def test_what_is_no_such_folder_is_one_clear_error(tmp_path: Path) -> None:
    broken = saved(tmp_path / "broken", numbered(2))
    (broken / "data-00000-of-00001.arrow").write_bytes(b"no arrow")
    gone = saved(tmp_path / "gone", numbered(2))
    (gone / "data-00000-of-00001.arrow").unlink()
    for name, state in (
        ("text", "{"),
        ("list", "[]"),
        ("nothing", "{}"),
        ("odd", '{"_data_files": [3]}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text(state)
    for name, message in (
        ("broken", r"cannot read .*arrow as an Arrow stream: Arrow"),
        ("gone", r"cannot read .*arrow: No such file"),
        ("text", r"text/state\.json is not JSON: Expecting"),
        ("list", r"list/state\.json is not a JSON object"),
        ("nothing", r"nothing/state\.json names no data files"),
        ("odd", r"odd/state\.json names no data files"),
        (
            "nowhere",
            r"nowhere is no folder that Dataset\.save_to_disk wrote: .*state\.json: No such",
        ),
    ):
        with pytest.raises(UsageError, match=message) as raised:
            opened(tmp_path / name)
        assert "\n" not in str(raised.value)


def test_a_bad_column_or_row_is_one_clear_error(tmp_path: Path) -> None:
    good = numbered(3)
    for rows, message in (
        ([{"q": "a", "answer": ""}], r"no column 'prompt'; the columns are: q, answer; set data"),
        ([*good, {"prompt": "", "answer": ""}], r"arrow, row 3: prompt: is empty"),
        ([*good, {"prompt": None, "answer": ""}], r"arrow, row 3: prompt: must be text or a list"),
    ):
        with pytest.raises(UsageError, match=message):
            opened(saved(tmp_path / "a", rows))
    schema = pa.schema([("prompt", pa.string()), ("answer", pa.string())])
    folder = saved(tmp_path / "none", good)
    with pa.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), schema):
        pass
    with pytest.raises(UsageError, match=r"none has no rows"):
        opened(folder)


def test_the_fingerprint_is_that_of_the_content(tmp_path: Path) -> None:
    first = opened(REAL, split="train").fingerprint()
    shutil.copytree(REAL, tmp_path / "moved")

    assert opened(tmp_path / "moved", split="train").fingerprint() == first
    assert opened(REAL, split="test").fingerprint() != first
    assert opened(REAL, split="train", keep=[]).fingerprint() != first
