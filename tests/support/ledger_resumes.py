"""The coordinator and the replay buffer's own deaths, as a part of `ledger_world.World`.

Snapshots, resumes phase by phase, and a ledger that is read back from its events.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from headrace.replay import cutting, resuming, sampling
from headrace.replay.base import from_base, to_base
from headrace.replay.cut_file import sessions_of
from headrace.replay.ledger import Ledger
from headrace.replay.settings import LedgerSettings
from headrace.trajectory.key import TrajectoryKey
from headrace.v1 import journal_pb2, resume_pb2


class Resumes:
    """What the coordinator does to a ledger, and what a killed replay buffer finds."""

    ledger: Ledger
    settings: LedgerSettings

    if TYPE_CHECKING:  # what the other parties of the world do

        def step(self) -> sampling.Sample: ...
        def feed(self) -> int: ...
        def generate(self) -> int: ...
        def publish(self, version: int) -> None: ...

    def begin(self, trainer: int) -> None:
        """Begin with nothing done by anybody."""
        self._written: list[journal_pb2.JournalRecord] = []
        self.trainers = trainer
        self.resumes = 0
        self.keep_settled = 10
        """Settled groups that cuts and bases know one by one."""

    # -- the coordinator: snapshots

    def save(self, *, oldest_step: int = 0) -> journal_pb2.LedgerBase:
        """Take a snapshot of the last step, complete at once; give its ledger part."""
        self.begin_cut()
        base = self.cut()
        self.end_cut(oldest_step=oldest_step or self.ledger.committed_step)
        return base

    def begin_cut(self, snapshot_id: str = "", step: int | None = None) -> str:
        step = self.ledger.committed_step if step is None else step
        snapshot_id = snapshot_id or f"cut{self.ledger.position}"
        cutting.begin_cut(self.ledger, snapshot_id=snapshot_id, step=step)
        return snapshot_id

    def cut(self) -> journal_pb2.LedgerBase:
        """Give the ledger at the cut, as it is read back from the journal."""
        under_way = self.ledger.snapshot
        assert under_way
        ledger = replayed(self.records()[: under_way.position])
        base = to_base(ledger, keep_settled=self.keep_settled, keep_uncovered=True)
        return journal_pb2.LedgerBase.FromString(base.SerializeToString())

    def end_cut(self, *, oldest_step: int = 0, committed: bool = True) -> None:
        assert self.ledger.snapshot
        cutting.end_cut(
            self.ledger,
            snapshot_id=self.ledger.snapshot.snapshot_id,
            committed=committed,
            oldest_step=oldest_step,
            error="" if committed else "the disk is full",
        )

    # -- the coordinator: resumes

    def new_trainer(self) -> None:
        self.trainers += 1
        sampling.register_trainer(self.ledger, f"t{self.trainers}")

    def begin_resume(self, step: int) -> str:
        """Begin a resume for the newest trainer."""
        self.resumes += 1
        resuming.begin_resume(
            self.ledger,
            resume_id=f"resume{self.resumes}",
            incarnation=self.ledger.trainer_incarnation,
            step=step,
        )
        return self.resume_id

    @property
    def resume_id(self) -> str:
        return f"resume{self.resumes}"

    def roll_back(
        self,
        *,
        store: str = "",
        salvage: bool = True,
        cut: journal_pb2.LedgerBase | None = None,
    ) -> None:
        """Do the LEDGER phase; the new line is named after the resume."""
        resuming.roll_back(
            self.ledger,
            self.resume_id,
            resuming.Rollback(
                lineage=f"l{self.resumes}",
                store_incarnation=store or self.ledger.store_incarnation,
                salvage=salvage,
                cut=sessions_of(cut) if cut else {},
            ),
        )

    def advance(
        self,
        phase: resume_pb2.ResumePhase.ValueType,
        confirmed: Collection[tuple[str, int]] | None = None,
    ) -> str:
        """Go on to the phase; a worker has whatever weights were published, unless named."""
        return resuming.advance(
            self.ledger,
            self.settings,
            resume_id=self.resume_id,
            phase=phase,
            confirmed=self.ledger.weights.keys() if confirmed is None else confirmed,
        )

    def report_lost(self, lost: Sequence[tuple[str, int]]) -> int:
        """Say that the store lacks these sessions, (uid, session), as they are recorded."""
        keys = []
        for uid, session in lost:
            record = self.ledger.groups[uid].sessions[session]
            keys.append(TrajectoryKey(uid, session, 0, record.lineage, record.attempt))
        return resuming.report_lost(self.ledger, self.resume_id, keys)

    def restore(self, base: journal_pb2.LedgerBase) -> None:
        """Take the ledger from a cut: the journal was lost."""
        event = journal_pb2.LedgerRestored(resume_id=self.resume_id, base=base)
        self.ledger.emit(event)

    def open_line(self, step: int, **rollback: Any) -> resume_pb2.ResumeState:
        """A trainer has died: a new one comes and the ledger goes back to the step."""
        self.new_trainer()
        self.begin_resume(step)
        self.to_weights(**rollback)
        return self.state

    def to_weights(self, restore: journal_pb2.LedgerBase | None = None, **rollback: Any) -> None:
        """Go on from PLAN until weights are waited for, and have them published."""
        for phase in (resume_pb2.RESUME_PHASE_STORE, resume_pb2.RESUME_PHASE_LEDGER):
            assert self.advance(phase) == ""
        if restore:
            self.restore(restore)
            rollback = {"cut": restore} | rollback
        self.roll_back(**rollback)
        assert self.advance(resuming.WEIGHTS) == ""
        assert self.ledger.resume
        self.publish(self.ledger.resume.step)

    def warm_up(self) -> int:
        """Go on until the run is open; count what was fed."""
        assert self.advance(resuming.REISSUE) == ""
        assert self.advance(resuming.WARMUP) == ""
        fed = self.feed()
        assert self.advance(resuming.OPEN) == ""
        return fed

    def resume(self, step: int, **rollback: Any) -> int:
        """A trainer has died: a new one goes on from the step. Counts what was fed."""
        self.open_line(step, **rollback)
        return self.warm_up()

    @property
    def state(self) -> resume_pb2.ResumeState:
        assert self.ledger.resume
        return self.ledger.resume

    # -- the replay buffer's own deaths

    def records(self) -> list[journal_pb2.JournalRecord]:
        """Give all events so far, as they would be written."""
        self._written += self.ledger.take_events()
        return self._written

    def restart(self, *, compacted: bool = True) -> None:
        """Kill the replay buffer: its ledger is what base and journal say."""
        ledger = replayed(self.records())
        if compacted:
            base = to_base(ledger, keep_settled=self.keep_settled, keep_uncovered=True)
            ledger = from_base(journal_pb2.LedgerBase.FromString(base.SerializeToString()))
        self.ledger = ledger


def replayed(records: Sequence[journal_pb2.JournalRecord]) -> Ledger:
    """Build a ledger from its events alone."""
    ledger = Ledger(records[0].run_opened)
    ledger.take_events()
    for record in records[1:]:
        ledger.apply(journal_pb2.JournalRecord.FromString(record.SerializeToString()))
    return ledger
