"""The notebook client beside a replay buffer that is killed, protected, or fed by hand."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ports import free_port

from headrace.cli.credentials import make_credentials
from headrace.client import Run, connect
from headrace.client.asking import AwayError
from headrace.errors import HeadraceError, InvalidFieldError, TokenRefusedError
from headrace.rpc.channel import open_channel

T = TypeVar("T")

ROWS = [{"prompt": f"{i:02}", "answer": "a"} for i in range(40)]
CONFIG: dict[str, Any] = {
    "run": {"run_id": "r"},
    "data": {
        "source": {"kind": "jsonl", "path": "rows.jsonl"},
        "train_batch_size": 4,
        "max_prompt_length": 4,
        "max_response_length": 6,
    },
    "model": {
        "architecture": "gpt2",
        "tokenizer": {"alphabet": "0123456789a", "eos": "."},
    },
    "rollout": {"engine": {"kind": "scripted"}, "n": 2},
    "trainer": {"num_warmup_batches": 1},
}


async def asked(question: Callable[[], T]) -> T:
    """Ask from a thread: the client knows no event loop."""
    return await asyncio.to_thread(question)


class Place:
    """Processes on ports of their own, and the files they need."""

    def __init__(self, directory: Path, **sections: Any) -> None:
        self.directory = directory
        self.config = directory / "headrace.yaml"
        run = {**CONFIG["run"], "run_dir": str(directory)}
        self.config.write_text(yaml.safe_dump({**CONFIG, "run": run, **sections}))
        (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        self.replay = f"127.0.0.1:{free_port()}"

    @asynccontextmanager
    async def serving(self, part: str, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
        port = self.replay.rpartition(":")[2] if part == "replay" else "0"
        with (self.directory / f"{part}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "headrace.cli.main", "serve", part, str(self.config)),
                *("--port", port, "--announce", str(self.directory / f"{part}.json"), *words),
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def is_ready(self) -> None:
        """Wait until the replay buffer answers, on an asynchronous channel of the test's own."""
        async with asyncio.timeout(60), open_channel(self.replay) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest()
            answer = await stub.Check(request, wait_for_ready=True, timeout=60)
            while answer.status != health_pb2.HealthCheckResponse.SERVING:
                await asyncio.sleep(0.05)
                answer = await stub.Check(request, timeout=10)


async def kill(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGKILL)
    await process.wait()


async def test_calls_and_events_go_on_after_the_replay_buffer_was_killed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with place.serving("replay") as first:
        await place.is_ready()
        run = await asked(lambda: connect(place.replay, patience_s=60))
        events = await asked(lambda: run.watch(after=0))
        seen = [await asked(lambda: next(events))]
        await kill(first)
    waiting = asyncio.create_task(asked(run.status))  # nobody listens
    nothing = asyncio.create_task(asked(lambda: connect(place.replay)))
    with pytest.raises(AwayError):
        await nothing
    assert not waiting.done()
    async with place.serving("replay"):
        status = await waiting
        await asked(run.pause)
        await asked(run.resume)
        seen += [await asked(lambda: next(events)) for _ in range(2)]

    assert status.answer.position == 1
    assert [event.name for event in seen] == ["run_opened", "run_paused", "run_resumed"]
    assert [event.position for event in seen] == [1, 2, 3]


async def test_without_an_end_to_the_outage_patience_ends(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with place.serving("replay") as replay:
        await place.is_ready()
        run = await asked(lambda: connect(place.replay, patience_s=0.5))
        await kill(replay)

    with pytest.raises(AwayError, match="does not answer"):
        await asked(run.status)
    with pytest.raises(AwayError, match="does not answer"):
        await asked(lambda: next(run.watch(after=1)))


async def test_rows_of_ones_own_are_in_the_run_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with (
        place.serving("replay") as first,
        place.serving("feeder", f"endpoints.replay={place.replay}"),
    ):
        await place.is_ready()
        run = await asked(lambda: connect(place.replay, patience_s=60))
        await asked(lambda: feeder_present(run))
        uids = await asked(lambda: run.feed([{"prompt": "11"}, {"prompt": "22", "answer": "3"}]))
        with pytest.raises(InvalidFieldError, match=r"rows_json\[0\]"):
            await asked(lambda: run.feed([{"answer": "no prompt"}]))
        await kill(first)
        async with place.serving("replay"):
            # A new client knows no address; the feeder says it again.
            again = await asked(lambda: connect_when_there(place.replay))
            await asked(lambda: feeder_present(again))
            more = await asked(lambda: again.feed([{"prompt": "33"}]))
            mine = (await asked(again.prompts)).query("uid.str.startswith('x')")

    assert uids == ["x1r0", "x1r1"]
    assert more == ["x2r0"]
    assert list(mine.uid) == [*uids, *more]
    assert set(mine.state) == {"pending"}


def connect_when_there(address: str, **credentials: Any) -> Run:
    while True:
        try:
            return connect(address, patience_s=60, **credentials)
        except AwayError:
            continue  # each try takes a while by itself


def feeder_present(run: Run) -> None:
    while "feeder" not in run.status().roll.present:
        pass  # each answer takes a while by itself


async def test_a_protected_run_wants_its_token_and_its_authority(tmp_path: Path) -> None:
    made = make_credentials(tmp_path / "certs", (), days=1, force=False, now=datetime.now(UTC))
    tls = {"ca": str(made.ca), "cert": str(made.cert), "key": str(made.key)}
    place = Place(tmp_path, security={"token_file": str(made.token), "tls": tls})
    token = made.token.read_text().strip()
    async with place.serving("replay"):
        right = await asked(lambda: connect_when_there(place.replay, token=token, ca=made.ca))
        by_file = await asked(lambda: connect(place.replay, token=made.token, ca=str(made.ca)))
        with pytest.raises(TokenRefusedError):
            await asked(lambda: connect(place.replay, token="wrong", ca=made.ca))
        with pytest.raises(TokenRefusedError):
            await asked(lambda: connect(place.replay, ca=made.ca))
        with pytest.raises(HeadraceError, match="does not answer"):
            await asked(lambda: connect(place.replay, token=token))
        # The run directory names both files.
        (tmp_path / "config.yaml").write_text(place.config.read_text())
        (tmp_path / "endpoints").mkdir()
        (tmp_path / "endpoints" / "replay.json").write_text((tmp_path / "replay.json").read_text())
        with pytest.raises(TokenRefusedError):
            await asked(lambda: connect(tmp_path, token="wrong"))
        by_directory = await asked(lambda: connect(tmp_path))
        paused = await asked(by_directory.pause)

    assert right is not by_file
    assert paused.paused
