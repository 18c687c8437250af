"""A worker with the scripted engine and real rewards, beside the two tiny peers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from worker_world import TinyLedger, TinyStore, serving

from headrace.config.rollout import RewardConfig
from headrace.config.rollout import ScriptedEngine as ScriptedConfig
from headrace.rollout.direct import DirectWay
from headrace.rollout.download import Downloads
from headrace.rollout.engines.scripted import ScriptedEngine
from headrace.rollout.rewards.make import make_rewards
from headrace.rollout.worker import Worker, WorkerSettings
from headrace.rpc.channel import open_channel
from headrace.rpc.waits import Waits
from headrace.v1 import prompt_pb2, replay_pb2_grpc, store_pb2_grpc
from headrace.v1 import replay_pb2 as pb
from headrace.weights.directory import write

VOCAB, EOS = 12, 1


def decode(ids: list[int]) -> str:
    return "".join(chr(ord("a") + i) for i in ids if i != EOS)


class World:
    """A worker with its two peers; `start` starts it."""

    def __init__(self, root: Path, stack: AsyncExitStack) -> None:
        self.root = root
        self.stack = stack
        # Only the workers' side is there; other calls are answered UNIMPLEMENTED.
        self.ledger = TinyLedger()  # type: ignore[abstract]
        self.store = TinyStore()  # type: ignore[abstract]
        self.stopping = asyncio.Event()
        self.time = 0.0
        """Of the waits only."""
        self.waits = Waits(now=lambda: self.time, stall_after_s=60)
        self.worker: Worker
        self.running: asyncio.Task[None]
        self.replay_address = ""
        self.store_address = ""

    async def publish(
        self,
        version: int,
        *,
        checksum: str | None = None,
        uri: str | None = None,
        write_files: Callable[[Path], None] = lambda fresh: None,
    ) -> None:
        directory, right = write(
            self.root, run_id="run", lineage="main", version=version,
            write_files=write_files,
        )  # fmt: skip
        await self.ledger.publish(
            prompt_pb2.PublishedWeights(
                id=prompt_pb2.WeightsId(lineage="main", version=version),
                uri=uri or str(directory),
                checksum=checksum or right,
            )
        )

    async def serve_ledger(self, port: int = 0) -> None:
        self.replay_address = await self.stack.enter_async_context(
            serving(
                lambda s: replay_pb2_grpc.add_ReplayBufferServiceServicer_to_server(self.ledger, s),
                port,
            )
        )

    async def serve_store(self, port: int = 0) -> None:
        self.store_address = await self.stack.enter_async_context(
            serving(
                lambda s: store_pb2_grpc.add_TrajectoryStoreServiceServicer_to_server(
                    self.store, s
                ),
                port,
            )
        )

    async def start(
        self,
        engine: ScriptedConfig | None = None,
        *,
        reward: RewardConfig | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        max_groups: int | None = 64,
        group_size: int = 2,
        max_generation_s: float = 30,
        lease_s: float = 60,
        lease_wait_s: float = 0.2,
        idle_after_s: float | None = None,
        pauses: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.monotonic,
        downloads: Downloads | None = None,
        direct: Callable[[Any], DirectWay] | None = None,
        engine_type: type[ScriptedEngine] = ScriptedEngine,
        partial: bool = False,
        report_every: int | None = None,
        worker_id: str = "worker-0-1-ab",
    ) -> None:
        for address, serve in (
            (self.replay_address, self.serve_ledger), (self.store_address, self.serve_store)
        ):  # fmt: skip
            if not address:
                await serve()
        self.ledger.lease_s = lease_s
        rewards = make_rewards(reward or RewardConfig(), self.waits)
        self.stack.push_async_callback(rewards.close)
        await rewards.start()
        scripted = engine_type(
            engine or ScriptedConfig(kind="scripted", mean_latency_s=0),
            vocab_size=VOCAB, eos_id=EOS, partial=partial, sleep=sleep,
        )  # fmt: skip
        self.stack.push_async_callback(scripted.close)
        replay = await self.stack.enter_async_context(open_channel(self.replay_address))
        store = await self.stack.enter_async_context(open_channel(self.store_address))
        self.worker = Worker(
            WorkerSettings(
                worker_id=worker_id, max_groups_in_flight=max_groups, group_size=group_size,
                max_leases_per_call=256, max_generation_s=max_generation_s, lease_s=lease_s, lease_wait_s=lease_wait_s,
                report_every=report_every, idle_after_s=idle_after_s,
            ),
            engine=scripted, rewards=rewards, decode=decode,
            replay_stub=replay_pb2_grpc.ReplayBufferServiceStub(replay),
            store_stub=store_pb2_grpc.TrajectoryStoreServiceStub(store), downloads=downloads,
            direct=direct(scripted) if direct is not None else None, waits=self.waits, stopping=self.stopping, now=now, sleep=pauses, jitter=lambda: 0.0,
        )  # fmt: skip
        self.running = asyncio.create_task(self.worker.run())

    async def stop(self) -> None:
        self.stopping.set()
        async with asyncio.timeout(20):
            await self.running


@asynccontextmanager
async def made_world(root: Path) -> AsyncIterator[World]:
    """Give a world; its worker is sent home in the end."""
    async with AsyncExitStack() as stack:
        made = World(root, stack)
        yield made
        made.stopping.set()
        with contextlib.suppress(AttributeError):  # never started
            await made.running


class Gate:
    """A sleep that ends when it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.sleepers = 0
        self.reached = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.sleepers += 1
        self.reached.set()
        await self.open.wait()


async def eventually(condition: Callable[[], object]) -> None:
    """Give way until something becomes true that no call can be waited for."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def after_load(gate: Gate) -> Callable[[float], Awaitable[None]]:
    async def sleep(seconds: float) -> None:
        if seconds > 0:  # loading takes none
            await gate.sleep(seconds)

    return sleep


def completed(world: World) -> list[pb.CompletedSession]:
    return [s for r in world.ledger.requests("CompleteSessions") for s in r.sessions]


def waits_of(world: World) -> list[str]:
    return [wait.name for wait in world.waits.snapshot()]
