"""The watcher against real servers, and a session from its first process to its last."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry
from small_children import Run

from headrace.cli.addresses import Addresses
from headrace.cli.ending import Ending
from headrace.cli.session import Session
from headrace.cli.view import View
from headrace.cli.watcher import Watcher
from headrace.config.config import Config
from headrace.rpc.server import bind, create_server
from headrace.v1 import replay_pb2 as pb
from headrace.v1 import (
    replay_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    status_pb2,
    trainer_pb2,
    trainer_pb2_grpc,
)


class Everybody(
    replay_pb2_grpc.ReplayBufferServiceServicer,
    rollout_pb2_grpc.RolloutWorkerServiceServicer,
    trainer_pb2_grpc.TrainerServiceServicer,
):
    """Answers for the replay buffer, a worker and the trainer."""

    def __init__(self) -> None:
        self.tokens = 0
        self.streams: list[int] = []

    async def GetReplayStatus(self, request: Any, context: Any) -> pb.GetReplayStatusResponse:
        process = status_pb2.ProcessStatus(process="replay")
        return pb.GetReplayStatusResponse(process=process, total_steps=40)

    async def Audit(self, request: Any, context: Any) -> pb.AuditResponse:
        return pb.AuditResponse(ok=True)

    async def GetWorkerStatus(
        self, request: Any, context: Any
    ) -> rollout_pb2.GetWorkerStatusResponse:
        self.tokens += 10
        return rollout_pb2.GetWorkerStatusResponse(generated_token_count=self.tokens)

    async def GetTrainerStatus(
        self, request: Any, context: Any
    ) -> trainer_pb2.GetTrainerStatusResponse:
        return trainer_pb2.GetTrainerStatusResponse(step=1)

    async def WatchSteps(
        self, request: trainer_pb2.WatchStepsRequest, context: Any
    ) -> AsyncIterator[trainer_pb2.WatchStepsResponse]:
        """Two steps, then the connection breaks."""
        self.streams.append(request.after_step)
        for step in range(request.after_step + 1, request.after_step + 3):
            yield trainer_pb2.WatchStepsResponse(step=step, metrics={"m": step})
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not happened():  # noqa: ASYNC110 - what is waited for lies behind a wire
            await asyncio.sleep(0.01)


@pytest.fixture
async def everybody() -> AsyncIterator[tuple[Everybody, str]]:
    server = create_server(CollectorRegistry())
    servicer = Everybody()  # type: ignore[abstract]  # it answers what is asked here
    replay_pb2_grpc.add_ReplayBufferServiceServicer_to_server(servicer, server)
    rollout_pb2_grpc.add_RolloutWorkerServiceServicer_to_server(servicer, server)
    trainer_pb2_grpc.add_TrainerServiceServicer_to_server(servicer, server)
    target = bind(server, "127.0.0.1", 0)
    await server.start()
    yield servicer, target
    await server.stop(0)


async def test_the_view_holds_what_each_process_said_last(
    everybody: tuple[Everybody, str],
) -> None:
    servicer, target = everybody
    view, addresses = View("run", 0.0, 0.0), Addresses()
    names = ["replay", "worker-0", "trainer", "store"]
    watcher = Watcher(view, addresses, names, now=time.monotonic)
    watching = asyncio.create_task(watcher.run())
    for name in names[:3]:
        addresses.announce(name, target)
    addresses.announce("store", "127.0.0.1:1")  # nobody listens there

    # The stream of steps broke after two: it goes on where it was.
    await until(lambda: view.steps.last >= 4)
    await until(lambda: {"replay", "worker-0", "trainer"} <= set(view.processes))
    # An answer that nobody waits for any more is not in the view.
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await watcher.ask_all()
    audit = await watcher.audit()
    await watcher.close()

    assert servicer.streams[:2] == [0, 2]
    assert view.steps.series("m")[:4] == [1, 2, 3, 4]
    assert view.total_steps == 40
    assert view.tokens.generated == servicer.tokens
    assert audit == pb.AuditResponse(ok=True)
    assert "store" not in view.processes


class Lines:
    """A display that remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.updates = 0
        self.shown: View | None = None

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def say(self, line: str) -> None:
        self.said.append(line)

    def update(self, view: View) -> None:
        self.updates += 1
        self.shown = view


