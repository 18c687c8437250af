"""A feeder, a worker, a store and a trainer in one hand, around a real ledger.

For tests of the rules: every method is one call of one party, without wire, disk or time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from headrace.replay import cutting, feeding, leasing, resuming, rows, sampling
from headrace.replay.base import from_base, to_base
from headrace.replay.cut_file import sessions_of
from headrace.replay.group import Group
from headrace.replay.groups import reason_name
from headrace.replay.ledger import Ledger
from headrace.replay.settings import LedgerSettings
from headrace.trajectory.key import TrajectoryKey
from headrace.v1 import journal_pb2, prompt_pb2, replay_pb2, resume_pb2

LINEAGE = "l0"


def settings(**changes: Any) -> LedgerSettings:
    """B = 4, W = 3, n = 2, unless changed."""
    return LedgerSettings(**{"n": 2, "batch_size": 4, "window_size": 12} | changes)


class World:
    """Plays all parties of a run against one ledger."""

    def __init__(
        self,
        rules: LedgerSettings,
        *,
        row_count: int = 1000,
        capacity_bytes: int = 10**9,
        store: str = "s1",
        publishes: bool = True,
    ) -> None:
        self.settings = rules
        self.ledger = Ledger(
            journal_pb2.RunOpened(
                run_id="r",
                lineage=LINEAGE,
                n=rules.n,
                train_batch_size=rules.batch_size,
                basis=rules.basis,
            )
        )
        self._written: list[journal_pb2.JournalRecord] = []
        self.trainers = 1
        self.resumes = 0
        feeding.open_feed(self.ledger, rules, row_count=row_count, fingerprint="f")
        rows.register_store(self.ledger, incarnation=store, capacity_bytes=capacity_bytes)
        sampling.register_trainer(self.ledger, "t1")
        if publishes:
            self.publish(0)

    # -- the feeder

    @property
    def demand(self) -> int:
        return feeding.demand(self.ledger, self.settings)

    def feed(self, count: int | None = None) -> int:
        """Register what is demanded, or `count` prompts as far as they are accepted."""
        count = self.demand if count is None else count
        if not count:
            return 0
        start = self.ledger.cursor
        prompts = [replay_pb2.NewPrompt(uid=self.uid(start + i)) for i in range(count)]
        return feeding.register_prompts(
            self.ledger, self.settings, first_ordinal=start, prompts=prompts
        )

    def uid(self, ordinal: int) -> str:
        rows_per_epoch = self.ledger.feed.row_count
        return f"e{ordinal // rows_per_epoch}r{ordinal % rows_per_epoch}"

    # -- workers

    def allowance(self, worker: str = "w", version: int | None = None) -> leasing.Allowance:
        latest = self.ledger.latest_weights
        assert latest
        return leasing.allowance(
            self.ledger,
            self.settings,
            worker_id=worker,
            version=latest.id.version if version is None else version,
            store_held_bytes=0,
        )

    def lease(
        self, count: int = 10**6, worker: str = "w", version: int | None = None
    ) -> list[replay_pb2.LeaseRef]:
        """Lease as many as allowed, at most `count`."""
        latest = self.ledger.latest_weights
        if latest is None:
            return []
        version = latest.id.version if version is None else version
        weights = self.weights_of(version)
        leasing.check_weights(self.ledger, weights, f"c{version}")
        groups = leasing.lease(
            self.ledger,
            worker_id=worker,
            weights=weights,
            count=min(count, self.allowance(worker, version).count),
        )
        return [replay_pb2.LeaseRef(uid=group.uid, attempt=group.attempt) for group in groups]

    def weights_of(self, version: int) -> prompt_pb2.WeightsId:
        """Name the newest weights of a version, as they were published."""
        lines = [lineage for lineage, known in self.ledger.weights if known == version]
        lineage = lines[-1] if lines else self.ledger.lineage
        return prompt_pb2.WeightsId(lineage=lineage, version=version)

    def complete(
        self,
        refs: Sequence[replay_pb2.LeaseRef],
        *,
        worker: str = "w",
        sessions: Sequence[int] | None = None,
        version: int | None = None,
        store: str = "",
        reward: Callable[[int], float] = float,
        size_bytes: int = 10,
        lineage: str = "",
    ) -> list[Any]:
        """Report sessions (all that are missing, unless named)."""
        items = []
        for ref in refs:
            group = self.ledger.groups[ref.uid]
            made = version if version is not None else max(0, group.base - 1)
            wanted = group.missing(self.settings.n) if sessions is None else sessions
            items += [
                replay_pb2.CompletedSession(
                    lease=ref,
                    record=prompt_pb2.SessionRecord(
                        session=session,
                        lineage=lineage,
                        trajectory_count=1,
                        size_bytes=size_bytes,
                        reward=reward(session),
                        min_version=made,
                        max_version=made,
                    ),
                )
                for session in wanted
            ]
        return leasing.complete_sessions(
            self.ledger,
            self.settings,
            worker_id=worker,
            store_incarnation=store or self.ledger.store_incarnation,
            items=items,
        )

    def generate(self, count: int = 10**6) -> int:
        """Lease and complete; count the groups."""
        refs = self.lease(count)
        self.complete(refs)
        return len(refs)

    def fail(
        self,
        refs: Sequence[replay_pb2.LeaseRef],
        *,
        worker: str = "w",
        live_workers: Sequence[str] = (),
    ) -> list[Any]:
        return self.end(refs, replay_pb2.LEASE_END_FAILED, worker, live_workers)

    def hand_back(self, refs: Sequence[replay_pb2.LeaseRef], *, worker: str = "w") -> list[Any]:
        return self.end(refs, replay_pb2.LEASE_END_RETURNED, worker, ())

    def end(
        self,
        refs: Sequence[replay_pb2.LeaseRef],
        end: replay_pb2.LeaseEnd.ValueType,
        worker: str,
        live_workers: Sequence[str],
    ) -> list[Any]:
        return leasing.end_leases(
            self.ledger,
            self.settings,
            worker_id=worker,
            leases=[replay_pb2.EndedLease(lease=ref, end=end, error="boom") for ref in refs],
            live_workers=live_workers,
        )

    def expire(self, refs: Sequence[replay_pb2.LeaseRef]) -> None:
        leasing.expire(self.ledger, self.settings, [ref.uid for ref in refs])

    # -- the trainer

    def publish(self, version: int) -> None:
        sampling.publish_weights(
            self.ledger,
            prompt_pb2.PublishedWeights(
                id=prompt_pb2.WeightsId(lineage=self.ledger.lineage, version=version),
                uri="u",
                checksum=f"c{version}",
            ),
        )

    def sample(
        self, step: int | None = None, part: int = 0, part_count: int = 1
    ) -> sampling.Sample:
        step = self.ledger.current_step if step is None else step
        return sampling.sample(
            self.ledger, self.settings, step=step, part=part, part_count=part_count
        )

    def commit(self, step: int | None = None) -> None:
        """Commit the open step, or this one, and publish its weights."""
        step = self.ledger.current_step if step is None else step
        sampling.commit_step(self.ledger, self.settings, step)
        latest = self.ledger.latest_weights
        if latest and latest.id.version < step:
            self.publish(step)

    def step(self) -> sampling.Sample:
        """Open a step, have its groups fed and made, sample and commit it."""
        sample = self.sample()
        while sample.status == replay_pb2.SAMPLE_STATUS_WAITING:
            fed, made = self.feed(), self.generate()
            sample = self.sample()
            assert fed or made or sample.status != replay_pb2.SAMPLE_STATUS_WAITING, "stuck"
        if sample.status == replay_pb2.SAMPLE_STATUS_READY:
            self.commit()
        return sample

    def train(self, steps: int) -> None:
        """Train so many steps, everybody doing what they can in between."""
        for _ in range(steps):
            sample = self.step()
            assert sample.status == replay_pb2.SAMPLE_STATUS_READY
        self.feed()
        self.generate()

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
        base = to_base(ledger, keep_settled=10, keep_uncovered=True)
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
            base = to_base(ledger, keep_settled=10, keep_uncovered=True)
            ledger = from_base(journal_pb2.LedgerBase.FromString(base.SerializeToString()))
        self.ledger = ledger

    # -- looking

    def dropped(self) -> dict[str, int]:
        counts = self.ledger.groups.dropped
        return {reason_name(reason): count for reason, count in counts.items() if count}

    def groups(self, refs: Sequence[replay_pb2.LeaseRef]) -> list[Group]:
        return [self.ledger.groups[ref.uid] for ref in refs]

    def uids(self, *states: prompt_pb2.PromptState.ValueType) -> set[str]:
        return {group.uid for group in self.ledger.groups if group.state in states}


def replayed(records: Sequence[journal_pb2.JournalRecord]) -> Ledger:
    """Build a ledger from its events alone."""
    ledger = Ledger(records[0].run_opened)
    ledger.take_events()
    for record in records[1:]:
        ledger.apply(journal_pb2.JournalRecord.FromString(record.SerializeToString()))
    return ledger
