"""One store over gRPC, on a real TransferQueue in this process and a replay buffer of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from prometheus_client import CollectorRegistry

from headrace.rpc.channel import open_channel
from headrace.rpc.server import bind, create_server
from headrace.rpc.waits import Waits
from headrace.store.backend import Backend
from headrace.store.log import StoreLog
from headrace.store.nodes import Nodes
from headrace.store.queue import TransferQueue
from headrace.store.restorer import RowRestorer, Starting
from headrace.store.saver import RowSaver
from headrace.store.scratch import Scratch
from headrace.store.service import StoreService
from headrace.store.store import TrajectoryStore
from headrace.store.sweep import Sweeper
from headrace.trajectory.chunks import Value
from headrace.v1 import replay_pb2, replay_pb2_grpc, status_pb2, store_pb2_grpc
from headrace.v1.trajectory_pb2 import Trajectory, WeightSpan

CAPACITY_BYTES = 16 * 2**20


@dataclass
class Clock:
    time: float = 1000.0

    def __call__(self) -> float:
        return self.time


class Replay(replay_pb2_grpc.ReplayBufferServiceServicer):
    """Says which rows are dead: those that the test named."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.asked: list[replay_pb2.FindDeadTrajectoriesRequest] = []

    async def FindDeadTrajectories(
        self,
        request: replay_pb2.FindDeadTrajectoriesRequest,
        context: object,
    ) -> replay_pb2.FindDeadTrajectoriesResponse:
        self.asked.append(request)
        dead = [key for key in request.keys if key in self.dead]
        return replay_pb2.FindDeadTrajectoriesResponse(dead_keys=dead)


@dataclass
class Bench:
    """One store and all around it."""

    stub: store_pb2_grpc.TrajectoryStoreServiceAsyncStub
    store: TrajectoryStore
    queue: TransferQueue
    sweeper: Sweeper
    saver: RowSaver
    restorer: RowRestorer
    service: StoreService
    replay: Replay
    stopping: asyncio.Event
    waits: Waits
    stop_replay: Callable[[], Awaitable[None]]
    start_replay: Callable[[], Awaitable[None]]


def new_waits() -> Waits:
    return Waits(stall_after_s=60)


async def serve(stack: AsyncExitStack, add: Callable[[grpc.aio.Server], object], port: int) -> str:
    server = create_server(CollectorRegistry())
    add(server)
    address = bind(server, "127.0.0.1", port)
    await server.start()
    stack.push_async_callback(server.stop, None)
    return address


@dataclass
class ReplayServer:
    """The replay buffer's server, that can go away and come back at the same address."""

    replay: Replay
    port: int = 0
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        def add(server: grpc.aio.Server) -> None:
            replay_pb2_grpc.add_ReplayBufferServiceServicer_to_server(self.replay, server)

        address = await serve(self.stack, add, self.port)
        self.port = int(address.rpartition(":")[2])

    async def stop(self) -> None:
        await self.stack.aclose()


@asynccontextmanager
async def open_bench(
    directory: Path,
    nodes: Nodes | None = None,
    *,
    unit_count: int = 2,
    capacity_bytes: int = CAPACITY_BYTES,
    now: Callable[[], float] = time.monotonic,
    log: StoreLog | None = None,
) -> AsyncIterator[Bench]:
    """Serve a store.

    Args:
        directory: Where files pass on their way to and from a checkpoint.
        nodes: A TransferQueue that others use, too: nothing may be restored then. None = its own.
        unit_count: Its storage units.
        capacity_bytes: What the store takes.
        now: The store's clock.
        log: Its log.

    """
    waits, stopping = new_waits(), asyncio.Event()
    starting = Starting("r", unit_count, 20, waits, hold_s=600)
    if nodes is None:
        backend = await starting.backend()
        await backend.queue.open_probe()
    else:
        client = nodes.attach("test")
        queue = TransferQueue(client, unit_count=unit_count, timeout_s=20, waits=waits)
        backend = Backend(nodes, client, queue)
    store = TrajectoryStore(
        backend.queue,
        incarnation="life1" if log is None else log.incarnation,
        capacity_bytes=capacity_bytes,
        now=now,
        log=log,
    )
    scratch = Scratch(directory)
    saver = RowSaver(
        store, scratch=scratch, run_id="r", owner="store", unit_count=unit_count, waits=waits
    )
    restorer = RowRestorer(store, backend, starting=starting, scratch=scratch)
    replay = Replay()  # type: ignore[abstract]  # the rest is not called
    async with AsyncExitStack() as stack:
        replay_server = ReplayServer(replay)
        await replay_server.start()
        stack.push_async_callback(replay_server.stop)
        to_replay = await stack.enter_async_context(open_channel(f"127.0.0.1:{replay_server.port}"))
        sweeper = Sweeper(
            store,
            replay_pb2_grpc.ReplayBufferServiceStub(to_replay),
            waits=waits,
            stopping=stopping,
        )
        service = StoreService(lambda: status_pb2.ProcessStatus(process="store"))
        service.open(store, sweeper, saver, restorer)
        address = await serve(stack, service.add_to, 0)
        to_store = await stack.enter_async_context(open_channel(address))
        try:
            yield Bench(
                stub=store_pb2_grpc.TrajectoryStoreServiceStub(to_store),
                store=store,
                queue=backend.queue,
                sweeper=sweeper,
                saver=saver,
                restorer=restorer,
                service=service,
                replay=replay,
                stopping=stopping,
                waits=waits,
                stop_replay=replay_server.stop,
                start_replay=replay_server.start,
            )
        finally:
            await service.close()
            if nodes is None:
                await restorer.close()
            else:
                store.hold.end(store.hold.hold_id)
                await store.delete(store.age_limit(0))
                backend.client.close()


def trajectory(session: int, *, uid: str = "e0r1", tokens: int = 4) -> Trajectory:
    return Trajectory(
        schema_version=1,
        key=f"{uid}_{session}_0_ab12a1",
        prompt_token_ids=[5, 6, 7],
        response_token_ids=range(tokens),
        logprobs=[-0.5] * tokens,
        loss_mask=[True] * tokens,
        reward=1.0,
        weight_spans=[
            WeightSpan(lineage="ab12", version=3, begin=0, end=2),
            WeightSpan(lineage="ab12", version=4, begin=2, end=tokens),
        ],
    )


def value_of(message: Trajectory) -> Value:
    return Value.sealed(message.key, message.SerializeToString())