def config(**watchdog: Any) -> Config:
    return Config.model_validate(
        {
            "data": {"source": {"kind": "jsonl", "path": "/a"}, "train_batch_size": 4},
            "model": {"architecture": "gpt2", "tokenizer": "/t"},
            "watchdog": watchdog,
            "launcher": {"stop_grace_s": 5},
        }
    )


async def finish(session: Session) -> tuple[Ending, pb.AuditResponse | None]:
    async with asyncio.timeout(60):
        return await session.run()


async def test_when_the_trainer_is_done_the_others_go_in_order_and_replay_last(
    tmp_path: Path,
) -> None:
    run, lines = Run(tmp_path), Lines()
    needs = ("replay", "store", "worker-0")
    parts = [
        run.part("replay", "serve"),
        run.part("store", "serve"),
        run.part("worker-0", "serve"),
        run.part("trainer", "exit0", needs=needs, is_main=True),
    ]
    order = [["trainer"], ["worker-0"], ["store"]]

    ending, audit = await finish(Session(config(), parts, order, lines, now=time.monotonic))

    assert (ending, audit) == (Ending(0), None)
    assert [line for line in run.history() if "stopped" in line] == [
        "worker-0 stopped",
        "store stopped",
        "replay stopped",
    ]
    assert lines.updates > 0


async def test_the_first_interrupt_stops_in_order_and_says_so(tmp_path: Path) -> None:
    run, lines = Run(tmp_path), Lines()
    parts = [run.part("replay", "serve"), run.part("trainer", "serve", is_main=True)]
    session = Session(config(), parts, [["trainer"]], lines, now=time.monotonic)
    running = asyncio.create_task(finish(session))
    await until(
        lambda: (tmp_path / "trainer.json").exists() and (tmp_path / "replay.json").exists()
    )

    os.kill(os.getpid(), signal.SIGINT)
    ending, _ = await running

    assert ending == Ending(130, ("interrupted",))
    assert run.history()[-2:] == ["trainer stopped", "replay stopped"]
    assert lines.said == [
        "stopping: the trainer saves its step first; a second Ctrl-C kills everything at once"
    ]


async def test_the_second_interrupt_waits_for_nobody(tmp_path: Path) -> None:
    run, lines = Run(tmp_path), Lines()
    settings = config().model_copy(
        update={"launcher": config().launcher.model_copy(update={"stop_grace_s": 600})}
    )
    session = Session(
        settings,
        [run.part("trainer", "stubborn", is_main=True)],
        [["trainer"]],
        lines,
        now=time.monotonic,
    )
    running = asyncio.create_task(finish(session))
    await until((tmp_path / "trainer.json").exists)

    os.kill(os.getpid(), signal.SIGINT)
    await until(lambda: bool(lines.said))
    os.kill(os.getpid(), signal.SIGINT)

    assert (await running)[0].exit_code == 130


async def test_a_stall_ends_the_run_if_it_is_to(tmp_path: Path) -> None:
    # The children announce themselves and answer nothing.
    run, lines = Run(tmp_path), Lines()
    settings = config(stall_after_s=0.3, on_stall="fail")
    parts = [run.part("trainer", "serve", is_main=True)]

    ending, _ = await finish(Session(settings, parts, [], lines, now=time.monotonic))

    assert ending.exit_code == 5
    assert ending.reasons[0].startswith("stalled: trainer: an answer to the launcher")


async def test_a_stall_is_only_reported_otherwise(tmp_path: Path) -> None:
    run, lines = Run(tmp_path), Lines()
    parts = [run.part("trainer", "serve", is_main=True)]
    session = Session(config(stall_after_s=0.1), parts, [], lines, now=time.monotonic)
    running = asyncio.create_task(finish(session))

    await until(lambda: bool(session.view.stalls()))
    os.kill(os.getpid(), signal.SIGTERM)

    assert (await running)[0].exit_code == 130
