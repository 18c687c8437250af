"""A trainer: its weights are the batches they saw, in order."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.checkpoint.plan import BEGIN, FINISHED
from headrace.errors import (
    SnapshotFailedError,
    SnapshotLostError,
    StepOutOfOrderError,
    TrainerFencedError,
)
from headrace.v1 import prompt_pb2, resume_pb2
from headrace.v1 import replay_pb2 as pb
from simulation.engine import PAUSE, TICK_S, Party, Work

if TYPE_CHECKING:
    from simulation.world import World

POLL_TICKS = 200
SNAPSHOT_LIMIT_TICKS = 8000

Seen: TypeAlias = tuple[tuple[str, ...], ...]
"""The uids of each step's batch, in order: what the weights have seen."""


class Trainer(Party):
    """One life of the process."""

    name = "trainer"
    world: World

    def start(self) -> None:
        self.seen: Seen = ()
        self.lineage = ""
        self.incarnation = 0
        self._saving: Any = None
        self._saved_step = 0
        self.spawn(self._main())

    def ended(self, thread: Any, error: BaseException | None) -> None:
        if isinstance(error, TrainerFencedError):
            self.world.trainer_left(self)
        else:
            super().ended(thread, error)

    @property
    def step(self) -> int:
        """Steps in the weights."""
        return len(self.seen)

    def _main(self) -> Work:
        request = pb.RegisterTrainerRequest(trainer_id=f"trainer-{self.world.token()}")
        registered = yield from self.ask("replay", "RegisterTrainer", request)
        self.incarnation = registered.incarnation
        plan = yield from self._resume(resume_pb2.RESUME_PHASE_WEIGHTS)
        if plan.action == FINISHED:
            self.world.trainer_is_done(self)
            return
        if plan.action == BEGIN:
            self.lineage = registered.lineage
        else:
            self.lineage, self.seen = plan.state.lineage, plan.seen
            self._saved_step = self.step
            self.world.judge.trainer_loaded(self, plan)
        yield from self._publish()
        if plan.action != BEGIN:
            yield from self._resume(resume_pb2.RESUME_PHASE_OPEN)
        while (yield from self._train_step()):
            pass
        yield from self._end()

    def _resume(self, until: int) -> Work:
        while True:
            plan = yield from self.ask(
                "coordinator", "resume", (self.incarnation, until), POLL_TICKS
            )
            if self.lineage and plan.state and plan.state.lineage not in ("", self.lineage):
                # Its checkpoint was damaged since it was loaded: it is begun anew from another.
                raise TrainerFencedError("the resume is another one")
            if plan.has_nothing_to_do or plan.phase >= until:
                return plan

    def _publish(self) -> Work:
        yield PAUSE
        weights = prompt_pb2.PublishedWeights(
            id=prompt_pb2.WeightsId(lineage=self.lineage, version=self.step),
            uri="u",
            checksum=f"{zlib.crc32(repr(self.seen).encode()):x}",
        )
        request = pb.PublishWeightsRequest(incarnation=self.incarnation, weights=weights)
        yield from self.ask("replay", "PublishWeights", request)

    def _train_step(self) -> Work:
        """Make one step; say whether there is another."""
        step, batch, keys = self.step + 1, [], []
        for part in range(self.world.scenario.part_count):
            groups = yield from self._part(step, part)
            if groups is None:
                return False
            batch += [group.uid for group in groups]
            keys += [ref.key for group in groups for ref in group.trajectories]
            yield PAUSE  # the update
        self.seen = (*self.seen, tuple(batch))
        self.world.judge.trained(self)
        request = pb.CommitStepRequest(incarnation=self.incarnation, step=step)
        committed = yield from self.ask("replay", "CommitStep", request)
        self.world.judge.committed(self)
        yield from self._publish()
        if keys:
            yield ("call", "store", "delete", keys, POLL_TICKS)
        scenario = self.world.scenario
        if scenario.save_freq and (step % scenario.save_freq == 0 or committed.ended):
            yield from self._begin_snapshot()
        return not committed.ended

    def _part(self, step: int, part: int) -> Work:
        """Get one part of the batch, with its rows."""
        request = pb.SampleBatchRequest(
            incarnation=self.incarnation,
            step=step,
            part=part,
            part_count=self.world.scenario.part_count,
            wait_s=POLL_TICKS * TICK_S,
        )
        while True:
            answer = yield from self.ask("replay", "SampleBatch", request, POLL_TICKS)
            if answer.status == pb.SAMPLE_STATUS_DATA_ENDED:
                return None
            if answer.status != pb.SAMPLE_STATUS_READY:
                continue
            keys = [ref.key for group in answer.groups for ref in group.trajectories]
            found = yield from self.ask("store", "get", keys)
            missing = [
                group
                for group in answer.groups
                if any(ref.key not in found for ref in group.trajectories)
                or self.world.reads_badly()
            ]
            if not missing:
                self.world.judge.read(self, step, found)
                return answer.groups
            returned = pb.ReturnGroupsRequest(
                incarnation=self.incarnation,
                step=step,
                part=part,
                uids=[group.uid for group in missing],
                attempts=[group.attempt for group in missing],
                error="missing",
            )
            yield from self.ask("replay", "ReturnGroups", returned)

    # -- snapshots

    def _begin_snapshot(self) -> Work:
        """Have the ledger cut, copy the weights, and write them beside."""
        while self._saving is not None and not self._saving.done:
            yield ("sleep", 20)
        try:
            snapshot_id = yield from self.ask(
                "coordinator", "begin_snapshot", (self.incarnation, self.step)
            )
        except (StepOutOfOrderError, SnapshotLostError, SnapshotFailedError):
            return
        if snapshot_id is None:
            self._saved_step = self.step
            return
        self._saving = self.spawn(self._save(snapshot_id, self.seen))

    def _save(self, snapshot_id: str, seen: Seen) -> Work:
        step = len(seen)
        uri = self.world.storage.uri(step)
        yield PAUSE
        if self.world.write_fails():
            return  # the coordinator gives it up at its deadline
        self.world.tear(uri, "trainer")
        yield PAUSE
        self.world.storage.write(uri, "trainer", seen)
        yield PAUSE
        give_up_at = self.world.tick + SNAPSHOT_LIMIT_TICKS
        try:
            yield from self.ask("coordinator", "report_part", snapshot_id)
            while self.world.tick < give_up_at:
                done = yield from self.ask("coordinator", "commit_snapshot", snapshot_id)
                if done:
                    self._saved_step = max(self._saved_step, step)
                    return
        except (SnapshotFailedError, SnapshotLostError):
            return

    def _end(self) -> Work:
        """Have the last step saved, and end the run."""
        if self.world.scenario.save_freq:
            for _ in range(5):  # it may fail; then the run ends without
                while self._saving is not None and not self._saving.done:
                    yield ("sleep", 20)
                if self._saved_step == self.step or not self.step:
                    break
                yield from self._begin_snapshot()
        request = pb.EndRunRequest(incarnation=self.incarnation)
        yield from self.ask("replay", "EndRun", request)
        self.world.trainer_is_done(self)
