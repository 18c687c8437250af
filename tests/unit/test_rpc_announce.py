"""A process announces where it listens, as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.rpc import announce


def test_what_was_announced_is_read(tmp_path: Path) -> None:
    path = tmp_path / "endpoints" / "replay.json"
    announce.write(path, "127.0.0.1:40001", metrics="127.0.0.1:40002")
    assert announce.read(path) == announce.Announcement(
        "127.0.0.1:40001", os.getpid(), "127.0.0.1:40002"
    )


def test_a_later_announcement_replaces_the_first_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    announce.write(path, "127.0.0.1:1")
    announce.write(path, "127.0.0.1:2")
    assert announce.read(path) == announce.Announcement("127.0.0.1:2", os.getpid())
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_announced_is_none(tmp_path: Path) -> None:
    assert announce.read(tmp_path / "replay.json") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"address": "a:1", "pid": "x"}', "null"])
def test_a_file_that_announces_nothing_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "replay.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"replay\.json"):
        announce.read(path)


def test_a_file_that_cannot_be_written_or_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "endpoints").write_text("a file where a folder should be")
    path = tmp_path / "endpoints" / "replay.json"
    with pytest.raises(
        UsageError, match=r"replay\.json: Not a directory|replay\.json: File exists"
    ):
        announce.write(path, "127.0.0.1:1")
    with pytest.raises(UsageError, match=r"replay\.json: Not a directory"):
        announce.read(path)
