"""Weight directories: whole or absent, checked byte by byte, pruned by line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.weights.directory import (
    WeightsDamagedError,
    name_of,
    prune,
    prune_other_lines,
    verify,
    write,
)


def files(text: str) -> Callable[[Path], None]:
    def save(directory: Path) -> None:
        (directory / "config.json").write_text("{}")
        (directory / "model.safetensors").write_text(text)

    return save


def write_version(root: Path, version: int, *, lineage: str = "a", text: str = "w") -> Path:
    return write(root, run_id="r", lineage=lineage, version=version, write_files=files(text))[0]


def test_what_was_written_verifies_with_the_checksum_of_the_manifest(tmp_path: Path) -> None:
    directory, checksum = write(
        tmp_path / "weights", run_id="r", lineage="a", version=3, write_files=files("w")
    )

    manifest, verified = verify(directory)

    assert directory.name == "r_a_v00000003" == name_of("r", "a", 3)
    assert verified == checksum
    assert checksum == hashlib.sha256((directory / "manifest.json").read_bytes()).hexdigest()
    assert (manifest.run_id, manifest.lineage, manifest.version) == ("r", "a", 3)
    assert set(manifest.files) == {"config.json", "model.safetensors"}
    assert manifest.files["model.safetensors"].size_bytes == 1


def test_other_bytes_of_the_same_length_are_noticed(tmp_path: Path) -> None:
    directory = write_version(tmp_path, 1)
    (directory / "model.safetensors").write_text("x")
    with pytest.raises(WeightsDamagedError, match=r"model.safetensors: SHA-256"):
        verify(directory)


def test_a_short_file_is_noticed(tmp_path: Path) -> None:
    directory = write_version(tmp_path, 1)
    (directory / "model.safetensors").write_text("")
    with pytest.raises(WeightsDamagedError, match="0 bytes, 1 are expected"):
        verify(directory)


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
def test_a_missing_file_is_noticed(tmp_path: Path, name: str) -> None:
    directory = write_version(tmp_path, 1)
    (directory / name).unlink()
    with pytest.raises(WeightsDamagedError, match=name):
        verify(directory)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", ""])
def test_a_manifest_that_points_outside_is_refused(tmp_path: Path, name: str) -> None:
    directory = write_version(tmp_path, 1)
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"].pop("config.json")
    (directory / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(WeightsDamagedError, match="leaves the directory"):
        verify(directory)


def test_a_manifest_of_another_schema_is_refused(tmp_path: Path) -> None:
    directory = write_version(tmp_path, 1)
    manifest = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps(manifest | {"schema_version": 2}))
    with pytest.raises(WeightsDamagedError, match="schema version 2 is not 1"):
        verify(directory)


def test_a_writer_that_fails_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "config.json").write_text("{}")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write(tmp_path, run_id="r", lineage="a", version=1, write_files=fail)
    assert not (tmp_path / name_of("r", "a", 1)).exists()

    verify(write_version(tmp_path, 1))
    prune(tmp_path, run_id="r", lineage="a", oldest_needed=1)
    assert [path.name for path in tmp_path.iterdir()] == ["r_a_v00000001"]


def test_a_version_that_was_never_announced_is_written_again(tmp_path: Path) -> None:
    write_version(tmp_path, 0, text="first")
    directory = write_version(tmp_path, 0, text="second")
    verify(directory)
    assert (directory / "model.safetensors").read_text() == "second"


def test_pruning_keeps_what_is_needed_and_other_lines(tmp_path: Path) -> None:
    for version in range(4):
        write_version(tmp_path, version)
    write_version(tmp_path, 0, lineage="b")
    (tmp_path / "notes.txt").write_text("mine")

    prune(tmp_path, run_id="r", lineage="a", oldest_needed=2)

    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["notes.txt", "r_a_v00000002", "r_a_v00000003", "r_b_v00000000"]


def test_versions_of_lines_that_were_left_go_and_those_of_other_runs_stay(tmp_path: Path) -> None:
    for lineage in ("a", "b", "b2"):
        write_version(tmp_path, 3, lineage=lineage)
    other, _ = write(tmp_path, run_id="r2", lineage="a", version=3, write_files=files("w"))
    (tmp_path / ".r_a_v00000004.new").mkdir()

    prune_other_lines(tmp_path, run_id="r", lineage="b")

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        other.name,
        name_of("r", "b", 3),
    ]
