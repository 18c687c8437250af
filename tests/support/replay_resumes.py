"""Snapshots and resumes over the wire, as a part of `replay_server.Replay`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.v1 import prompt_pb2, resume_pb2
from headrace.v1 import replay_pb2 as pb

if TYPE_CHECKING:
    from headrace.replay.buffer import ReplayBuffer
    from headrace.v1.replay_pb2_grpc import ReplayBufferServiceAsyncStub

STORE = resume_pb2.RESUME_PHASE_STORE
LEDGER = resume_pb2.RESUME_PHASE_LEDGER
WEIGHTS = resume_pb2.RESUME_PHASE_WEIGHTS
REISSUE = resume_pb2.RESUME_PHASE_REISSUE
WARMUP = resume_pb2.RESUME_PHASE_WARMUP
OPEN = resume_pb2.RESUME_PHASE_OPEN


class ReplayResumes:
    """What a coordinator asks of a replay buffer, and a trainer that dies."""

    buffer: ReplayBuffer
    stub: ReplayBufferServiceAsyncStub

    if TYPE_CHECKING:  # the other parties

        def weights(self, version: int) -> prompt_pb2.WeightsId: ...
        async def publish(self, incarnation: int, version: int) -> None: ...
        async def feed(self, wait_s: float = 0) -> int: ...
        async def lease(
            self, count: int = 64, *, worker: str = "w", version: int = 0, wait_s: float = 0
        ) -> list[prompt_pb2.Lease]: ...
        def completion(
            self, leases: list[prompt_pb2.Lease], *, worker: str = "w", version: int = 0
        ) -> pb.CompleteSessionsRequest: ...

    async def train(self, incarnation: int, first: int, last: int) -> None:
        """Train these steps; everything that may be made is made."""
        for step in range(first, last + 1):
            await self.sample(incarnation, step)
            while True:
                await self.feed()
                leases = await self.lease(version=step - 1)
                if not leases:
                    break
                await self.stub.CompleteSessions(self.completion(leases, version=step - 1))
            assert (await self.sample(incarnation, step)).status == pb.SAMPLE_STATUS_READY
            await self.stub.CommitStep(pb.CommitStepRequest(incarnation=incarnation, step=step))
            await self.publish(incarnation, step)

    async def sample(
        self, incarnation: int, step: int, *, wait_s: float = 0
    ) -> pb.SampleBatchResponse:
        request = pb.SampleBatchRequest(
            incarnation=incarnation, step=step, part_count=1, wait_s=wait_s
        )
        return await self.stub.SampleBatch(request)

    async def lease_with(
        self, weights: prompt_pb2.WeightsId, *, wait_s: float = 0
    ) -> pb.LeasePromptsResponse:
        """Ask for leases with these weights, whatever comes of it."""
        return await self.stub.LeasePrompts(
            pb.LeasePromptsRequest(
                worker_id="w", max_count=8, weights=weights, weights_checksum="c", wait_s=wait_s
            )
        )

    # -- a snapshot

    async def begin_cut(
        self, incarnation: int, step: int, name: str = "snapshot"
    ) -> pb.BeginCutResponse:
        return await self.stub.BeginCut(
            pb.BeginCutRequest(snapshot_id=name, incarnation=incarnation, step=step)
        )

    async def write_cut(self, uri: str, name: str = "snapshot") -> resume_pb2.CheckpointPart:
        answer = await self.stub.WriteCut(pb.WriteCutRequest(snapshot_id=name, uri=uri))
        return answer.part

    async def end_cut(self, oldest_step: int, name: str = "snapshot") -> None:
        await self.stub.EndCut(
            pb.EndCutRequest(snapshot_id=name, committed=True, oldest_step=oldest_step)
        )

    # -- a resume

    async def begin_resume(self, step: int, name: str = "resume") -> int:
        """Have a new trainer come, and begin its resume; gives its incarnation."""
        trainer = await self.stub.RegisterTrainer(
            pb.RegisterTrainerRequest(trainer_id=f"of {name}")
        )
        await self.stub.BeginResume(
            pb.BeginResumeRequest(resume_id=name, incarnation=trainer.incarnation, step=step)
        )
        return trainer.incarnation

    async def advance(
        self, phase: resume_pb2.ResumePhase.ValueType, *, wait_s: float = 0, name: str = "resume"
    ) -> pb.AdvanceResumeResponse:
        return await self.stub.AdvanceResume(
            pb.AdvanceResumeRequest(resume_id=name, phase=phase, wait_s=wait_s)
        )

    async def roll_back(
        self,
        *,
        store: str = "s1",
        follows: str | None = None,
        salvage: bool = True,
        name: str = "resume",
        **more: Any,
    ) -> pb.RollBackResponse:
        """Roll back; the store follows the life that is known now, unless another is named."""
        if follows is None:
            known = await self.stub.GetReplayStatus(pb.GetReplayStatusRequest())
            follows = known.store_incarnation
        return await self.stub.RollBack(
            pb.RollBackRequest(
                resume_id=name,
                store_incarnation=store,
                store_follows=follows,
                salvage=salvage,
                **more,
            )
        )

    async def to_ledger(self, name: str = "resume") -> None:
        for phase in (STORE, LEDGER):
            await self.advance(phase, name=name)

    async def to_reissue(self, trainer: int, step: int, **rollback: Any) -> None:
        """Go on from PLAN until rows are to be checked."""
        await self.to_ledger()
        await self.roll_back(**rollback)
        await self.advance(WEIGHTS)
        await self.publish(trainer, step)
        await self.lease_with(self.weights(step))
        assert (await self.advance(REISSUE)).state.phase == REISSUE

    async def until_phase(
        self, trainer: int, step: int, phase: Any, *, name: str = "resume"
    ) -> None:
        """Go on as far as this phase, from wherever the resume is; None = not at all."""
        for stage in (STORE, LEDGER, "rolled back", WEIGHTS, REISSUE, WARMUP, OPEN):
            if phase is None:
                return
            if stage == "rolled back":
                await self.roll_back(name=name)
            else:
                if stage == REISSUE:
                    await self.publish(trainer, step)
                    await self.lease_with(self.weights(step))
                if stage == OPEN:
                    await self.feed()
                answer = await self.advance(stage, name=name)  # type: ignore[arg-type]
                assert not answer.blocked_by
            if stage == phase:
                return

    async def keys(self) -> list[str]:
        """List all keys, page by page."""
        keys: list[str] = []
        token = ""
        while True:
            page = await self.stub.ListTrajectories(pb.ListTrajectoriesRequest(page_token=token))
            keys += page.keys
            token = page.next_page_token
            if not token:
                return keys

    async def report_lost(self, keys: list[str], name: str = "resume") -> int:
        answer = await self.stub.ReportLostTrajectories(
            pb.ReportLostTrajectoriesRequest(resume_id=name, keys=keys)
        )
        return answer.group_count

    async def status(self) -> pb.GetReplayStatusResponse:
        """Say where the run is, without what is of this life of the process."""
        answer = await self.stub.GetReplayStatus(pb.GetReplayStatusRequest())
        answer.ClearField("workers")
        answer.ClearField("addresses")
        answer.ClearField("process")
        return answer
