"""`headrace top` as people use it: in a terminal, with keys, against a real replay buffer."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ledger_world import settings
from replay_server import Replay, replay_server

from headrace.config.config import Config
from headrace.config.load import dump_config
from headrace.config.rundir import RunDirectory
from headrace.v1 import replay_pb2 as pb

CODES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[=>]")
SIZE = (40, 120)


@dataclass
class Screen:
    """A terminal of which only what was written is kept, and a program in it."""

    process: asyncio.subprocess.Process
    master: int
    slave: int
    raw: str = ""
    seen: int = 0
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    def read(self) -> None:
        self.raw += os.read(self.master, 65536).decode(errors="replace")
        self.grown.set()

    def type(self, keys: str) -> None:
        """Press keys; what is shown from now on is new."""
        self.seen = len(self.raw)
        os.write(self.master, keys.encode())

    async def shows(self, text: str) -> None:
        """Wait until something was drawn since the last keys."""
        async with asyncio.timeout(60):
            while text not in CODES.sub("", self.raw[self.seen :]):
                self.grown.clear()
                await self.grown.wait()

    async def exit_code(self) -> int:
        async with asyncio.timeout(60):
            return await self.process.wait()


@asynccontextmanager
async def terminal(*words: str) -> AsyncIterator[Screen]:
    """Run headrace in a terminal of its own."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, SIZE)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli.main", *words),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    screen = Screen(process, master, slave)
    loop = asyncio.get_running_loop()
    loop.add_reader(master, screen.read)
    try:
        yield screen
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        loop.remove_reader(master)
        os.close(master)
        os.close(slave)


@pytest.fixture
async def replay(tmp_path: Path) -> AsyncIterator[Replay]:
    """Twelve prompts fed, four of them trained, one of them leased."""
    async with replay_server(tmp_path / "journal", settings()) as made:
        incarnation = await made.begin(row_count=100)
        await made.feed()
        leases = await made.lease(4, worker="worker-0")
        await made.stub.CompleteSessions(made.completion(leases, worker="worker-0"))
        step = pb.SampleBatchRequest(incarnation=incarnation, step=1, part_count=1)
        await made.stub.SampleBatch(step)
        await made.stub.CommitStep(pb.CommitStepRequest(incarnation=incarnation, step=1))
        await made.publish(incarnation, 1)
        await made.lease(1, worker="worker-0", version=1)
        yield made


async def test_a_run_a_prompt_and_back(replay: Replay) -> None:
    async with terminal("top", "--replay", replay.target) as screen:
        before = termios.tcgetattr(screen.slave)
        await screen.shows("pending 7 · running 1 · finished 0 of 12 wanted")
        await screen.shows("w where a prompt is")

        screen.type("w")
        await screen.shows("where is prompt:")
        screen.type("e0r0\r")
        await screen.shows("step_committed")

        screen.type("\x1b")
        await screen.shows("w where a prompt is")

        screen.type("we9r9\r")
        await screen.shows("no prompt 'e9r9'")

        screen.type("q")
        assert await screen.exit_code() == 0
        assert termios.tcgetattr(screen.slave) == before
    assert screen.raw.rindex("\x1b[?1049l") > screen.raw.rindex("\x1b[?1049h")


async def test_it_goes_on_showing_what_happens(replay: Replay) -> None:
    async with terminal("top", "--replay", replay.target) as screen:
        await screen.shows("running 1")
        await replay.lease(2, worker="worker-0", version=1)

        await screen.shows("running 3")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_leaves_the_terminal_as_it_was(
    replay: Replay, number: signal.Signals
) -> None:
    async with terminal("top", "--replay", replay.target) as screen:
        before = termios.tcgetattr(screen.slave)
        await screen.shows("q quit")
        screen.process.send_signal(number)

        assert await screen.exit_code() == 0
        assert termios.tcgetattr(screen.slave) == before


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


async def piped(*words: str) -> Answer:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli.main", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "120"},
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return Answer(process.returncode, out.decode(), err.decode())


def run_directory(path: Path, target: str, run_id: str = "") -> RunDirectory:
    """Write what a run leaves beside its journal; the replay buffer of the tests has no run id."""
    directory = RunDirectory(path)
    config = Config.model_validate(
        {
            "run": {"run_dir": path, "run_id": run_id},
            "data": {"source": {"kind": "jsonl", "path": "/a"}, "train_batch_size": 4},
            "model": {"architecture": "gpt2", "tokenizer": "/t"},
        }
    )
    directory.endpoint_file("replay").parent.mkdir()
    directory.config_file.write_text(dump_config(config))
    announced = json.dumps({"address": target, "pid": os.getpid()})
    directory.endpoint_file("replay").write_text(announced)
    directory.metrics_file.write_text('{"step": 1, "critic/rewards/mean": 0.25}\n')
    return directory


async def test_without_a_terminal_it_is_printed_once(replay: Replay) -> None:
    answer = await piped("top", "--replay", replay.target)

    assert (answer.code, answer.err) == (0, "")
    assert "fed 12 = 7 pending + 1 running + 4 trained" in answer.out
    assert "worker-0" in answer.out
    assert "\x1b" not in answer.out


async def test_a_run_directory_adds_the_steps_so_far(replay: Replay, tmp_path: Path) -> None:
    run_directory(tmp_path, replay.target)

    answer = await piped("top", "--run", str(tmp_path))

    assert answer.code == 0
    assert "step 1/25" in answer.out
    assert "reward 0.250" in " ".join(answer.out.split())


@pytest.mark.parametrize(("target", "run_id"), [("127.0.0.1:1", ""), ("", "another")])
async def test_nobody_and_another_runs_replay_buffer_are_refused_in_a_line(
    replay: Replay, tmp_path: Path, target: str, run_id: str
) -> None:
    run_directory(tmp_path, target or replay.target, run_id)

    answer = await piped("top", "--run", str(tmp_path))

    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "does not answer as the replay buffer of" in answer.err
