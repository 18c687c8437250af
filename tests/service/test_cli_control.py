"""`headrace pause`, `resume` and `drain` change a run that lives, and say so."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ledger_world import settings
from part_process import started
from replay_server import Replay, replay_server

from headrace.config.config import Config
from headrace.config.load import dump_config
from headrace.config.rundir import RunDirectory


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


async def headrace(*words: str) -> Answer:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli.main", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return Answer(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def replay(tmp_path: Path) -> AsyncIterator[Replay]:
    async with replay_server(tmp_path / "journal", settings()) as made:
        await made.begin(row_count=100)
        yield made


def make_config(path: Path, target: str, run_id: str = "") -> Config:
    return Config.model_validate(
        {
            "run": {"run_dir": path, "run_id": run_id},
            "data": {
                "source": {"kind": "jsonl", "path": "/a"},
                "train_batch_size": 4,
                "max_prompt_length": 4,
                "max_response_length": 6,
            },
            "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "abcdef", "eos": "."}},
            "rollout": {"n": 2, "engine": {"kind": "scripted", "mean_latency_s": 1}},
            "trainer": {"num_warmup_batches": 3},
            "endpoints": {"replay": target, "store": "127.0.0.1:1"},
        }
    )


def write_run(path: Path, target: str, run_id: str = "") -> RunDirectory:
    """Write what a run leaves beside its journal; a running one of the tests has no run id."""
    directory = RunDirectory(path)
    directory.endpoint_file("replay").parent.mkdir(exist_ok=True)
    directory.config_file.write_text(dump_config(make_config(path, target, run_id)))
    announced = json.dumps({"address": target, "pid": os.getpid()})
    directory.endpoint_file("replay").write_text(announced)
    return directory


async def test_a_run_is_paused_and_resumed_by_its_address(replay: Replay) -> None:
    at = ("--replay", replay.target)

    said = [
        (await headrace(wish, *at)).out.strip() for wish in ("pause", "pause", "resume", "resume")
    ]

    assert said == [
        "the run is paused",
        "the run was paused already",
        "the run goes on",
        "the run was not paused",
    ]
    assert replay.buffer.ledger.paused is False


async def test_a_run_is_paused_by_its_directory(replay: Replay, tmp_path: Path) -> None:
    write_run(tmp_path, replay.target)

    answer = await headrace("pause", "--run", str(tmp_path))

    assert (answer.code, answer.out) == (0, "the run is paused\n")
    assert replay.buffer.ledger.paused is True


async def test_a_run_that_is_over_cannot_be_paused(tmp_path: Path) -> None:
    async with replay_server(tmp_path / "journal", settings()) as over:
        await over.begin(row_count=100)
    write_run(tmp_path, "127.0.0.1:1", run_id="r")

    answer = await headrace("pause", "--run", str(tmp_path))

    assert (answer.code, answer.out) == (2, "")
    assert "the run was stopped or is over" in answer.err
    assert answer.err.count("\n") == 1


async def test_a_worker_is_sent_home(replay: Replay, tmp_path: Path) -> None:
    directory = write_run(tmp_path, replay.target)
    config = make_config(tmp_path, replay.target)
    folder = directory.endpoint_file("any").parent
    async with started("rollout", config, folder, "worker-3") as worker:
        await worker.address()
        unknown = await headrace("drain", "worker-4", "--run", str(tmp_path))
        no_worker = await headrace("drain", "replay", "--run", str(tmp_path))

        answer = await headrace("drain", "worker-3", "--run", str(tmp_path))
        assert (answer.code, answer.err) == (0, "")
        assert answer.out.startswith("worker-3 goes home")
        assert await worker.exit_code() == 0

    for refused in (unknown, no_worker):
        assert refused.code == 2
        assert "is running; there are: worker-3" in refused.err
