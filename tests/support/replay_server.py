"""A real replay buffer on a port of its own, in the test's event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from prometheus_client import CollectorRegistry
from replay_resumes import ReplayResumes

from headrace.replay.buffer import ReplayBuffer
from headrace.replay.deadlines import LeaseDeadlines
from headrace.replay.journal.base import Journal
from headrace.replay.journal.committer import Committer
from headrace.replay.journal.file import FileJournal
from headrace.replay.load import open_ledger
from headrace.replay.service.service import ReplayService
from headrace.replay.settings import LedgerSettings
from headrace.replay.workers import Workers
from headrace.rpc.server import bind, create_server
from headrace.v1 import prompt_pb2, status_pb2
from headrace.v1 import replay_pb2 as pb
from headrace.v1.replay_pb2_grpc import (
    ReplayBufferServiceStub,
    add_ReplayBufferServiceServicer_to_server,
)

if TYPE_CHECKING:
    from headrace.v1.replay_pb2_grpc import ReplayBufferServiceAsyncStub


class Replay(ReplayResumes):
    """What a test needs of a running replay buffer."""

    def __init__(
        self, buffer: ReplayBuffer, stub: ReplayBufferServiceAsyncStub, target: str
    ) -> None:
        self.buffer = buffer
        self.stub = stub
        self.target = target

    async def begin(self, *, row_count: int = 1000, capacity_bytes: int = 10**9) -> int:
        """Open the feed, register store and trainer, publish weights 0; give the incarnation."""
        await self.stub.OpenFeed(pb.OpenFeedRequest(row_count=row_count, fingerprint="f"))
        await self.stub.RegisterStore(
            pb.RegisterStoreRequest(store_incarnation="s1", capacity_bytes=capacity_bytes)
        )
        trainer = await self.stub.RegisterTrainer(pb.RegisterTrainerRequest(trainer_id="t1"))
        await self.publish(trainer.incarnation, 0)
        return trainer.incarnation

    async def publish(self, incarnation: int, version: int) -> None:
        weights = prompt_pb2.PublishedWeights(id=self.weights(version), uri="u", checksum="c")
        await self.stub.PublishWeights(
            pb.PublishWeightsRequest(incarnation=incarnation, weights=weights)
        )

    def weights(self, version: int) -> prompt_pb2.WeightsId:
        return prompt_pb2.WeightsId(lineage=self.buffer.ledger.lineage, version=version)

    async def feed(self, wait_s: float = 0) -> int:
        wanted = await self.stub.AwaitDemand(pb.AwaitDemandRequest(wait_s=wait_s))
        prompts = [pb.NewPrompt(uid=f"e0r{wanted.cursor + i}") for i in range(wanted.demand)]
        if prompts:
            await self.stub.RegisterPrompts(
                pb.RegisterPromptsRequest(first_ordinal=wanted.cursor, prompts=prompts)
            )
        return len(prompts)

    async def lease(
        self, count: int = 64, *, worker: str = "w", version: int = 0, wait_s: float = 0
    ) -> list[prompt_pb2.Lease]:
        answer = await self.stub.LeasePrompts(
            pb.LeasePromptsRequest(
                worker_id=worker,
                max_count=count,
                weights=self.weights(version),
                weights_checksum="c",
                wait_s=wait_s,
            ),
            timeout=wait_s + 30,
        )
        return list(answer.leases)

    def completion(
        self, leases: list[prompt_pb2.Lease], *, worker: str = "w", version: int = 0
    ) -> pb.CompleteSessionsRequest:
        return pb.CompleteSessionsRequest(
            worker_id=worker,
            store_incarnation="s1",
            sessions=[
                pb.CompletedSession(
                    lease=pb.LeaseRef(uid=lease.uid, attempt=lease.attempt),
                    record=prompt_pb2.SessionRecord(
                        session=session,
                        trajectory_count=1,
                        size_bytes=10,
                        min_version=version,
                        max_version=version,
                    ),
                )
                for lease in leases
                for session in lease.missing_sessions
            ],
        )


@asynccontextmanager
async def replay_server(
    where: Path | Journal,
    settings: LedgerSettings,
    *,
    clock: Callable[[], float] = time.monotonic,
    lease_s: float = 60.0,
    port: int = 0,
) -> AsyncIterator[Replay]:
    """Serve the ledger of a journal, or of a directory; stop without ceremony at the end."""
    journal = FileJournal(where, fsync=False) if isinstance(where, Path) else where
    ledger = open_ledger(journal, settings, run_id="r", new_lineage="l0")
    committer = Committer(journal, durable_position=journal.position, wall_clock=time.time)
    buffer = ReplayBuffer(
        ledger,
        settings,
        committer,
        deadlines=LeaseDeadlines(clock=clock, lease_s=lease_s),
        workers=Workers(clock=clock, timeout_s=60),
        stopping=asyncio.Event(),
    )
    buffer.take_up()
    running = asyncio.create_task(committer.run())
    server = create_server(CollectorRegistry())
    service = ReplayService(status_pb2.ProcessStatus)
    service.open(buffer, journal)
    add_ReplayBufferServiceServicer_to_server(service, server)
    target = bind(server, "127.0.0.1", port)
    await server.start()
    async with grpc.aio.insecure_channel(target) as channel:
        stub: ReplayBufferServiceAsyncStub = ReplayBufferServiceStub(channel)
        yield Replay(buffer, stub, target)
    buffer.stopping.set()
    buffer.wake()
    await server.stop(0)
    committer.stop()
    if committer.failure is None:
        await running
    else:
        await asyncio.gather(running, return_exceptions=True)
    journal.close()
