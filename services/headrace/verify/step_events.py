"""What the events of the trainer do to a run as it was told."""

from __future__ import annotations

from headrace.v1 import journal_pb2
from headrace.verify.told import FINISHED, OPEN, PENDING, SAMPLED, TRAINED, Told


class StepEvents(Told):
    """Weights, and the steps: opened, sampled, given back, committed."""

    def _on_trainer_registered(self, event: journal_pb2.TrainerRegistered) -> None:
        self.check(event.incarnation > self.trainer_incarnation, "I6: an incarnation again")
        self.trainer_incarnation = event.incarnation
        self.snapshot_id = ""
        self.parts = None
        for group in [group for group in self.groups.values() if group.state == SAMPLED]:
            self._move(group.uid, FINISHED, SAMPLED)
            group.step = 0
            if group.incarnation != self.store:
                self._move(group.uid, PENDING, FINISHED)
                self._forget(group)

    def _on_weights_published(self, event: journal_pb2.WeightsPublished) -> None:
        weights = (event.weights.id.lineage, event.weights.id.version)
        self.check(weights[0] == self.lineage, f"I14: weights {weights} on line {self.lineage}")
        self.check(weights not in self.weights, f"I14: weights {weights} again")
        if self.latest and self.latest[0] == weights[0]:
            self.check(weights[1] > self.latest[1], f"I14: weights {weights} after {self.latest}")
        self.check(weights[1] <= self.committed, f"I14: weights {weights} before their step")
        self.weights[weights] = event.weights.checksum
        self.latest = weights

    def _on_step_opened(self, event: journal_pb2.StepOpened) -> None:
        self.check(
            event.step == self.committed + 1 and self.parts is None, "I3: a step out of order"
        )
        self.check(event.group_count == self.rules.batch, "a step of another size")
        self.parts = [[] for _ in range(event.part_count)]

    def _on_batch_sampled(self, event: journal_pb2.BatchSampled) -> None:
        self.check(self.resume_phase == OPEN, "I3: sampled while the run is being resumed")
        self.check(
            self.parts is not None and event.step == self.committed + 1, "I3: not the open step"
        )
        self.check(event.lineage == self.lineage, "I3: sampled for another time line")
        assert self.parts is not None
        finished = [group for group in self.groups.values() if group.state == FINISHED]
        order = sorted(finished, key=lambda group: (group.base, group.ordinal))
        oldest = [group.uid for group in order[: len(event.uids)]]
        self.check(
            oldest == list(event.uids), f"I12: sampled {list(event.uids)}, oldest are {oldest}"
        )
        for uid in event.uids:
            group = self._move(uid, SAMPLED, FINISHED)
            self.check(
                len(group.sessions) == self.rules.n,
                f"I8: {uid} is sampled with {len(group.sessions)}",
            )
            span = event.step - group.base + 1
            if self.rules.drops:
                self.check(
                    span <= (self.rules.threshold or 0), f"I7: {uid} is sampled at span {span}"
                )
            group.step = event.step
        self.parts[event.part].extend(event.uids)
        self.check(
            len(self.parts[event.part]) * len(self.parts) <= self.rules.batch,
            "I2: a part is over-full",
        )

    def _on_groups_returned(self, event: journal_pb2.GroupsReturned) -> None:
        assert self.parts is not None
        for uid in event.uids:
            group = self._move(uid, PENDING, SAMPLED)
            self.parts[event.part].remove(uid)
            group.step = 0
            self._to_pending(group)
            self._forget(group)

    def _on_step_committed(self, event: journal_pb2.StepCommitted) -> None:
        self.check(self.resume_phase == OPEN, "I3: committed while the run is being resumed")
        self.check(event.step == self.committed + 1 and self.open_count == 0, "I3: not complete")
        self.check(event.lineage == self.lineage, "I3: committed on another time line")
        assert self.parts is not None
        batch = [uid for part in self.parts for uid in part]
        for uid in batch:
            group = self._move(uid, TRAINED, SAMPLED)
            self.check(group.step == event.step, f"I2: {uid} was sampled for step {group.step}")
        self.check(
            self.counts[SAMPLED] == 0 and len(batch) == self.rules.batch,
            "I3: the batch is not the step's",
        )
        self.trained[event.step] = batch
        self.committed = event.step
        self.parts = None
