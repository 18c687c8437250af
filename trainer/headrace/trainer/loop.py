"""The training loop: what happens in a step, and in which order.

    for each part: sample ─► read ─► advantages ─► update
    commit ─► snapshot? ─► write weights ─► publish ─► delete the step's trajectories ─► log

Knows the order of calls; batches, learning, files and metrics are others' business.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc
import numpy as np
import numpy.typing as npt

from headrace.errors import HeadraceError
from headrace.failpoints import reach
from headrace.log import get_logger
from headrace.rpc.calls import Stopped, persist
from headrace.rpc.waits import Waits
from headrace.trainer.actor import Actor
from headrace.trainer.advantage import grpo_advantages
from headrace.trainer.batch import collate
from headrace.trainer.compute import ComputeThread
from headrace.trainer.departure import Departure
from headrace.trainer.metrics import StepMetrics
from headrace.trainer.progress import Progress
from headrace.trainer.publisher import WeightsWriter
from headrace.trainer.recorder import Recorder
from headrace.trainer.sampling import BatchSource, Part
from headrace.trainer.saver import Saver
from headrace.trainer.seen import with_step
from headrace.v1 import prompt_pb2, replay_pb2_grpc, store_pb2, store_pb2_grpc
from headrace.v1 import replay_pb2 as pb
from headrace.v1.trainer_pb2 import TrainerPhase

if TYPE_CHECKING:
    ReplayStub = replay_pb2_grpc.ReplayBufferServiceAsyncStub
    StoreStub = store_pb2_grpc.TrajectoryStoreServiceAsyncStub

DELETE_S = 10.0
"""How long a deletion may take; the store's own sweep removes what it misses."""
TAKEN: Final = "the file system of weights.dir has done it"
"""What ends a wait for weights on their way to the workers."""

WAITING: Final = (TrainerPhase.TRAINER_PHASE_RESUMING, TrainerPhase.TRAINER_PHASE_SAMPLING)
"""Phases in which others are at work."""

log = get_logger()


@dataclass(frozen=True)
class LoopSettings:
    """What the loop is configured by."""

    incarnation: int
    """The trainer's."""
    lineage: str
    """The time line of the weights."""
    part_count: int
    """Parts per step, each an update."""
    divide_by_std: bool
    """Whether advantages are divided by the group's standard deviation."""
    pad_id: int
    """The padding token."""
    first_step: int = 1
    """Where training begins: the step after the one that the actor's state is of."""
    address: str = ""
    """Where the trainer listens, for those who ask the replay buffer."""
    update_stall_after_s: float = 3600.0
    """Seconds after which an update that is being computed is a stall."""


class NotSavedError(HeadraceError):
    """Everything is trained, and no checkpoint has it."""


