"""The trainer's RPCs: they show the progress, give weights, and change nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing

import grpc

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

    """

    def __init__(
        self,
        status: Callable[[], status_pb2.ProcessStatus],
        progress: Progress,
        weights: WeightsServer,
    ) -> None:
        self._status = status
        self._progress = progress
        self._weights = weights

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
        )

    async def WatchSteps(
        self,
        request: pb.WatchStepsRequest,
        context: grpc.aio.ServicerContext[pb.WatchStepsRequest, pb.WatchStepsResponse],
    ) -> AsyncIterator[pb.WatchStepsResponse]:
        """Stream the metrics of each step."""
        async for step, metrics in self._progress.steps(request.after_step):
            yield pb.WatchStepsResponse(step=step, metrics=metrics)

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
