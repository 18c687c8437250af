"""The trainer's RPCs: they show the progress, give weights, and take the wish for a snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing

import grpc

from headrace.errors import SnapshotFailedError
from headrace.trainer.progress import Progress
from headrace.trainer.weights_server import WeightsServer
from headrace.v1 import status_pb2, trainer_pb2_grpc
from headrace.v1 import trainer_pb2 as pb


class TrainerService(trainer_pb2_grpc.TrainerServiceServicer):
    """TrainerService.

    Args:
        status: what the process says about itself.
        progress: what is shown.
        weights: reads weight versions.
        saves: whether the run has checkpoints.

    """

    def __init__(
        self,
        status: Callable[[], status_pb2.ProcessStatus],
        progress: Progress,
        weights: WeightsServer,
        *,
        saves: bool = False,
    ) -> None:
        self._status = status
        self._progress = progress
        self._weights = weights
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