class TrainingLoop:
    """Trains from the first step to the last.

    Args:
        settings: what the loop is configured by.
        replay: the replay buffer.
        store: the trajectory store.
        actor: learns; used on `compute` only.
        compute: the thread that computes.
        writer: writes weights.
        progress: is told where the loop is.
        waits: where waits are registered.
        departure: says when to leave: after the step, or at the next wait.
        saver: makes checkpoints; None = there are none.
        now: seconds of a monotonic clock.

    """

    def __init__(
        self,
        settings: LoopSettings,
        *,
        replay: ReplayStub,
        store: StoreStub,
        actor: Actor,
        compute: ComputeThread,
        writer: WeightsWriter,
        progress: Progress,
        waits: Waits,
        departure: Departure,
        saver: Saver | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._replay = replay
        self._store = store
        self._source = BatchSource(
            replay,
            store,
            incarnation=settings.incarnation,
            part_count=settings.part_count,
            address=settings.address,
            waits=waits,
            stopping=departure.leaving,
        )
        self._actor = actor
        self._compute = compute
        self._writer = writer
        self._progress = progress
        self._waits = waits
        self._departure = departure
        self._stopping = departure.leaving
        self._saver = saver
        self._now = now
        departure.loses_nothing = self._loses_nothing
        self._committed = settings.first_step - 1
        self._is_torn = False
        """Whether the weights are of no step: some parts of one are in them."""

    async def run(self, recorder: Recorder) -> None:
        """Train until the steps or the data are at their end, and write each step's metrics.

        Raises:
            TrainerFencedError: a newer trainer has registered.
            NotSavedError: the last step cannot be saved.
            Stopped: the process was told to stop.

        """
        step = self._progress.step = self._settings.first_step
        while await self._step(step, recorder):
            if self._departure.asked.is_set():
                await self._leave()
            step += 1
            self._progress.step = step
        await self._end()
        self._progress.phase = TrainerPhase.TRAINER_PHASE_FINISHED
        log.info("training_ended", weight_version=self._progress.weight_version)

    async def publish(self, version: int) -> None:
        """Write the weights as they are now, and announce them as this version."""
        self._progress.phase = TrainerPhase.TRAINER_PHASE_PUBLISHING
        with self._waits.waiting("weights written", owner="trainer", ends_when=TAKEN):
            uri, checksum = await self._compute.run(self._writer.write, self._actor.model, version)
        weights = prompt_pb2.PublishedWeights(
            id=prompt_pb2.WeightsId(lineage=self._settings.lineage, version=version),
            uri=uri,
            checksum=checksum,
        )
        response = await persist(
            self._replay.PublishWeights,
            pb.PublishWeightsRequest(incarnation=self._settings.incarnation, weights=weights),
            waits=self._waits,
            name="weights announced",
            owner="replay",
            stopping=self._stopping,
        )
        self._progress.weight_version = version
        with self._waits.waiting("old weights removed", owner="trainer", ends_when=TAKEN):
            await self._compute.run(self._writer.prune, response.oldest_needed_version)

    async def _step(self, step: int, recorder: Recorder) -> bool:
        """Do one step, and say whether there is another."""
        begun = self._now()
        gathered = StepMetrics(step)
        keys: list[str] = []
        uids: list[str] = []
        for number in range(self._settings.part_count):
            part = await self._sample(step, number, gathered)
            if part is None:
                self._is_torn = number > 0
                return False
            keys += part.keys
            uids += [group.uid for group in part.groups]
            await self._update(part, gathered)
        reach("trainer.updated")
        committed = await persist(
            self._replay.CommitStep,
            pb.CommitStepRequest(incarnation=self._settings.incarnation, step=step),
            waits=self._waits,
            name="step committed",
            owner="replay",
            stopping=self._stopping,
        )
        self._committed = step
        self._actor.seen = with_step(self._actor.seen, step, uids)
        reach("trainer.committed")
        may_tear = committed.ends_soon and self._settings.part_count > 1
        await self._save(step, gathered, must=committed.ended or may_tear)
        since = self._now()
        await self.publish(step)
        gathered.add_seconds("update_weights", self._now() - since)
        reach("trainer.published")
        await self._delete(keys)
        metrics = gathered.summary(step_s=self._now() - begun)
        await self._compute.run(recorder.write, step, metrics)
        if self._saver is not None:
            self._saver.recorded(step)
        self._tell(step, metrics)
        return not committed.ended

    async def _save(self, step: int, gathered: StepMetrics, *, must: bool) -> None:
        must = must or self._departure.asked.is_set()
        if self._saver is not None and (must or self._saver.is_due(step)):
            gathered.add_seconds("save_checkpoint", await self._saver.save(step, must=must))

    async def _leave(self) -> None:
        """Leave between two steps, as told; what is committed is saved before.

        Raises:
            Stopped: always.

        """
        if self._saver is not None:
            await self._saver.secure(self._committed)
        raise Stopped(f"told to stop after step {self._committed}")

    async def _end(self) -> None:
        """Save the last step, and end the run.

        Raises:
            NotSavedError: it cannot be saved. The run is not ended: it can go on from the
                checkpoint before.

        """
        if self._saver is not None and not await self._secured(self._saver):
            why = self._progress.snapshot_error
            if self._is_torn:
                why = f"the data ended within step {self._committed + 1}. {why}".rstrip(". ")
            raise NotSavedError(
                f"everything is trained, but the last checkpoint cannot be made: {why}; mend that "
                f"and start the trainer again: it goes on from step {self._progress.saved_step}"
            )
        await persist(
            self._replay.EndRun,
            pb.EndRunRequest(incarnation=self._settings.incarnation),
            waits=self._waits,
            name="run ended",
            owner="replay",
            stopping=self._stopping,
        )

    async def _secured(self, saver: Saver) -> bool:
        """Have the last committed step saved, and say whether it is.

        Weights that have a part of the step after it cannot be: that it was saved in time is why
        the ledger says that the data may end soon.
        """
        if not self._is_torn:
            return await saver.secure(self._committed)
        await saver.settle()
        return self._progress.saved_step == self._committed

    def _loses_nothing(self) -> bool:
        """Whether leaving now costs no more than the wait for a batch."""
        is_waiting = self._progress.phase in WAITING
        return self._saver is None or (is_waiting and self._progress.saved_step == self._committed)

    async def _sample(self, step: int, number: int, gathered: StepMetrics) -> Part | None:
        self._progress.phase = TrainerPhase.TRAINER_PHASE_SAMPLING
        since = self._now()
        part = await self._source.part(step, number)
        gathered.add_seconds("gen", self._now() - since)
        return part

    async def _update(self, part: Part, gathered: StepMetrics) -> None:
        self._progress.phase = TrainerPhase.TRAINER_PHASE_UPDATING
        since = self._now()
        with self._waits.waiting(
            "update computed",
            owner="trainer",
            ends_when="the gradients of all its micro-batches are computed",
            stall_after_s=self._settings.update_stall_after_s,
        ):
            advantages, metrics = await self._compute.run(self._learn, part)
        gathered.add_seconds("update_actor", self._now() - since)
        gathered.add_part(part, advantages, metrics)

    def _learn(self, part: Part) -> tuple[npt.NDArray[np.float64], dict[str, float]]:
        """Make one update. Runs on the compute thread."""
        rewards = np.array([trajectory.reward for trajectory in part.trajectories])
        advantages = grpo_advantages(
            rewards, part.group_of, divide_by_std=self._settings.divide_by_std
        )
        batch = collate(part.trajectories, advantages, pad_id=self._settings.pad_id)
        return advantages, self._actor.update(batch)

    async def _delete(self, keys: list[str]) -> None:
        """Let go of what was trained on. Not worth waiting out an outage of the store."""
        request = store_pb2.DeleteTrajectoriesRequest(keys=keys)
        with self._waits.waiting(
            "trajectories deleted", owner="store", ends_when=f"it answers, or {DELETE_S} s pass"
        ):
            try:
                await self._store.DeleteTrajectories(request, timeout=DELETE_S)
            except grpc.aio.AioRpcError as error:
                log.warning("not_deleted", count=len(keys), error=error.details())

    def _tell(self, step: int, metrics: dict[str, float]) -> None:
        self._progress.add(step, metrics)
        log.info(
            "step",
            step=step,
            reward=round(metrics["critic/rewards/mean"], 4),
            logprobs_diff_max=metrics["training/rollout_logprobs_diff_max"],
            gen_s=round(metrics["timing_s/gen"], 3),
            step_s=round(metrics["timing_s/step"], 3),
        )
