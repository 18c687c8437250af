"""Run directories: made, named, locked, never used twice."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.cli.find import newest_run
from headrace.cli.rundirs import RunLock, make_run_directory, with_run_directory, write_config
from headrace.config.config import Config
from headrace.config.load import load_config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError

NOW = datetime(2026, 11, 29, 15, 30, 5, tzinfo=UTC)


def config(run_dir: Path | None = None, name: str = "my_run") -> Config:
    return Config.model_validate(
        {
            "run": {"name": name, "run_dir": run_dir},
            "data": {"source": {"kind": "jsonl", "path": "/a"}, "train_batch_size": 4},
            "model": {"architecture": "gpt2", "tokenizer": "/t"},
        }
    )


def test_a_run_is_named_by_its_name_and_the_time(tmp_path: Path) -> None:
    named, directory = make_run_directory(config(), now=NOW, below=tmp_path)

    assert directory.path == tmp_path / "my_run-20261129-153005"
    assert directory.path.is_dir()
    assert named.run.run_dir == directory.path
    assert named.run.run_id == "my-run-20261129-153005"


def test_two_runs_that_start_within_a_second_get_two_directories(tmp_path: Path) -> None:
    _, one = make_run_directory(config(), now=NOW, below=tmp_path)
    _, other = make_run_directory(config(), now=NOW, below=tmp_path)

    assert other.path.name == f"{one.path.name}-2"


def test_the_resolved_configuration_is_written_for_the_children(tmp_path: Path) -> None:
    named, directory = make_run_directory(config(tmp_path / "here"), now=NOW)

    write_config(named, directory)

    assert load_config(directory.config_file) == named


def test_a_directory_in_use_by_another_run_is_refused_with_its_process(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with RunLock(directory), pytest.raises(UsageError, match=f"process {os.getpid()}"):
        RunLock(directory)

    with RunLock(directory):
        pass  # free again


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.journal.mkdir()

    with pytest.raises(UsageError, match="holds a run already"):
        write_config(config(tmp_path), directory)


def test_a_directory_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match="cannot be made: Not a directory; give another"):
        make_run_directory(config(tmp_path / "file" / "run"), now=NOW)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(UsageError, match="cannot be written"):
        make_run_directory(config(tmp_path), now=NOW)


def test_a_single_process_needs_to_be_told_the_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"add run\.run_dir=DIR"):
        with_run_directory(config())

    assert with_run_directory(config(tmp_path / "x")).run.run_id == "x"


def test_the_newest_run_is_the_one_started_last(tmp_path: Path) -> None:
    for age, name in enumerate(["c", "a", "b"]):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "config.yaml"
        file.touch()
        os.utime(file, (1000 - age, 1000 - age))
    (tmp_path / "no-run").mkdir()

    assert newest_run(tmp_path) == tmp_path / "c"
    with pytest.raises(UsageError, match="no run directory below"):
        newest_run(tmp_path / "no-run")
