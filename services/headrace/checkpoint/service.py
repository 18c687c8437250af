"""The coordinator's RPCs: check, ask, shape."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Final

from headrace.checkpoint.changes import Changes
from headrace.checkpoint.directory import CheckpointDirectory
from headrace.checkpoint.listing import list_checkpoints
from headrace.checkpoint.peers import Peers
from headrace.checkpoint.planner import Planner
from headrace.checkpoint.resumes import Resumes
from headrace.checkpoint.snapshots import Snapshots
from headrace.errors import InvalidFieldError, NotReadyError
from headrace.rpc.calls import Stopped
from headrace.v1 import checkpoint_pb2 as pb
from headrace.v1 import checkpoint_pb2_grpc, resume_pb2, status_pb2

if TYPE_CHECKING:
    import grpc

LONGEST_WAIT_S: Final = 60.0
WATCH_S: Final = 60.0
"""Seconds after which an unchanged state is sent again."""


class CheckpointService(checkpoint_pb2_grpc.CheckpointCoordinatorServiceServicer):
    """CheckpointCoordinatorService. Answers NOT_READY until `open`.

    Args:
        status: What the process says about itself.

    """

    def __init__(self, status: Callable[[], status_pb2.ProcessStatus]) -> None:
        self._process_status = status
        self._is_open = asyncio.Event()

    def open(
        self,
        *,
        snapshots: Snapshots,
        resumes: Resumes,
        planner: Planner,
        directory: CheckpointDirectory,
        peers: Peers,
        changes: Changes,
        own_facts: dict[str, str],
        stopping: asyncio.Event,
    ) -> None:
        """Answer from now on."""
        self._snapshots = snapshots
        self._resumes = resumes
        self._planner = planner
        self._directory = directory
        self._peers = peers
        self._changes = changes
        self._own_facts = own_facts
        self._stopping = stopping
        self._is_open.set()

    def add_to(self, server: grpc.aio.Server) -> Sequence[str]:
        """Add the service to a server; return its full name."""
        checkpoint_pb2_grpc.add_CheckpointCoordinatorServiceServicer_to_server(self, server)
        return [pb.DESCRIPTOR.services_by_name["CheckpointCoordinatorService"].full_name]

    async def BeginSnapshot(
        self,
        request: pb.BeginSnapshotRequest,
        context: grpc.aio.ServicerContext[pb.BeginSnapshotRequest, pb.BeginSnapshotResponse],
    ) -> pb.BeginSnapshotResponse:
        """Begin a snapshot."""
        self._ready()
        if request.step < 1:
            raise InvalidFieldError("step", "must be 1 or more")
        try:
            snapshot_id, complete = await self._snapshots.begin(
                request.incarnation, request.step, dict(request.facts)
            )
        except Stopped as error:
            raise NotReadyError(str(error)) from error
        return pb.BeginSnapshotResponse(snapshot_id=snapshot_id, complete=complete)

    async def ReportPart(
        self,
        request: pb.ReportPartRequest,
        context: grpc.aio.ServicerContext[pb.ReportPartRequest, pb.ReportPartResponse],
    ) -> pb.ReportPartResponse:
        """Note the trainer's part, or why there is none."""
        self._ready()
        self._snapshots.report(request.snapshot_id, request.part, request.error)
        return pb.ReportPartResponse()

    async def CommitSnapshot(
        self,
        request: pb.CommitSnapshotRequest,
        context: grpc.aio.ServicerContext[pb.CommitSnapshotRequest, pb.CommitSnapshotResponse],
    ) -> pb.CommitSnapshotResponse:
        """Wait for a snapshot."""
        self._ready()
        snapshot = await self._snapshots.commit(request.snapshot_id, _wait(request.wait_s))
        return pb.CommitSnapshotResponse(
            complete=snapshot.complete, seconds=snapshot.seconds, size_bytes=snapshot.size_bytes
        )

    async def ListCheckpoints(
        self,
        request: pb.ListCheckpointsRequest,
        context: grpc.aio.ServicerContext[pb.ListCheckpointsRequest, pb.ListCheckpointsResponse],
    ) -> pb.ListCheckpointsResponse:
        """List checkpoints."""
        self._ready()
        try:
            found = await asyncio.to_thread(list_checkpoints, self._directory, read=request.verify)
        except OSError as error:
            raise NotReadyError(f"the storage cannot be read: {error}") from error
        last = self._snapshots.last
        being_made = last.step if last is not None and last.under_way else 0
        return pb.ListCheckpointsResponse(
            checkpoints=[one for one in found if one.step != being_made or one.abandoned]
        )

    async def PlanResume(
        self,
        request: pb.PlanResumeRequest,
        context: grpc.aio.ServicerContext[pb.PlanResumeRequest, pb.PlanResumeResponse],
    ) -> pb.PlanResumeResponse:
        """Say what a trainer that came now would go on from."""
        self._ready()
        try:
            status = await self._peers.status()
            store = await self._peers.store_status()
            plan = await self._planner.plan(status, store, request.facts or self._own_facts)
        except Stopped as error:
            raise NotReadyError(str(error)) from error
        except OSError as error:
            raise NotReadyError(f"the storage cannot be read: {error}") from error
        return pb.PlanResumeResponse(plan=plan.message())

    async def Resume(
        self,
        request: pb.ResumeRequest,
        context: grpc.aio.ServicerContext[pb.ResumeRequest, pb.ResumeResponse],
    ) -> pb.ResumeResponse:
        """Go on."""
        self._ready()
        if not resume_pb2.RESUME_PHASE_PLAN <= request.until_phase <= resume_pb2.RESUME_PHASE_OPEN:
            raise InvalidFieldError("until_phase", "must be a phase")
        try:
            resume = await self._resumes.resume(
                request.incarnation,
                dict(request.facts),
                request.until_phase,
                _wait(request.wait_s),
            )
        except Stopped as error:
            raise NotReadyError(str(error)) from error
        answer = pb.ResumeResponse(blocked_by=resume.blocked_by)
        if resume.plan is not None:
            answer.plan.CopyFrom(resume.plan.message())
        if resume.state is not None:
            answer.state.CopyFrom(resume.state)
        if (part := resume.trainer_part()) is not None:
            answer.trainer_part.CopyFrom(part)
        return answer

    async def GetCoordinatorStatus(
        self,
        request: pb.GetCoordinatorStatusRequest,
        context: grpc.aio.ServicerContext[
            pb.GetCoordinatorStatusRequest, pb.GetCoordinatorStatusResponse
        ],
    ) -> pb.GetCoordinatorStatusResponse:
        """Say what the coordinator does; of the process alone while it starts."""
        return self._status()

    async def WatchProgress(
        self,
        request: pb.WatchProgressRequest,
        context: grpc.aio.ServicerContext[pb.WatchProgressRequest, pb.WatchProgressResponse],
    ) -> AsyncIterator[pb.WatchProgressResponse]:
        """Stream the state, as it changes."""
        self._ready()
        while not self._stopping.is_set():
            change = asyncio.ensure_future(self._changes.next())
            try:
                yield pb.WatchProgressResponse(status=self._status())
                await asyncio.wait([change], timeout=WATCH_S)
            finally:
                change.cancel()

    def _status(self) -> pb.GetCoordinatorStatusResponse:
        status = pb.GetCoordinatorStatusResponse(process=self._process_status())
        if not self._is_open.is_set():
            return status
        status.saved_step = self._snapshots.saved_step
        status.storage = self._directory.storage.url
        last, whole = self._snapshots.last, self._snapshots.whole
        if whole is not None:
            status.snapshot_seconds = whole.seconds
            status.snapshot_bytes = whole.size_bytes
            status.longest_put_wait_s = whole.longest_put_wait_s
        status.snapshot_error = self._snapshots.error
        if last is not None and last.under_way:
            status.snapshot.CopyFrom(last.state())
        if (state := self._resumes.state) is not None:
            status.resume.CopyFrom(state)
        return status

    def _ready(self) -> None:
        if not self._is_open.is_set():
            raise NotReadyError("the coordinator waits for the replay buffer and the store")


def _wait(wait_s: float) -> float:
    if not 0 <= wait_s <= LONGEST_WAIT_S:
        raise InvalidFieldError("wait_s", f"must be 0 to {LONGEST_WAIT_S:g}")
    return wait_s
