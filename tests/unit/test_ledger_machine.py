"""Random histories of all parties against the ledger, judged by a record kept outside it.

The invariants are those of docs/architecture.md: I1 conservation, I2 at most once, I3 lineage, I5
window, I6 fencing, I7 staleness, I8 rows, I9 snapshot, I10 durability (the events alone rebuild the
state, and so does a base), I12 order, I14 version. The other half of the machine, snapshots, resumes
and deaths, is `ledger_deaths`.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from ledger_deaths import Deaths
from ledger_world import World, settings

from headrace.errors import WireError
from headrace.replay import leasing, rows, sampling
from headrace.replay.audit import audit
from headrace.replay.group import FINISHED, RUNNING
from headrace.replay.settings import LedgerSettings
from headrace.replay.staleness import span
from headrace.v1 import replay_pb2

WORKERS = st.sampled_from(["a", "b", "c"])


class LedgerMachine(Deaths):
    """All parties, in any order, with lost and repeated calls."""

    @initialize(
        threshold=st.sampled_from([None, 1, 2, 4]),
        strategy=st.sampled_from(["drop", "drop", "wait", "none"]),
        basis=st.sampled_from(["generated", "fed"]),
        window_size=st.sampled_from([0, 2, 4, 10]),
        row_count=st.integers(4, 60),
        filter_groups=st.sampled_from([False, False, True]),
        room=st.sampled_from([100, 10**9, 10**9]),
        saves=st.booleans(),
    )
    def begin(self, row_count: int, room: int, **rules: Any) -> None:
        self.config: LedgerSettings = settings(
            max_failures=2,
            max_expiries=4,
            eject_after=2,
            max_filtered_groups=3,
            max_trajectory_bytes=10,
            **rules,
        )
        self.world = World(self.config, row_count=row_count, capacity_bytes=room)
        self.held: list[tuple[str, replay_pb2.LeaseRef]] = []
        self.begin_deaths(row_count, room)

    # -- the feeder

    @rule(extra=st.integers(0, 3))
    def feed(self, extra: int) -> None:
        demand = self.world.demand
        cursor = self.ledger.cursor
        offered = min(demand + extra, self.ledger.feed.ordinal_count - cursor)
        accepted = self.world.feed(offered) if offered else 0
        assert accepted == min(demand, offered)
        self.fed += [self.world.uid(cursor + i) for i in range(accepted)]

    # -- workers

    @rule(worker=WORKERS, count=st.integers(1, 6), lag=st.integers(0, 2))
    def lease(self, worker: str, count: int, lag: int) -> None:
        latest = self.ledger.latest_weights
        version = max(0, latest.id.version - lag) if latest else 0
        before = self.ledger.groups.counts[RUNNING] + self.ledger.groups.counts[FINISHED]
        refs = self.world.lease(count, worker=worker, version=version)
        target = self.ledger.window(self.config.window_size).target
        if refs:
            assert before + len(refs) <= target, "I5: leased beyond the window"
            assert not self.ledger.is_resuming
        holders = {ref.uid for _, ref in self.held if self.is_current(_, ref)}
        assert not holders & {ref.uid for ref in refs}, "one prompt, two holders"
        self.held += [(worker, ref) for ref in refs]

    def is_current(self, worker: str, ref: replay_pb2.LeaseRef) -> bool:
        return leasing.holder(self.ledger, worker, ref) is not None

    @precondition(lambda self: self.held)
    @rule(data=st.data(), reward=st.sampled_from([0.0, None]), repeat=st.booleans())
    def complete(self, data: st.DataObject, reward: float | None, *, repeat: bool) -> None:
        worker, ref = data.draw(st.sampled_from(self.held))
        sessions = data.draw(st.sampled_from([[0], [1], [0, 1]]))
        current = self.is_current(worker, ref)
        position = self.ledger.position
        for _ in range(2 if repeat else 1):
            statuses = self.world.complete(
                [ref],
                worker=worker,
                sessions=sessions,
                reward=float if reward is None else lambda _: 0.0,
            )
        if not current:
            assert self.ledger.position == position, "I6: a late answer changed something"
        else:
            assert leasing.STORE_CHANGED not in statuses

    @precondition(lambda self: self.held)
    @rule(data=st.data(), end=st.sampled_from(["fail", "hand_back", "expire", "old_store"]))
    def end(self, data: st.DataObject, end: str) -> None:
        worker, ref = data.draw(st.sampled_from(self.held))
        current, position = self.is_current(worker, ref), self.ledger.position
        if end == "fail":
            live = [name for name, _ in self.held]
            self.world.fail([ref], worker=worker, live_workers=live)
        elif end == "hand_back":
            self.world.hand_back([ref], worker=worker)
        elif end == "old_store":
            self.world.complete([ref], worker=worker, sessions=[0], store="s0")
            current = False
        elif current:
            self.world.expire([ref])
        if not current:
            assert self.ledger.position == position, "I6: a late answer changed something"

    @rule(worker=WORKERS, count=st.integers(1, 8))
    def generate(self, worker: str, count: int) -> None:
        refs = self.world.lease(count, worker=worker)
        self.world.complete(refs, worker=worker)

    # -- the trainer

    @rule(steps=st.integers(1, 3))
    def go_on(self, steps: int) -> None:
        """Everybody works without a fault for a while, as far as that goes."""
        for _ in range(steps):
            self.feed(extra=0)
            self.sample(parts=1, repeat=False)
            self.feed(extra=0)
            self.generate(worker="a", count=20)
            for part in (1, 2):
                self.sample(parts=part, repeat=False)
            self.commit(repeat=False)

    @rule(parts=st.sampled_from([1, 2]), repeat=st.booleans())
    def sample(self, parts: int, *, repeat: bool) -> None:
        opened = self.ledger.open_step
        if self.ledger.ended_by:
            return
        parts = len(opened.parts) if opened else parts
        incomplete = (
            [i for i, p in enumerate(opened.parts) if len(p) < opened.quota] if opened else [0]
        )
        part = incomplete[0] if incomplete else parts - 1
        had = list(opened.parts[part]) if opened else []
        finished = list(self.ledger.groups.finished)
        sample = self.world.sample(part=part, part_count=parts)
        if sample.status != replay_pb2.SAMPLE_STATUS_READY:
            return
        fresh = [group for group in sample.groups if group.uid not in had]
        order = [(group.base, group.ordinal) for group in finished]
        assert [(g.base, g.ordinal) for g in fresh] == sorted(order)[: len(fresh)], "I12"
        for group in sample.groups:
            assert len(group.sessions) == self.config.n
            if self.config.drops:
                assert span(group.base, self.ledger.current_step) <= (self.config.threshold or 0)
        if repeat:
            again = self.world.sample(part=part, part_count=parts)
            assert [g.uid for g in again.groups] == [g.uid for g in sample.groups]

    @rule(repeat=st.booleans())
    def commit(self, *, repeat: bool) -> None:
        step = self.ledger.current_step
        batch = list(self.ledger.groups.sampled)
        try:
            self.world.commit(step)
        except WireError:
            return
        self.line[step] = batch
        if repeat:
            position = self.ledger.position
            self.world.commit(step)
            assert self.ledger.position == position

    @precondition(lambda self: self.ledger.open_step and self.ledger.groups.sampled)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.ledger.groups.sampled)))
        opened = self.ledger.open_step
        assert opened
        part = next(i for i, uids in enumerate(opened.parts) if uid in uids)
        sampling.return_groups(
            self.ledger, step=opened.step, part=part, uids=[uid], error="unreadable"
        )

    # -- the store

    @rule(rarely=st.integers(0, 4))
    def new_store(self, rarely: int) -> None:
        if rarely:
            return
        self.stores += 1
        rows.register_store(
            self.ledger,
            incarnation=f"s{self.stores}",
            follows=self.ledger.store_incarnation,
            capacity_bytes=self.ledger.store_capacity,
        )
        assert not self.ledger.groups.finished

    # -- what holds

    @invariant()
    def audit_finds_nothing(self) -> None:
        if hasattr(self, "world"):
            assert audit(self.ledger, self.config) == [], "I1"

    @invariant()
    def window_is_not_exceeded(self) -> None:
        if hasattr(self, "world"):
            # Nothing is fed beyond what was demanded at the time; what a step sampled and a new
            # trainer returned may stand above the target, and is kept. So is what a resume left.
            window = self.ledger.window(self.config.window_size)
            most = max(self.config.window_size + self.config.batch_size, self.left_by_resume)
            assert window.occupancy <= most, "I5"

    @invariant()
    def nothing_is_fed_twice(self) -> None:
        if hasattr(self, "world"):
            assert len(set(self.fed)) == len(self.fed), "I12"
            assert len(self.fed) == self.ledger.cursor, "I12"

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.check_the_journal()


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = hypothesis_settings(stateful_step_count=60, deadline=None)
