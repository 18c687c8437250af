"""The group over which the trainer sends weights to this worker's engine, as the worker sees it.

Knows nothing of NCCL. No call is repeated: whoever is in doubt opens another group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from headrace.errors import WireError
from headrace.log import get_logger
from headrace.rollout.engines.base import EngineError
from headrace.rollout.engines.receiver import Invitation
from headrace.rpc.failures import detail_of, failure_of
from headrace.v1 import prompt_pb2
from headrace.v1 import trainer_pb2 as pb

if TYPE_CHECKING:
    from headrace.v1 import trainer_pb2_grpc

_CLOSE_S: Final = 5.0

log = get_logger()


class WeightsGroup:
    """One worker's group.

    Args:
        trainer: Who sends.
        worker_id: Who receives.
        timeout_s: How long joining may take, and receiving a version.

    """

    def __init__(
        self,
        trainer: trainer_pb2_grpc.TrainerServiceAsyncStub,
        *,
        worker_id: str,
        timeout_s: float,
    ) -> None:
        self.timeout_s = timeout_s
        self._trainer = trainer
        self._worker_id = worker_id
        self._group_id = ""

    @property
    def is_open(self) -> bool:
        """Whether there is one, as far as is known here."""
        return bool(self._group_id)

    async def open(self, receiver_count: int) -> Invitation:
        """Have the trainer open one for so many processes; the one before is ended.

        Raises:
            EngineError: It cannot, or is away.

        """
        self._group_id = ""
        request = pb.OpenWeightsGroupRequest(
            worker_id=self._worker_id, receiver_count=receiver_count
        )
        try:
            answer = await self._trainer.OpenWeightsGroup(request, timeout=self.timeout_s)
        except grpc.aio.AioRpcError as failed:
            raise _refused(failed) from failed
        self._group_id = answer.group_id
        return Invitation(
            answer.nccl_unique_id, answer.packed_buffer_bytes, answer.packed_buffer_count
        )

    async def send(self, weights: prompt_pb2.WeightsId) -> None:
        """Have the trainer begin to send a version.

        Raises:
            EngineError: It does not.

        """
        request = pb.SendWeightsRequest(group_id=self._group_id, id=weights)
        try:
            await self._trainer.SendWeights(request, timeout=self.timeout_s)
        except grpc.aio.AioRpcError as failed:
            raise _refused(failed) from failed

    async def close(self) -> None:
        """End it. If the trainer is away, it has ended it, or will: it is not used."""
        group_id, self._group_id = self._group_id, ""
        if group_id:
            request = pb.CloseWeightsGroupRequest(group_id=group_id)
            try:
                await self._trainer.CloseWeightsGroup(request, timeout=_CLOSE_S)
            except grpc.aio.AioRpcError as failed:
                log.info("weights_group_not_closed", error=detail_of(failed))


def _refused(failed: grpc.aio.AioRpcError) -> EngineError:
    error = failure_of(failed, "trainer")
    if isinstance(error, WireError):
        return EngineError(str(error))
    if failed.code() is grpc.StatusCode.UNIMPLEMENTED:
        return EngineError("the trainer is of a version that does not know of it")
    return EngineError(f"the trainer does not answer: {detail_of(failed)}")
