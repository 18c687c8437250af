"""The storage of checkpoints: whole files or none, hashed on the way, damage named."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest
from checkpoint_files import directory_at, write_checkpoint
from object_store import object_store

from headrace.checkpoint.directory import CheckpointDirectory
from headrace.checkpoint.storage import (
    DamagedError,
    Storage,
    fetch,
    step_name,
    verify,
    write_part,
)
from headrace.errors import UsageError
from headrace.v1.resume_pb2 import CheckpointPart, PartFile


@pytest.fixture(params=["file", "directory", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "s3":
        with object_store() as bucket:
            yield f"{bucket}/run"
    elif request.param == "memory":
        name = f"memory://{uuid4().hex}"
        yield name
        storage = fsspec.filesystem("memory")
        if storage.exists(name):
            storage.rm(name, recursive=True)
    else:
        directory = tmp_path / "storage"
        yield directory.as_uri() if request.param == "file" else str(directory)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A process's own files."""
    source = tmp_path / "mine"
    (source / "deep").mkdir(parents=True)
    (source / "a.bin").write_bytes(b"a" * 3_000_000)
    (source / "deep" / "b.bin").write_bytes(b"b")
    (source / "empty").write_bytes(b"")
    return source


def part_at(url: str, folder: Path) -> CheckpointPart:
    uri = Storage(url).join(step_name(7))
    return write_part(uri, name="trainer", owner="trainer", source=folder, target="trainer")


def test_a_part_is_fetched_as_it_was_written(url: str, folder: Path, tmp_path: Path) -> None:
    part = part_at(url, folder)

    verify(part)
    fetch(part, tmp_path / "copy")

    assert [(file.path, file.size_bytes) for file in part.files] == [
        ("trainer/a.bin", 3_000_000),
        ("trainer/deep/b.bin", 1),
        ("trainer/empty", 0),
    ]
    assert part.files[1].sha256 == hashlib.sha256(b"b").hexdigest()
    assert (tmp_path / "copy" / "trainer" / "a.bin").read_bytes() == b"a" * 3_000_000
    assert (tmp_path / "copy" / "trainer" / "empty").read_bytes() == b""


def test_a_part_that_is_written_again_has_only_its_new_files(url: str, folder: Path) -> None:
    first = part_at(url, folder)
    (folder / "a.bin").rename(folder / "c.bin")
    second = part_at(url, folder)

    verify(second)
    with pytest.raises(DamagedError, match=r"trainer/a\.bin is missing"):
        verify(first)


def test_a_part_may_be_one_file(url: str, folder: Path, tmp_path: Path) -> None:
    uri = Storage(url).join(step_name(1))
    part = write_part(
        uri, name="ledger", owner="replay", source=folder / "deep" / "b.bin", target="ledger.pb"
    )

    fetch(part, tmp_path / "copy")

    assert (tmp_path / "copy" / "ledger.pb").read_bytes() == b"b"


def test_every_damaged_file_is_named_with_both_values(url: str, folder: Path) -> None:
    part = part_at(url, folder)
    storage = Storage(part.uri)
    storage.write_bytes_atomically("trainer/a.bin", b"a" * 2_999_999 + b"x")
    storage.write_bytes_atomically("trainer/deep/b.bin", b"bb")

    with pytest.raises(DamagedError) as failed:
        verify(part)

    flipped, longer = failed.value.problems
    assert "trainer/a.bin: SHA-256 is " in flipped
    assert part.files[0].sha256 in flipped
    assert longer.endswith("trainer/deep/b.bin: 2 bytes, 1 are expected")


def test_a_look_at_sizes_alone_does_not_see_a_flipped_byte(url: str, folder: Path) -> None:
    part = part_at(url, folder)
    Storage(part.uri).write_bytes_atomically("trainer/deep/b.bin", b"x")

    verify(part, read=False)
    with pytest.raises(DamagedError):
        verify(part, read=True)


@pytest.mark.parametrize("what", ["missing", "shorter", "flipped"])
def test_nothing_is_left_of_a_fetch_that_meets_damage(
    url: str, folder: Path, tmp_path: Path, what: str
) -> None:
    part = part_at(url, folder)
    if what == "missing":
        Storage(part.uri).remove_tree("trainer/deep")
    else:
        data = b"" if what == "shorter" else b"x"
        Storage(part.uri).write_bytes_atomically("trainer/deep/b.bin", data)

    with pytest.raises(DamagedError, match=r"deep/b\.bin"):
        fetch(part, tmp_path / "copy")

    assert not (tmp_path / "copy").exists()


def test_a_file_name_that_leaves_the_directory_is_damage(url: str, tmp_path: Path) -> None:
    part = CheckpointPart(
        uri=Storage(url).join(step_name(1)), files=[PartFile(path="../../etc/passwd")]
    )

    with pytest.raises(DamagedError, match="leaves the directory"):
        fetch(part, tmp_path / "copy")


def test_steps_are_listed_newest_first_and_nothing_else_is(url: str) -> None:
    storage = Storage(url)
    assert storage.list_steps() == []
    for name in ("global_step_9/x", "global_step_10/x", "global_step_0/x", "abandoned/x", "latest"):
        storage.write_bytes_atomically(name, b"x")

    assert storage.list_steps() == [10, 9]
    assert storage.names("abandoned") == ["x"]
    assert storage.names("nowhere") == []


