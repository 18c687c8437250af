"""Run directories: made, named, locked, and the same for the same run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.cli.find import newest_run
from headrace.cli.rundirs import (
    RunLock,
    forget_addresses,
    make_run_directory,
    with_run_directory,
    write_config,
)
from headrace.config.config import Config
from headrace.config.load import load_config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError


def config(run_dir: Path | None = None, name: str = "my_run") -> Config:
    return Config.model_validate(
        {
            "run": {"name": name, "run_dir": run_dir},
            "data": {"source": {"kind": "jsonl", "path": "/a"}, "train_batch_size": 4},
            "model": {"architecture": "gpt2", "tokenizer": "/t"},
        }
    )


def test_a_runs_directory_has_its_name(tmp_path: Path) -> None:
    named, directory = make_run_directory(config(), below=tmp_path)

    assert directory.path == tmp_path / "my_run"
    assert directory.path.is_dir()
    assert named.run.run_dir == directory.path
    assert named.run.run_id == "my-run"


def test_a_full_disk_is_a_line_for_the_user(tmp_path: Path) -> None:
    named, directory = make_run_directory(config(), below=tmp_path)
    directory.config_file.with_suffix(".new").symlink_to("/dev/full")

    with pytest.raises(UsageError, match=r"config\.new cannot be written: No space left on device"):
        write_config(named, directory)


def test_the_same_configuration_leads_to_the_same_directory(tmp_path: Path) -> None:
    one = make_run_directory(config(), below=tmp_path)
    other = make_run_directory(config(), below=tmp_path)

    assert one == other


def test_the_resolved_configuration_is_written_for_the_children_and_replaced(
    tmp_path: Path,
) -> None:
    named, directory = make_run_directory(config(tmp_path / "here"))
    changed = named.model_copy(
        update={"trainer": named.trainer.model_copy(update={"save_freq": 7})}
    )

    write_config(named, directory)
    assert load_config(directory.config_file) == named

    write_config(changed, directory)
    assert load_config(directory.config_file) == changed


def test_addresses_of_an_earlier_life_are_forgotten(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    forget_addresses(directory)
    announced = directory.endpoint_file("worker-3")
    announced.parent.mkdir()
    announced.write_text("{}")

    forget_addresses(directory)

    assert not announced.exists()


def test_a_directory_in_use_by_another_launcher_is_refused_with_its_process(
    tmp_path: Path,
) -> None:
    directory = RunDirectory(tmp_path)
    with RunLock(directory), pytest.raises(UsageError, match=f"process {os.getpid()}"):
        RunLock(directory)

    with RunLock(directory):
        pass  # free again


def test_a_directory_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match="cannot be made: Not a directory; give another"):
        make_run_directory(config(tmp_path / "file" / "run"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(UsageError, match="cannot be written"):
        make_run_directory(config(tmp_path))


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
