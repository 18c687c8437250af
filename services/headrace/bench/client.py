"""A feeder, a worker and a trainer of one run, as far as the replay buffer sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.bench.groups import STORE, WEIGHTS, completed, new_prompts
from headrace.rpc.calls import persist
from headrace.rpc.waits import Waits
from headrace.v1 import prompt_pb2
from headrace.v1 import replay_pb2 as pb

if TYPE_CHECKING:
    from headrace.v1 import replay_pb2_grpc

ROW_COUNT: Final = 10**9


class Client:
    """A feeder, a worker and a trainer of one run, without anything of their own to do."""

    def __init__(self, stub: replay_pb2_grpc.ReplayBufferServiceAsyncStub, address: str) -> None:
        self.stub = stub
        self.address = address
        self.cursor = 0
        """The next ordinal."""
        self.step = 1
        """The current step."""
        self._incarnation = 0
        self._lineage = ""

    async def open(self, *, opens_feed: bool) -> None:
        """Be there: as the store, the trainer with its first weights, and perhaps the feeder."""
        await persist(
            self.stub.GetReplayStatus,
            pb.GetReplayStatusRequest(),
            waits=Waits(stall_after_s=60),
            name="the replay buffer",
            owner="replay buffer",
        )
        if opens_feed:
            await self.stub.OpenFeed(pb.OpenFeedRequest(row_count=ROW_COUNT, fingerprint="bench"))
        await self.stub.RegisterStore(
            pb.RegisterStoreRequest(store_incarnation=STORE, capacity_bytes=10**15)
        )
        trainer = await self.stub.RegisterTrainer(pb.RegisterTrainerRequest(trainer_id="t"))
        self._incarnation, self._lineage = trainer.incarnation, trainer.lineage
        weights = prompt_pb2.PublishedWeights()
        weights.CopyFrom(WEIGHTS)
        weights.id.lineage = self._lineage
        await self.stub.PublishWeights(
            pb.PublishWeightsRequest(incarnation=self._incarnation, weights=weights)
        )

    async def demand(self, wait_s: float) -> int:
        """Wait for demand."""
        wanted = await self.stub.AwaitDemand(pb.AwaitDemandRequest(wait_s=wait_s))
        return wanted.demand

    async def feed(self, count: int) -> None:
        """Register so many prompts in one call."""
        request = pb.RegisterPromptsRequest(
            first_ordinal=self.cursor, prompts=new_prompts(self.cursor, count)
        )
        answer = await self.stub.RegisterPrompts(request)
        assert answer.accepted_count == count, "the window is too small for the benchmark"
        self.cursor = answer.cursor

    async def lease(self, worker: str, count: int, wait_s: float) -> Sequence[prompt_pb2.Lease]:
        """Lease up to so many prompts in one call."""
        answer = await self.stub.LeasePrompts(
            pb.LeasePromptsRequest(
                worker_id=worker,
                max_count=count,
                weights=prompt_pb2.WeightsId(lineage=self._lineage, version=0),
                weights_checksum=WEIGHTS.checksum,
                wait_s=wait_s,
            )
        )
        return answer.leases

    async def complete(self, worker: str, leases: Sequence[prompt_pb2.Lease]) -> None:
        """Complete all sessions of the leases in one call."""
        sessions = [
            session
            for lease in leases
            for session in completed(lease.uid, lease.attempt, lease.missing_sessions)
        ]
        await self.stub.CompleteSessions(
            pb.CompleteSessionsRequest(worker_id=worker, store_incarnation=STORE, sessions=sessions)
        )

    async def sample(self, part: int = 0, part_count: int = 1) -> None:
        """Take a part of the current step, waiting until it is ready."""
        answer = await self.stub.SampleBatch(
            pb.SampleBatchRequest(
                incarnation=self._incarnation,
                step=self.step,
                part=part,
                part_count=part_count,
                wait_s=5.0,
            )
        )
        assert answer.status == pb.SAMPLE_STATUS_READY, answer.blocked_by

    async def commit(self) -> None:
        """Commit the current step."""
        await self.stub.CommitStep(
            pb.CommitStepRequest(incarnation=self._incarnation, step=self.step)
        )
        self.step += 1
