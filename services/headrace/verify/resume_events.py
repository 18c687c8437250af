"""What the events of snapshots and resumes do to a run as it was told."""

from __future__ import annotations

from itertools import takewhile

from headrace.v1 import journal_pb2
from headrace.verify.told import (
    FAILED,
    FINISHED,
    LIVE,
    OPEN,
    PENDING,
    RUNNING,
    SAMPLED,
    TRAINED,
    WEIGHTS_PHASE,
    Session,
    Told,
)


class ResumeEvents(Told):
    """Cuts, the phases of a resume, and the time line that it opens."""

    def _on_snapshot_begun(self, event: journal_pb2.SnapshotBegun) -> None:
        self.check(event.step == self.committed, "I9: the cut is of another step")
        self.check(self.resume_phase == OPEN, "I9: cut while the run is being resumed")
        self.snapshot_id = event.snapshot_id

    def _on_snapshot_ended(self, event: journal_pb2.SnapshotEnded) -> None:
        self.check(event.snapshot_id == self.snapshot_id, "I9: another snapshot ended")
        self.snapshot_id = ""

    def _on_resume_begun(self, event: journal_pb2.ResumeBegun) -> None:
        self.check(
            event.trainer_incarnation == self.trainer_incarnation, "I6: an old trainer's resume"
        )
        self.resume_id, self.resume_step, self.resume_phase = event.resume_id, event.step, 1
        self.snapshot_id = ""

    def _on_resume_advanced(self, event: journal_pb2.ResumeAdvanced) -> None:
        self.check(event.resume_id == self.resume_id, "I6: another resume's phase")
        self.check(event.phase == self.resume_phase + 1, "a phase is left out")
        if event.phase == WEIGHTS_PHASE + 1:
            wanted = (self.lineage, self.resume_step)
            self.check(wanted in self.weights, "I14: REISSUE before the weights are published")
        if event.phase == OPEN:
            full = self.occupancy >= self.target or self.cursor >= self.ordinal_count
            self.check(full or self.circuit_open, "I5: OPEN before the window is full")
            self.check(self.counts[RUNNING] == 0, "I6: OPEN with leases of before")
        self.resume_phase = event.phase

    def _on_lineage_opened(self, event: journal_pb2.LineageOpened) -> None:
        fork = event.lineage.fork_step
        self.check(fork == self.resume_step and fork <= self.committed, "I3: forks at another step")
        self.check(event.lineage.parent == self.lineage, "I3: of another parent")
        self.check(
            event.lineage.id not in [line for line, _ in self.lineages], "I14: a time line again"
        )
        for group in self.groups.values():
            cut = {
                session: list(takewhile(lambda version: version <= fork, made))
                for session, made in group.drafts.items()
                if event.drafts_kept
            }
            group.drafts = {session: made for session, made in cut.items() if made}
        for change in event.groups:
            group = self._move(
                change.uid, FINISHED if len(change.sessions) == self.rules.n else PENDING,
                PENDING, RUNNING, FINISHED, FAILED, SAMPLED, TRAINED,
            )  # fmt: skip
            if group.step:
                self.check(
                    group.step > fork or group.state != TRAINED, f"I3: {group.uid} was trained"
                )
            sessions = {}
            for record in change.sessions:
                key = f"{group.uid}_{record.session}_0_{record.lineage}a{record.attempt}"
                kept = Session(key, record.min_version, record.max_version)
                self.check(record.max_version <= fork, f"I14: {key} is of v{record.max_version}")
                sessions[record.session] = kept
                group.drafts.pop(record.session, None)
            group.sessions, group.base = sessions, change.base
            group.incarnation = event.store_incarnation
            group.worker, group.step = "", 0
        self.lineages.append((event.lineage.id, fork))
        self.trained = {step: uids for step, uids in self.trained.items() if step <= fork}
        self.committed = fork
        self.parts = None
        self.ended = ""
        self.latest = None
        self.store = event.store_incarnation
        self.weights = {key: value for key, value in self.weights.items() if key[1] <= fork}
        for group in self.groups.values():
            self.check(
                group.state not in (RUNNING, SAMPLED), f"I6: {group.uid} is still {group.state}"
            )
            if group.state == TRAINED:
                self.check(
                    group.step <= fork, f"I3: {group.uid} of step {group.step} stays trained"
                )
            # What is FAILED is dropped before anything goes on, unless the circuit is open.
            live = LIVE if self.circuit_open else (PENDING, RUNNING, FINISHED, SAMPLED)
            for session in group.sessions.values() if group.state in live else ():
                self.check(session.max_version <= fork, f"I14: {session.key} is of later weights")
