"""The trainer's RPCs: they show the progress, give weights, and take the wish for a snapshot."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing

import grpc

from headrace.errors import InvalidFieldError, SnapshotFailedError, WeightsGroupError
from headrace.trainer.progress import Progress
from headrace.trainer.weights_groups import WeightsGroups
from headrace.trainer.weights_server import WeightsServer
from headrace.v1 import status_pb2, trainer_pb2_grpc
from headrace.v1 import trainer_pb2 as pb


class TrainerService(trainer_pb2_grpc.TrainerServiceServicer):
    """TrainerService.

    Args:
        status: what the process says about itself.
        progress: what is shown.
        weights: reads weight versions.
        groups: sends them over NCCL; None if that is not configured.
        saves: whether the run has checkpoints.

    """

    def __init__(
        self,
        status: Callable[[], status_pb2.ProcessStatus],
        progress: Progress,
        weights: WeightsServer,
        *,
        groups: WeightsGroups | None = None,
        saves: bool = False,
    ) -> None:
        self._status = status
        self._progress = progress
        self._weights = weights
        self._groups = groups
        self._saves = saves

    def add_to(self, server: grpc.aio.Server) -> Sequence[str]:
        """Add the service to a server; return its full name."""
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server(self, server)
        return [pb.DESCRIPTOR.services_by_name["TrainerService"].full_name]

    async def GetTrainerStatus(
        self,
        request: pb.GetTrainerStatusRequest,
        context: grpc.aio.ServicerContext[pb.GetTrainerStatusRequest, pb.GetTrainerStatusResponse],
    ) -> pb.GetTrainerStatusResponse:
        """Say where the trainer is."""
        progress = self._progress
        return pb.GetTrainerStatusResponse(
            process=self._status(),
            phase=progress.phase,
            step=progress.step,
            total_steps=progress.total_steps,
            weight_version=progress.weight_version,
            saved_step=progress.saved_step,
            snapshot_stall_s=progress.snapshot_stall_s,
            snapshot_error=progress.snapshot_error,
        )

    async def WatchSteps(
        self,
        request: pb.WatchStepsRequest,
        context: grpc.aio.ServicerContext[pb.WatchStepsRequest, pb.WatchStepsResponse],
    ) -> AsyncIterator[pb.WatchStepsResponse]:
        """Stream the metrics of each step."""
        async for step, metrics in self._progress.steps(request.after_step):
            yield pb.WatchStepsResponse(step=step, metrics=metrics)

    async def RequestSnapshot(
        self,
        request: pb.RequestSnapshotRequest,
        context: grpc.aio.ServicerContext[pb.RequestSnapshotRequest, pb.RequestSnapshotResponse],
    ) -> pb.RequestSnapshotResponse:
        """Have a snapshot made at the end of the step."""
        if not self._saves:
            raise SnapshotFailedError("the run makes no checkpoints: trainer.save_freq is -1")
        self._progress.snapshot_requested = True
        return pb.RequestSnapshotResponse(step=self._progress.step)

    async def GetWeights(
        self,
        request: pb.GetWeightsRequest,
        context: grpc.aio.ServicerContext[pb.GetWeightsRequest, pb.GetWeightsResponse],
    ) -> AsyncIterator[pb.GetWeightsResponse]:
        """Stream a file of a weight version."""
        pieces = self._weights.read(
            request.id.lineage, request.id.version, request.file, request.offset_bytes
        )
        async with aclosing(pieces):
            async for piece in pieces:
                yield pb.GetWeightsResponse(data=piece)

    async def OpenWeightsGroup(
        self,
        request: pb.OpenWeightsGroupRequest,
        context: grpc.aio.ServicerContext[pb.OpenWeightsGroupRequest, pb.OpenWeightsGroupResponse],
    ) -> pb.OpenWeightsGroupResponse:
        """Open a group that weights are sent to."""
        if not request.worker_id:
            raise InvalidFieldError("worker_id", "must not be empty")
        if request.receiver_count < 1:
            raise InvalidFieldError("receiver_count", "must be 1 at least")
        group_id, invitation = await self._sending().open(request.worker_id, request.receiver_count)
        return pb.OpenWeightsGroupResponse(
            group_id=group_id,
            nccl_unique_id=base64.b64decode(invitation["unique_id"]),
            packed_buffer_bytes=invitation["packed_buffer_bytes"],
            packed_buffer_count=invitation["packed_buffer_count"],
        )

    async def SendWeights(
        self,
        request: pb.SendWeightsRequest,
        context: grpc.aio.ServicerContext[pb.SendWeightsRequest, pb.SendWeightsResponse],
    ) -> pb.SendWeightsResponse:
        """Have a version sent to a group."""
        version = self._weights.locate(request.id.lineage, request.id.version)
        await self._sending().send(request.group_id, version)
        return pb.SendWeightsResponse()

    async def CloseWeightsGroup(
        self,
        request: pb.CloseWeightsGroupRequest,
        context: grpc.aio.ServicerContext[
            pb.CloseWeightsGroupRequest, pb.CloseWeightsGroupResponse
        ],
    ) -> pb.CloseWeightsGroupResponse:
        """End a group."""
        if self._groups is not None:
            await self._groups.close_group(request.group_id)
        return pb.CloseWeightsGroupResponse()

    def _sending(self) -> WeightsGroups:
        if self._groups is None:
            raise WeightsGroupError("this trainer does not have weights.transport: nccl")
        return self._groups
