"""Questions about a run, to a running replay buffer and to the journal it leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from ledger_world import settings
from replay_server import Replay, replay_server

from headrace.config.config import Config
from headrace.config.load import dump_config
from headrace.config.rundir import RunDirectory
from headrace.v1 import replay_pb2 as pb


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


async def headrace(*words: str, cwd: Path | None = None) -> Answer:
    """Run the command as a process of its own, as gRPC with and without asyncio do not mix."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "headrace.cli.main", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "40"},
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return Answer(process.returncode, out.decode(), err.decode())


async def play(replay: Replay) -> None:
    """Feed the window, generate four groups, fail one, train on a step."""
    incarnation = await replay.begin(row_count=100)
    await replay.feed()
    leases = await replay.lease(4, worker="worker-0")
    await replay.stub.CompleteSessions(replay.completion(leases, worker="worker-0"))
    await replay.stub.SampleBatch(
        pb.SampleBatchRequest(incarnation=incarnation, step=1, part_count=1)
    )
    await replay.stub.CommitStep(pb.CommitStepRequest(incarnation=incarnation, step=1))


def run_directory(path: Path, target: str = "127.0.0.1:1") -> RunDirectory:
    """Write what a run leaves behind beside its journal."""
    directory = RunDirectory(path)
    config = Config.model_validate(
        {
            "run": {"run_dir": path, "run_id": "r"},
            "data": {"source": {"kind": "jsonl", "path": "/a"}, "train_batch_size": 4},
            "model": {"architecture": "gpt2", "tokenizer": "/t"},
            "rollout": {"n": 2},
            "trainer": {"num_warmup_batches": 3},
        }
    )
    directory.config_file.write_text(dump_config(config))
    directory.endpoint_file("replay").parent.mkdir()
    directory.endpoint_file("replay").write_text(json.dumps({"address": target, "pid": 1}))
    return directory


async def test_a_running_replay_buffer_answers_by_its_address(tmp_path: Path) -> None:
    async with replay_server(tmp_path / "journal", settings()) as replay:
        await play(replay)
        at = ("--replay", replay.target)
        status, where, prompts, audit, unknown = await asyncio.gather(
            headrace("status", *at),
            headrace("where", "e0r0", *at),
            headrace("prompts", "--state", "trained", "-n", "3", *at),
            headrace("audit", *at),
            headrace("where", "e9r9", *at),
        )

    words = " ".join(status.out.split())
    assert "step 1 of 25 prompts fed 12 = 8 pending + 4 trained" in words
    assert "step_committed" in where.out
    assert "state     trained" in where.out
    assert [line.split()[1] for line in prompts.out.splitlines()] == ["uid", "e0r0", "e0r1", "e0r2"]
    assert "add --page 3" in prompts.err
    assert (audit.code, "everything holds" in audit.out) == (0, True)
    assert unknown.code == 2
    assert unknown.err.startswith("error: no prompt 'e9r9' was fed")


async def test_a_run_that_is_over_answers_from_its_journal(tmp_path: Path) -> None:
    async with replay_server(tmp_path / "journal", settings()) as replay:
        await play(replay)
    run_directory(tmp_path)
    before = {file: file.read_bytes() for file in (tmp_path / "journal").iterdir()}

    at = ("--run", str(tmp_path))
    status, where, prompts, audit = await asyncio.gather(
        headrace("status", *at),
        headrace("where", "e0r11", "--json", *at),
        headrace("prompts", *at),
        headrace("audit", *at),
    )

    assert status.err == (
        f"the replay buffer of {tmp_path} is not running; read from its journal\n"
    )
    assert "prompts fed 12 = 8 pending + 4 trained" in " ".join(status.out.split())
    assert json.loads(where.out)["group"]["state"] == "PROMPT_STATE_PENDING"
    assert len(prompts.out.splitlines()) == 1 + 12
    assert audit.code == 0
    assert {file: file.read_bytes() for file in (tmp_path / "journal").iterdir()} == before


async def test_a_process_that_nobody_has_stopped_is_said_to_be_gone(tmp_path: Path) -> None:
    async with replay_server(tmp_path / "journal", settings()) as replay:
        await play(replay)
    dead = await asyncio.create_subprocess_exec("true")
    await dead.wait()
    announced = json.dumps({"address": "127.0.0.1:1", "pid": dead.pid})
    run_directory(tmp_path).endpoint_file("replay").write_text(announced)

    status = await headrace("status", "--run", str(tmp_path))

    assert status.err == (
        f"the replay buffer of {tmp_path} is not running (its process {dead.pid} is gone); "
        "read from its journal\n"
    )
    assert "fed 12" in status.out


async def test_another_runs_replay_buffer_on_the_port_is_not_taken_for_this_runs(
    tmp_path: Path,
) -> None:
    async with replay_server(tmp_path / "journal", settings()) as replay:
        await play(replay)
    run_directory(tmp_path)

    async with replay_server(tmp_path / "other", settings()) as stranger:
        file = RunDirectory(tmp_path).endpoint_file("replay")
        file.write_text(json.dumps({"address": stranger.target, "pid": 1}))
        status = await headrace("status", "--run", str(tmp_path))

    assert "read from its journal" in status.err
    assert "fed 12" in status.out


async def test_without_a_name_the_newest_run_below_the_current_folder_is_meant(
    tmp_path: Path,
) -> None:
    newest = tmp_path / "runs" / "one"
    newest.mkdir(parents=True)
    async with replay_server(newest / "journal", settings()) as replay:
        await play(replay)
    run_directory(newest)

    audit = await headrace("audit", cwd=tmp_path)

    assert (audit.code, "fed 12" in audit.out) == (0, True)


async def test_a_run_that_has_not_begun_says_so(tmp_path: Path) -> None:
    run_directory(tmp_path)

    answer = await headrace("status", "--run", str(tmp_path))

    assert answer.code == 2
    assert answer.err.startswith(f"error: the replay buffer of {tmp_path} is not running, and")
