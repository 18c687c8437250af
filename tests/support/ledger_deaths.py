"""Snapshots, resumes, restarts and losses, as rules of the ledger's state machine.

What a run has trained on its living time line is kept here, beside the ledger, and compared.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ledger_resumes import replayed
from ledger_world import World

from headrace.errors import WireError
from headrace.replay import leasing, resuming, sampling
from headrace.replay.base import from_base, to_base
from headrace.replay.ending import at_end
from headrace.replay.group import FINISHED, LIVE, PENDING, TRAINED
from headrace.replay.ledger import Ledger
from headrace.v1 import journal_pb2, replay_pb2, resume_pb2

if TYPE_CHECKING:
    from headrace.replay.settings import LedgerSettings


class Deaths(RuleBasedStateMachine):
    """What the coordinator does, and what dies."""

    if TYPE_CHECKING:
        world: World
        config: LedgerSettings
        held: list[tuple[str, replay_pb2.LeaseRef]]

        def feed(self, extra: int) -> None: ...

    def begin_deaths(self, row_count: int, room: int) -> None:
        self.row_count, self.room = row_count, room
        self.fed: list[str] = []
        self.line: dict[int, list[str]] = {}
        """What each step of the living time line trained."""
        self.checkpoints: dict[int, journal_pb2.LedgerBase] = {}
        """Those of the living time line that are kept, by step."""
        self.undead: list[tuple[str, replay_pb2.LeaseRef, str]] = []
        """Leases of a journal that was lost, with their time line."""
        self.left_by_resume = 0
        self.stores = 1
        self.cut_step = 0
        self.cut: journal_pb2.LedgerBase | None = None

    @property
    def ledger(self) -> Ledger:
        return self.world.ledger

    # -- snapshots

    @rule()
    def begin_snapshot(self) -> None:
        try:
            self.world.begin_cut()
        except WireError:
            return
        opened = self.ledger.open_step
        assert not self.ledger.is_resuming
        assert opened is None or at_end(self.ledger)
        self.cut_step, self.cut = self.ledger.committed_step, self.world.cut()

    @precondition(lambda self: self.ledger.snapshot is not None)
    @rule(data=st.data(), complete=st.booleans())
    def end_snapshot(self, data: st.DataObject, *, complete: bool) -> None:
        snapshot = self.ledger.snapshot
        assert snapshot
        assert self.world.cut() == self.cut, "I9: the cut is not what it was"
        assert snapshot.step == self.cut_step
        saved_before = self.ledger.saved_step
        if complete:
            assert self.cut
            self.checkpoints[snapshot.step] = self.cut
            oldest = data.draw(st.sampled_from(sorted(self.checkpoints)))
            self.checkpoints = {k: v for k, v in self.checkpoints.items() if k >= oldest}
            self.world.end_cut(oldest_step=oldest)
        else:
            self.world.end_cut(committed=False)
        assert self.ledger.saved_step == (snapshot.step if complete else saved_before), "I9"

    @rule(steps=st.integers(1, 2))
    def save(self, steps: int) -> None:
        """Take a whole snapshot at once, if one may be taken; keep so many."""
        try:
            self.world.begin_cut()
        except WireError:
            return
        self.checkpoints[self.ledger.committed_step] = self.world.cut()
        oldest = sorted(self.checkpoints)[-steps:][0]
        self.checkpoints = {k: v for k, v in self.checkpoints.items() if k >= oldest}
        self.world.end_cut(oldest_step=oldest)

    # -- resumes

    @rule(data=st.data(), at_once=st.booleans())
    def trainer_dies(self, data: st.DataObject, *, at_once: bool) -> None:
        """The run goes back to a checkpoint, or, if none was ever kept, to the beginning."""
        self.world.new_trainer()
        assert not self.ledger.groups.sampled
        steps = sorted(self.checkpoints) if self.ledger.groups.covered_step else [0]
        self.world.begin_resume(data.draw(st.sampled_from(steps)))
        if at_once:
            self.finish_resume(salvage=True)

    @precondition(lambda self: not self.ledger.is_resuming)
    @rule()
    def trainer_restarts_without_a_resume(self) -> None:
        """A second trainer goes on where the first was: what it had sampled is finished again."""
        self.world.new_trainer()
        assert not self.ledger.groups.sampled

    @precondition(lambda self: self.ledger.is_resuming)
    @rule(salvage=st.booleans(), new_store=st.booleans(), with_rows=st.booleans())
    def advance_resume(self, *, salvage: bool, new_store: bool, with_rows: bool) -> None:
        state = self.world.state
        if state.trainer_incarnation != self.ledger.trainer_incarnation:
            self.world.begin_resume(state.step if state.lineage else self._step_to_go_back_to())
            return
        if state.phase == resume_pb2.RESUME_PHASE_LEDGER and not state.lineage:
            self._open_line(salvage=salvage, new_store=new_store, with_rows=with_rows)
            return
        if state.phase == resuming.WEIGHTS:
            self.world.publish(state.step)
        if state.phase == resuming.WARMUP:
            wanted = self.world.demand
            self.feed(extra=0)
            assert self.world.state.topped_up_count >= wanted
        before = self.ledger.position
        phase = resume_pb2.ResumePhase.ValueType(state.phase + 1)
        blocked_by = self.world.advance(phase)
        assert not blocked_by, blocked_by
        assert self.world.advance(phase) == ""
        assert self.ledger.position > before
        if phase == resuming.OPEN:
            self._check_opened()

    def _step_to_go_back_to(self) -> int:
        return max(self.checkpoints) if self.ledger.groups.covered_step else 0

    @precondition(lambda self: self.ledger.is_resuming)
    @rule(salvage=st.booleans())
    def finish_resume(self, *, salvage: bool) -> None:
        for _ in range(10):
            if not self.ledger.is_resuming:
                return
            self.advance_resume(salvage=salvage, new_store=False, with_rows=False)
        raise AssertionError("I11: a resume does not come to its end")

    def _open_line(self, *, salvage: bool, new_store: bool, with_rows: bool) -> None:
        """Do the LEDGER phase; perhaps the store was lost, and perhaps it has the rows again."""
        step, cursor = self.world.state.step, self.ledger.cursor
        dropped = {group.uid for group in self.ledger.groups if group.drop_reason}
        attempts = {group.uid: group.attempt for group in self.ledger.groups}
        failures = {group.uid: group.failures for group in self.ledger.groups}
        records = {
            (group.uid, session): (record.lineage, record.attempt)
            for group in self.ledger.groups
            for session, record in group.sessions.items()
            if record.max_version <= step
            and group.store_incarnation == self.ledger.store_incarnation
        }
        base = self.checkpoints.get(step) if with_rows else None
        if new_store:
            self.stores += 1
        store = f"s{self.stores}" if new_store else self.ledger.store_incarnation
        self.world.roll_back(store=store, salvage=salvage, cut=base)
        position = self.ledger.position
        self.world.roll_back(store="other", salvage=not salvage)
        assert self.ledger.position == position, "I6: a repeat of the rollback changed something"
        self.line = {number: uids for number, uids in self.line.items() if number <= step}
        self.checkpoints = {k: v for k, v in self.checkpoints.items() if k <= step}
        self.left_by_resume = self.ledger.live_count + len(self.ledger.groups.failed)
        assert self.ledger.cursor == cursor, "I12: the cursor moved"
        assert {g.uid for g in self.ledger.groups if g.drop_reason} == dropped
        for group in self.ledger.groups:
            assert group.attempt >= attempts[group.uid], "I6: attempts went back"
            assert group.failures == failures[group.uid]
            if group.state in (PENDING, FINISHED):
                for record in group.sessions.values():
                    assert record.max_version <= step, "I14: made by weights of a dead line"
                    assert salvage
                    assert not new_store or base is not None, "I8: the store has no rows"
                if group.sessions:
                    assert group.store_incarnation == store, "I8"
                if group.state == FINISHED:
                    assert len(group.sessions) == self.config.n, "I8"
                if salvage and not new_store:
                    missing = set(group.missing(self.config.n))
                    kept = {s for uid, s in records if uid == group.uid}
                    assert not kept & missing, "made again though it could be kept"

    def _check_opened(self) -> None:
        state = self.world.state
        assert self.world.demand == 0
        window = self.ledger.window(self.config.window_size)
        if state.topped_up_count and not self.ledger.circuit.is_open:
            assert window.occupancy <= window.target, "I5: topped up beyond the target"

    # -- losses

    @rule(compacted=st.booleans())
    def replay_buffer_dies(self, *, compacted: bool) -> None:
        before = essence(self.ledger)
        self.world.restart(compacted=compacted)
        assert not differing(essence(self.ledger), before), "I10"

    @precondition(lambda self: self.checkpoints)
    @rule(data=st.data(), same_store=st.booleans(), rarely=st.integers(0, 2))
    def journal_is_lost(self, data: st.DataObject, *, same_store: bool, rarely: int) -> None:
        """Everything goes on from a checkpoint's ledger; the fresh journal had begun to be fed."""
        if rarely:
            return
        self.check_the_journal()
        step = data.draw(st.sampled_from(sorted(self.checkpoints)))
        base = self.checkpoints[step]
        self.undead = [(worker, ref, self.ledger.lineage) for worker, ref in self.held]
        self.held = []
        before = self.world
        self.stores += not same_store
        store = base.store.store_incarnation if same_store else f"s{self.stores}"
        self.world = World(
            self.config,
            row_count=self.row_count,
            capacity_bytes=self.room,
            store=store,
            trainer=before.trainers + 1,
            publishes=False,
        )
        self.world.resumes = before.resumes
        self.world.feed()
        self.world.begin_resume(step)
        for phase in (resume_pb2.RESUME_PHASE_STORE, resume_pb2.RESUME_PHASE_LEDGER):
            self.world.advance(phase)
        self.world.restore(base)
        if data.draw(st.booleans()):
            self.world.restart()
        assert self.ledger.cursor == base.cursor
        self.fed = self.fed[: base.cursor]
        self.line = {number: uids for number, uids in self.line.items() if number <= step}
        self._open_line(salvage=True, new_store=not same_store, with_rows=True)

    @precondition(lambda self: self.undead)
    @rule(data=st.data())
    def undead_worker_answers(self, data: st.DataObject) -> None:
        worker, ref, lineage = data.draw(st.sampled_from(self.undead))
        if ref.uid not in self.ledger.groups:
            return
        position = self.ledger.position
        statuses = self.world.complete([ref], worker=worker, sessions=[0], lineage=lineage)
        assert leasing.HELD not in statuses
        assert self.ledger.position == position, "I6: a worker of a lost journal was heard"

    @precondition(lambda self: self.config.saves)
    @rule()
    def finish(self) -> None:
        try:
            sampling.finish(self.ledger)
        except WireError:
            return
        assert self.ledger.ended_by

    # -- what holds

    @invariant()
    def the_living_line_is_trained_and_nothing_else(self) -> None:
        if hasattr(self, "world") and hasattr(self, "line"):
            trained = list(chain.from_iterable(self.line.values()))
            assert len(set(trained)) == len(trained), "I2"
            assert self.ledger.groups.counts[TRAINED] == len(trained), "I3"
            assert self.world.uids(TRAINED) <= set(trained), "I3"
            for group in self.ledger.groups.trained_after(0):
                assert group.uid in self.line[group.step], "I3"
            assert self.ledger.committed_step == max(self.line, default=0)

    @invariant()
    def nothing_goes_on_while_resuming(self) -> None:
        if hasattr(self, "world") and self.ledger.is_resuming:
            assert self.world.lease(5, worker="nobody") == []
            assert self.world.sample().status != replay_pb2.SAMPLE_STATUS_READY
            if self.world.state.phase < resuming.WARMUP:
                assert self.world.demand == 0

    @invariant()
    def weights_are_of_the_line_up_to_its_forks(self) -> None:
        if not hasattr(self, "world"):
            return
        lines = self.ledger.lineages
        ends = {line.parent: line.fork_step for line in lines[1:]}
        for lineage, version in self.ledger.weights:
            assert version <= ends.get(lineage, self.ledger.committed_step), "I14"
        for group in self.ledger.groups:
            if group.state in LIVE:
                for record in group.sessions.values():
                    assert record.max_version <= self.ledger.committed_step, "I14"
                    assert record.max_version <= ends.get(record.lineage, 10**9), "I14"

    def check_the_journal(self) -> None:
        """Events alone, and a base with the events after it, give the ledger that there is."""
        records = self.world.records()
        now = essence(self.ledger)
        assert not differing(essence(replayed(records)), now), "I10"
        at = max(1, len(records) // 2)
        base = to_base(replayed(records[:at]), keep_settled=5, keep_uncovered=True)
        second = from_base(journal_pb2.LedgerBase.FromString(base.SerializeToString()))
        for record in records[at:]:
            second.apply(record)
        assert not differing(essence(second), now), "I10"


def essence(ledger: Ledger) -> journal_pb2.LedgerBase:
    """Give all that decisions can depend on: everything but what nobody goes back to."""
    whole = to_base(ledger, keep_settled=10**9, keep_uncovered=True)
    base = to_base(from_base(whole), keep_settled=0, keep_uncovered=True)
    base.groups.sort(key=lambda stored: stored.group.ordinal)
    return base


def differing(one: journal_pb2.LedgerBase, other: journal_pb2.LedgerBase) -> list[str]:
    """Say in which fields two ledgers are not the same, and how."""
    names = [field.name for field in one.DESCRIPTOR.fields]
    return [
        f"{name}: {getattr(one, name)} and {getattr(other, name)}"
        for name in names
        if getattr(one, name) != getattr(other, name)
    ]
