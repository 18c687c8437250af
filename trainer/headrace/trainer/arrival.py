"""How a trainer comes to its run: it registers, and learns what to go on from.

    register ──► the run has a length ──► Resume: WEIGHTS ──► load, publish ──► Resume: OPEN

Knows the calls; loading and publishing are others' business. Without a coordinator there is
nothing to go on from: then a run that has begun is refused.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError
from headrace.log import get_logger
from headrace.rpc.calls import Stopped, persist, poll
from headrace.rpc.waits import Waits
from headrace.v1 import checkpoint_pb2, checkpoint_pb2_grpc, replay_pb2_grpc, resume_pb2
from headrace.v1 import replay_pb2 as pb

if TYPE_CHECKING:
    ReplayStub = replay_pb2_grpc.ReplayBufferServiceAsyncStub
    CoordinatorStub = checkpoint_pb2_grpc.CheckpointCoordinatorServiceAsyncStub

PAUSE_S: Final = 0.2
"""Pause between two looks at whether the feed is open."""
POLL_S: Final = 20.0
"""How long the coordinator may hold one call that has nothing new."""
ANSWER_S: Final = 10.0
"""How long an answer may take beyond that."""

log = get_logger()


class CannotFollowError(HeadraceError):
    """The run has steps or weights of an earlier trainer, which are lost."""


class ResumedAnewError(HeadraceError):
    """The run is resumed from elsewhere than where this trainer's state is of."""


@dataclass(frozen=True)
class Start:
    """Where training begins."""

    lineage: str
    """The time line."""
    step: int = 0
    """The step that is gone back to; 0 = the beginning."""
    part: resume_pb2.CheckpointPart | None = None
    """The trainer's part of that step's checkpoint; None for the beginning."""
    is_resumed: bool = False
    """Whether the run has begun before, so that it is to be opened again."""
    is_over: bool = False
    """Whether there is nothing to do."""


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
        TrainerFencedError: a newer trainer has registered.
        Stopped: the process is to stop.

    """
    request = pb.RegisterTrainerRequest(trainer_id=trainer_id, address=address)

    async def ask(waits: Waits) -> pb.RegisterTrainerResponse:
        return await persist(
            replay.RegisterTrainer,
            request,
            waits=waits,
            name="trainer registered",
            owner="replay",
            stopping=stopping,
        )

    response = await ask(waits)
    if response.total_steps > 0:
        return response
    with waits.waiting("feed opened", owner="feeder", ends_when="the feeder has read its data set"):
        while response.total_steps == 0:
            await _pause(stopping)
            # The wait is listed once, above; each look would begin a new one.
            response = await ask(Waits(stall_after_s=math.inf))
    return response


def without_checkpoints(registered: pb.RegisterTrainerResponse) -> Start:
    """Begin a run that has no checkpoints.

    Raises:
        CannotFollowError: an earlier trainer has published weights or committed steps.

    """
    if registered.committed_step > 0 or registered.HasField("latest_weights"):
        raise CannotFollowError(
            f"the run has {registered.committed_step} committed steps and weights of an earlier "
            "trainer, whose model and optimizer are gone: trainer.save_freq is -1, so there are no "
            "checkpoints; start a new run in a new run directory"
        )
    return Start(registered.lineage)


class Resumption:
    """The coordinator's plan for this trainer, step by step.

    Args:
        coordinator: it makes the plan, and carries it out.
        registered: what the trainer learned when it registered.
        facts: what must agree with the checkpoint.
        waits: where waits are registered.
        stopping: ends them.

    """

    def __init__(
        self,
        coordinator: CoordinatorStub,
        *,
        registered: pb.RegisterTrainerResponse,
        facts: Mapping[str, str],
        waits: Waits,
        stopping: asyncio.Event,
    ) -> None:
        self._coordinator = coordinator
        self._registered = registered
        self._facts = facts
        self._waits = waits
        self._stopping = stopping

    async def start(self) -> Start:
        """Wait until the trainer's state is wanted, and say which.

        Raises:
            TrainerFencedError: a newer trainer has registered.
            CannotResumeError: what there is does not fit this trainer, or may not be gone on from.
            NoValidCheckpointError: all checkpoints are damaged.
            Stopped: the process is to stop.

        """
        answer = await self._until(resume_pb2.RESUME_PHASE_WEIGHTS)
        plan = answer.plan
        if plan.action == checkpoint_pb2.RESUME_ACTION_FINISHED:
            return Start(self._registered.lineage, plan.committed_step, is_over=True)
        for skipped in plan.skipped:
            log.warning("checkpoint_skipped", step=skipped.step, problem=skipped.problem)
        for note in plan.notes:
            log.warning("resumed_with_a_difference", difference=note)
        if not answer.HasField("state"):
            return Start(self._registered.lineage)
        log.info(
            "resuming",
            step=plan.step,
            committed_step=plan.committed_step,
            lineage=answer.state.lineage,
        )
        part = answer.trainer_part if answer.HasField("trainer_part") else None
        return Start(answer.state.lineage, answer.state.step, part, is_resumed=True)

    async def opened(self, lineage: str) -> resume_pb2.ResumeState:
        """Wait until the run goes on, on the time line of `start`: sampling is allowed.

        Raises:
            ResumedAnewError: the run is resumed from elsewhere by now.
            TrainerFencedError, CannotResumeError, NoValidCheckpointError, Stopped: as `start`.

        """
        answer = await self._until(resume_pb2.RESUME_PHASE_OPEN, lineage)
        return answer.state

    async def _until(
        self, phase: resume_pb2.ResumePhase.ValueType, lineage: str = ""
    ) -> checkpoint_pb2.ResumeResponse:
        request = checkpoint_pb2.ResumeRequest(
            incarnation=self._registered.incarnation,
            facts=self._facts,
            until_phase=phase,
            wait_s=POLL_S,
        )
        wanted = _in_words(phase)
        with self._waits.waiting(
            "run resumed", owner="checkpoint", ends_when=f"the resume has come to {wanted}"
        ) as wait:
            while True:
                answer = await poll(
                    self._coordinator.Resume,
                    request,
                    waits=self._waits,
                    owner="checkpoint",
                    timeout_s=POLL_S + ANSWER_S,
                    stopping=self._stopping,
                )
                if lineage and answer.state.lineage not in ("", lineage):
                    raise ResumedAnewError(
                        f"the run is resumed from step {answer.state.step} anew, on the time line "
                        f"{answer.state.lineage}, not on {lineage}: this trainer starts again"
                    )
                if _has_come(answer, phase):
                    return answer
                wait.ends_when = (
                    f"the resume has come to {wanted}; it is at {_in_words(answer.state.phase)}: "
                    f"{answer.blocked_by}"
                )


def _has_come(
    answer: checkpoint_pb2.ResumeResponse, phase: resume_pb2.ResumePhase.ValueType
) -> bool:
    needs_none = (
        checkpoint_pb2.RESUME_ACTION_BEGIN,
        checkpoint_pb2.RESUME_ACTION_FINISHED,
    )
    return answer.plan.action in needs_none or answer.state.phase >= phase


def _in_words(phase: resume_pb2.ResumePhase.ValueType) -> str:
    return resume_pb2.ResumePhase.Name(phase).removeprefix("RESUME_PHASE_")


async def _pause(stopping: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(PAUSE_S):
            await stopping.wait()
    except TimeoutError:
        return
    raise Stopped("told to stop while waiting for the feed to open")
