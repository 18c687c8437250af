"""How a trainer comes to its run: it registers, and waits until the run has a length.

Knows what a trainer may not do before there are checkpoints: go on with another's steps.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.rpc.calls import Stopped, persist
from headrace.rpc.waits import Waits
from headrace.v1 import replay_pb2 as pb
from headrace.v1 import replay_pb2_grpc

if TYPE_CHECKING:
    ReplayStub = replay_pb2_grpc.ReplayBufferServiceAsyncStub

POLL_S = 0.2
"""Pause between two looks at whether the feed is open."""


class CannotResumeError(HeadraceError):
    """The run has steps or weights of an earlier trainer, which are lost."""


async def register(
    replay: ReplayStub,
    *,
    trainer_id: str,
    address: str = "",
    waits: Waits,
    stopping: asyncio.Event,
) -> pb.RegisterTrainerResponse:
    """Become the run's trainer, and wait until the number of its steps is known.

    Args:
        replay: the replay buffer.
        trainer_id: unique to this start of the trainer.
        address: where the trainer listens, for those who ask the replay buffer.
        waits: where waits are registered.
        stopping: ends them.

    Raises:
        CannotResumeError: an earlier trainer has published weights or committed steps.
        TrainerFencedError: a newer trainer has registered.
        Stopped: the process is to stop.

    """
    while True:
        response = await persist(
            replay.RegisterTrainer,
            pb.RegisterTrainerRequest(trainer_id=trainer_id, address=address),
            waits=waits,
            name="trainer registered",
            owner="replay",
            stopping=stopping,
        )
        _check_fresh(response)
        if response.total_steps > 0:
            return response
        await _pause(waits, stopping)


def _check_fresh(response: pb.RegisterTrainerResponse) -> None:
    if response.committed_step > 0 or response.HasField("latest_weights"):
        raise CannotResumeError(
            f"the run has {response.committed_step} committed steps and weights of an earlier "
            "trainer, whose model and optimizer are gone: resuming needs checkpoints, which this "
            "version does not have; start a new run in a new run directory"
        )


async def _pause(waits: Waits, stopping: asyncio.Event) -> None:
    with waits.waiting("feed opened", owner="feeder", ends_when="the feeder has read its data set"):
        try:
            await asyncio.wait_for(stopping.wait(), POLL_S)
        except TimeoutError:
            return
    raise Stopped("told to stop while waiting for the feed to open")
