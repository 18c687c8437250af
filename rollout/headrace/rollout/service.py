"""RolloutWorkerService: how others look at a worker and send it home."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc

from headrace.rollout.worker import Worker
from headrace.v1 import rollout_pb2 as pb
from headrace.v1 import rollout_pb2_grpc, status_pb2


class WorkerService(rollout_pb2_grpc.RolloutWorkerServiceServicer):
    """The RPCs.

    Args:
        worker: Who is looked at.
        status: What the process says about itself.
        stop: Asks the process to stop, as SIGTERM does.
        stopping: Whether it was asked to.

    """

    def __init__(
        self,
        worker: Worker,
        *,
        status: Callable[[], status_pb2.ProcessStatus],
        stop: Callable[[], None],
        stopping: Callable[[], bool],
    ) -> None:
        self._worker = worker
        self._status = status
        self._stop = stop
        self._stopping = stopping

    def add_to(self, server: grpc.aio.Server) -> Sequence[str]:
        """Add the service to a server; return its full name."""
        rollout_pb2_grpc.add_RolloutWorkerServiceServicer_to_server(self, server)
        return [pb.DESCRIPTOR.services_by_name["RolloutWorkerService"].full_name]

    async def GetWorkerStatus(
        self,
        request: pb.GetWorkerStatusRequest,
        context: grpc.aio.ServicerContext[pb.GetWorkerStatusRequest, pb.GetWorkerStatusResponse],
    ) -> pb.GetWorkerStatusResponse:
        """Say what the worker does."""
        worker = self._worker
        weights = worker.weights.current
        return pb.GetWorkerStatusResponse(
            process=self._status(),
            worker_id=worker.settings.worker_id,
            engine=worker.engine.kind,
            weight_version=weights.id.version if weights is not None else -1,
            lineage=weights.id.lineage if weights is not None else "",
            groups_in_flight=worker.group_count,
            completed_session_count=worker.completed_session_count,
            generated_token_count=worker.engine.status().generated_token_count,
            wasted_token_count=worker.wasted_token_count,
            draining=self._stopping(),
        )

    async def Drain(
        self,
        request: pb.DrainRequest,
        context: grpc.aio.ServicerContext[pb.DrainRequest, pb.DrainResponse],
    ) -> pb.DrainResponse:
        """Stop the process; the worker hands back what is not done."""
        groups_in_flight = self._worker.group_count
        self._stop()
        return pb.DrainResponse(groups_in_flight=groups_in_flight)