def test_a_directory_is_moved_with_everything_in_it_and_takes_another_s_place(url: str) -> None:
    storage = Storage(url)
    storage.write_bytes_atomically("global_step_3/manifest.json", b"{}")
    storage.write_bytes_atomically("global_step_3/trainer/a", b"new")
    storage.write_bytes_atomically("abandoned/l0/global_step_3/old", b"old")

    storage.move_tree("global_step_3", "abandoned/l0/global_step_3")

    assert not storage.exists("global_step_3")
    assert storage.names("abandoned/l0/global_step_3") == ["manifest.json", "trainer"]
    assert storage.read_bytes("abandoned/l0/global_step_3/trainer/a") == b"new"


def test_checkpoints_lie_on_any_storage(url: str, tmp_path: Path) -> None:
    directory = directory_at(url)
    for step in (2, 4, 6):
        write_checkpoint(directory, step, tmp_path / "scratch")
        directory.point_to(step)

    directory.remove(2)
    directory.move_aside(directory.look(6), "l0")
    directory.point_to(4)

    assert [(one.step, one.problems) for one in directory.find(read=True)] == [(4, ())]
    [left] = directory.find_abandoned(read=True)
    assert (left.step, left.problems, left.abandoned_line) == (6, (), "l0")
    assert directory.latest() == 4
    directory.point_to(0)
    assert directory.latest() is None


def test_removing_a_directory_twice_is_no_mistake(url: str) -> None:
    storage = Storage(url)
    storage.write_bytes_atomically("global_step_3/manifest.json", b"{}")

    storage.remove_tree("global_step_3")
    storage.remove_tree("global_step_3")

    assert not storage.exists("global_step_3")


def test_a_small_file_goes_through_its_steps_in_order(tmp_path: Path) -> None:
    storage, seen = Storage(str(tmp_path)), []

    storage.write_bytes_atomically(
        "pointer",
        b"8",
        written=lambda: seen.append(sorted(path.name for path in tmp_path.iterdir())),
        renamed=lambda: seen.append(sorted(path.name for path in tmp_path.iterdir())),
    )

    assert seen == [["pointer.tmp"], ["pointer"]]


def test_of_a_write_that_fails_nothing_is_left_and_the_old_file_stays(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    storage.write_bytes_atomically("pointer", b"7")

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device.*pointer"):
        storage.write_bytes_atomically("pointer", b"8", written=full)

    assert [path.name for path in tmp_path.iterdir()] == ["pointer"]
    assert storage.read_bytes("pointer") == b"7"


def test_a_storage_without_its_driver_is_a_line_for_the_user() -> None:
    with pytest.raises(UsageError, match=r"^checkpoint\.storage: nosuch://bucket/x .*fsspec"):
        Storage("nosuch://bucket/x")


def test_a_url_and_a_directory_name_the_same_place(tmp_path: Path) -> None:
    assert Storage(str(tmp_path)).url == Storage(tmp_path.as_uri() + "/").url == tmp_path.as_uri()


def test_a_file_in_the_place_of_the_directory_is_a_line_for_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below/it"):
        with pytest.raises(UsageError, match=rf"{tmp_path}/file is no directory"):
            Storage(str(tmp_path / place)).check_is_directory()

    Storage(str(tmp_path / "new" / "folder")).check_is_directory()


def test_other_things_with_the_name_of_a_checkpoint_are_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "global_step_3").write_text("a file")
    (tmp_path / "global_step_4" / "manifest.json").mkdir(parents=True)

    found = CheckpointDirectory(Storage(str(tmp_path))).find(read=True)

    assert [one.step for one in found] == [4, 3]
    assert "manifest.json is a directory" in found[0].problems[0]
    assert "manifest.json is missing" in found[1].problems[0]


def test_a_pipe_in_the_place_of_a_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    directory = CheckpointDirectory(Storage(str(tmp_path / "storage")))
    for step in (1, 2):
        write_checkpoint(directory, step, tmp_path / "scratch")
    for name in ("global_step_1/manifest.json", "global_step_2/ledger.pb"):
        (tmp_path / "storage" / name).unlink()
        os.mkfifo(tmp_path / "storage" / name)

    second, first = directory.find(read=True)

    assert first.problems == (f"{first.uri}/manifest.json is no file",)
    assert "ledger.pb: 0 bytes" in second.problems[0]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_pointer_that_is_no_file_points_to_nothing_and_is_named(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    directory = CheckpointDirectory(Storage(str(tmp_path)))
    assert directory.pointer_problem() == ""
    make(tmp_path / "latest_checkpointed_iteration.txt")

    assert directory.latest() is None
    assert "latest_checkpointed_iteration.txt is no file" in directory.pointer_problem()


def test_a_storage_that_nobody_answers_for_is_refused_with_what_the_driver_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with object_store() as bucket:
        Storage(f"{bucket}/run").check_answers()
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        fsspec.get_filesystem_class("s3").clear_instance_cache()

        with pytest.raises(UsageError, match=r"s3://.*/run cannot be read: .*127\.0\.0\.1:9"):
            Storage(f"{bucket}/run").check_answers()

    Storage(str(tmp_path / "not" / "there")).check_answers()
