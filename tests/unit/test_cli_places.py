"""Where commands find the processes of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.places import Places
from headrace.config.config import Config
from headrace.config.load import dump_config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError
from headrace.rpc.security import Security

NOBODY = Security()


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "sort-1")
    config = Config.model_validate(
        {
            "run": {"run_dir": made.path, "run_id": "r"},
            "data": {"source": {"kind": "jsonl", "path": "/a"}, "train_batch_size": 4},
            "model": {"architecture": "gpt2", "tokenizer": "/t"},
        }
    )
    made.endpoint_file("replay").parent.mkdir(parents=True)
    made.config_file.write_text(dump_config(config))
    return made


def announce(directory: RunDirectory, name: str, *, pid: int) -> None:
    directory.endpoint_file(name).write_text(json.dumps({"address": f"{name}:1", "pid": pid}))


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.wait()
    return child.pid


def test_a_run_directory_says_where_everybody_is(directory: RunDirectory) -> None:
    for name in ("replay", "worker-0"):
        announce(directory, name, pid=os.getpid())

    places = Places.find(directory.path, None, NOBODY)

    assert (places.name, places.run_id) == ("sort-1", "r")
    assert places.addresses({}) == {"replay": "replay:1", "worker-0": "worker-0:1"}


def test_an_address_is_enough_as_the_replay_buffer_knows_others() -> None:
    places = Places.find(None, "host:7001", NOBODY)

    assert places.addresses({"trainer": "host:7004"}) == {
        "replay": "host:7001",
        "trainer": "host:7004",
    }


def test_a_process_that_is_gone_is_told_from_one_that_is_there(directory: RunDirectory) -> None:
    announce(directory, "worker-0", pid=os.getpid())
    announce(directory, "worker-1", pid=dead_pid())

    known = ("worker-0", "worker-1", "worker-2")
    assert Places.find(directory.path, None, NOBODY).gone(known) == {"worker-1", "worker-2"}
    assert Places.find(None, "host:1", NOBODY).gone(known) == set()


@pytest.mark.parametrize("address", ["host", "host:", ":7001x", "7001"])
def test_what_is_no_address_is_named(address: str) -> None:
    with pytest.raises(UsageError, match=f"'{address}' is not an address"):
        Places.find(None, address, NOBODY)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run directory"):
        Places.find(tmp_path, None, NOBODY)


def test_a_directory_and_an_address_are_too_much(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not both"):
        Places.find(tmp_path, "host:1", NOBODY)
