"""Plays the coordinator to a trainer: snapshots of which it believes each word, and resumes.

It answers what a trainer asks, as the protos say, and writes down every call.
"""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.errors import SnapshotFailedError, SnapshotLostError
from headrace.v1 import checkpoint_pb2 as pb
from headrace.v1 import checkpoint_pb2_grpc, resume_pb2

LINEAGE = "b"
"""The time line of a trainer that goes on."""


class Coordinator(checkpoint_pb2_grpc.CheckpointCoordinatorServiceServicer):
    """Has a checkpoint of every step whose part was reported and committed."""

    def __init__(self, peers: Any) -> None:
        self.peers = peers
        self.calls: list[tuple[Any, ...]] = []
        self.facts: dict[str, str] = {}
        self.parts: dict[int, resume_pb2.CheckpointPart] = {}
        """Trainer's parts of complete checkpoints, by step."""
        self.reported: dict[str, resume_pb2.CheckpointPart] = {}
        self.may_commit = asyncio.Event()
        """Snapshots are complete only while it is set."""
        self.may_commit.set()
        self.begun = asyncio.Event()
        """Set when a snapshot has begun."""
        self.failures: list[str] = []
        """Why the next snapshots fail; taken one by one."""
        self.refusal: Exception | None = None
        """What a resume is refused with."""
        self.is_over = False

    async def BeginSnapshot(self, request: Any, context: Any) -> pb.BeginSnapshotResponse:
        self.calls.append(("begin", request.step))
        self.facts = dict(request.facts)
        self.begun.set()
        return pb.BeginSnapshotResponse(
            snapshot_id=f"s{request.step}", complete=request.step in self.parts
        )

    async def ReportPart(self, request: Any, context: Any) -> pb.ReportPartResponse:
        if request.error:
            self.calls.append(("no part", request.snapshot_id, request.error))
            return pb.ReportPartResponse()
        self.calls.append(("part", request.snapshot_id))
        self.reported[request.snapshot_id] = request.part
        return pb.ReportPartResponse()

    async def CommitSnapshot(self, request: Any, context: Any) -> pb.CommitSnapshotResponse:
        if self.failures:
            raise SnapshotFailedError(self.failures.pop(0))
        if request.snapshot_id not in self.reported:
            raise SnapshotLostError("never reported")
        try:
            await asyncio.wait_for(self.may_commit.wait(), min(request.wait_s, 0.2))
        except TimeoutError:
            return pb.CommitSnapshotResponse()
        step = int(request.snapshot_id[1:])
        self.calls.append(("complete", step))
        self.parts[step] = self.reported[request.snapshot_id]
        return pb.CommitSnapshotResponse(complete=True, seconds=0.1, size_bytes=1)

    async def Resume(self, request: Any, context: Any) -> pb.ResumeResponse:
        self.calls.append(("resume", request.until_phase))
        if self.refusal is not None:
            raise self.refusal
        if self.is_over:
            return pb.ResumeResponse(plan=pb.ResumePlan(action=pb.RESUME_ACTION_FINISHED))
        if not self.peers.published:
            return pb.ResumeResponse(plan=pb.ResumePlan(action=pb.RESUME_ACTION_BEGIN))
        step = max(self.parts, default=0)
        opened = self.peers.lineage == LINEAGE
        phase = resume_pb2.RESUME_PHASE_OPEN if opened else resume_pb2.RESUME_PHASE_WEIGHTS
        return pb.ResumeResponse(
            plan=pb.ResumePlan(action=pb.RESUME_ACTION_ROLL_BACK, step=step),
            state=resume_pb2.ResumeState(phase=phase, step=step, lineage=LINEAGE),
            trainer_part=self.parts.get(step),
            blocked_by="" if opened else "weights to be confirmed",
        )
