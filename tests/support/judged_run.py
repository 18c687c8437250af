"""A short run on the real ledger, written down as the recorder and the journal would.

What the judge's own tests judge, before and after they have forged it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from history import Entry
from judge import judge, judge_watched
from judge_durable import Witness
from judge_rules import Rules
from ledger_world import World, settings

from headrace.replay import sampling
from headrace.replay.audit import audit
from headrace.v1 import journal_pb2, prompt_pb2, replay_pb2, resume_pb2, store_pb2
from headrace.v1.trajectory_pb2 import Trajectory, WeightSpan

ROWS, STEPS, BATCH, N = 40, 7, 4, 2


@dataclass
class Case:
    """What a judge is given."""

    records: list[journal_pb2.JournalRecord]
    history: list[Entry]
    audit: replay_pb2.AuditResponse
    rules: Rules
    witness: Witness = field(default_factory=Witness)

    def findings(self) -> list[str]:
        self._number()
        return judge(self.records, self.history, self.audit, self.rules, self.witness)

    def watched_findings(self, seen: str) -> list[str]:
        self._number()
        return judge_watched(self.records, self.history, self.audit, self.rules, seen)

    def _number(self) -> None:
        for position, record in enumerate(self.records, 1):
            record.position = position
        self.audit.position = len(self.records)

    def events(self, name: str) -> list[Any]:
        return [getattr(r, name) for r in self.records if r.WhichOneof("event") == name]

    def index(self, name: str, number: int = 0) -> int:
        found = [i for i, r in enumerate(self.records) if r.WhichOneof("event") == name]
        return found[number]

    def answers(self, call: str) -> list[Any]:
        return [entry.answer for entry in self.history if entry.call == call]


class Play:
    """A short run on the real ledger, with failures, an expiry and a lost store, on record."""

    def __init__(self, **changes: Any) -> None:
        rules = settings(total_steps=STEPS, window_size=2 * BATCH, threshold=8, **changes)
        self.world = World(rules, row_count=ROWS)
        self.history: list[Entry] = []

    def note(self, call: str, request: Any, answer: Any) -> None:
        self.history.append(Entry(0.0, call, request, answer))

    def audit(self) -> replay_pb2.AuditResponse:
        ledger = self.world.ledger
        broken = audit(ledger, self.world.settings)
        answer = replay_pb2.AuditResponse(
            ok=not broken,
            counts=ledger.groups.to_counts(),
            violations=broken,
            position=ledger.position,
        )
        self.note("Audit", replay_pb2.AuditRequest(), answer)
        return answer

    def step(self, number: int) -> None:
        sample = self.world.sample()
        while sample.status != replay_pb2.SAMPLE_STATUS_READY:
            self.world.feed()
            self.world.complete(self.world.lease(3))
            sample = self.world.sample()
        trainer = self.world.ledger.trainer_incarnation
        groups = [self.handed_out(group, number) for group in sample.groups]
        answer = replay_pb2.SampleBatchResponse(status=sample.status, groups=groups)
        self.note(
            "SampleBatch",
            replay_pb2.SampleBatchRequest(incarnation=trainer, step=number, part_count=1),
            answer,
        )
        keys = [ref.key for group in groups for ref in group.trajectories]
        rows = tuple(self.row(key) for key in keys)
        self.note("GetTrajectories", store_pb2.GetTrajectoriesRequest(keys=keys), rows)
        self.world.commit(number)
        commit = replay_pb2.CommitStepResponse(trained_count=len(groups))
        self.note(
            "CommitStep", replay_pb2.CommitStepRequest(incarnation=trainer, step=number), commit
        )
        self.audit()

    def handed_out(self, group: Any, step: int) -> prompt_pb2.SampledGroup:
        records = [group.sessions[session] for session in sorted(group.sessions)]
        return prompt_pb2.SampledGroup(
            uid=group.uid,
            ordinal=group.ordinal,
            span=step - group.base + 1,
            min_version=min(record.min_version for record in records),
            max_version=max(record.max_version for record in records),
            trajectories=[
                prompt_pb2.TrajectoryRef(key=f"{group.uid}_{r.session}_0_{r.lineage}a{r.attempt}")
                for r in records
            ],
        )

    def row(self, key: str) -> Trajectory:
        uid, session, *_ = key.split("_")
        record = self.world.ledger.groups[uid].sessions[int(session)]
        span = WeightSpan(lineage=record.lineage, version=record.min_version, begin=0, end=1)
        return Trajectory(
            key=key,
            response_token_ids=[1],
            logprobs=[0.0],
            loss_mask=[True],
            weight_spans=[span],
        )

    def case(self) -> Case:
        """Give what a judge is given, at the end."""
        last = self.audit()
        return Case(self.world.records(), self.history, last, self.rules())

    def rules(self) -> Rules:
        return Rules(
            n=N, batch=BATCH, warmup=2, rows=ROWS, steps=STEPS, uid=lambda ordinal: f"e0r{ordinal}"
        )


def played() -> Case:
    """Play a run with one fault of each kind between its steps."""
    play = Play()
    world = play.world
    for number in range(1, STEPS + 1):
        world.feed()
        refs = world.lease(3)
        if number == 1:
            world.fail(refs[:1])
            world.expire(refs[1:2])
            world.hand_back(refs[2:])
        elif number == 2:
            world.complete(refs, sessions=[1])
            world.expire(refs)
        elif number == 3:
            world.complete(refs[:1])
            for store in ("s1b", "s1"):
                lost = journal_pb2.StoreRegistered(store_incarnation=store, capacity_bytes=10**9)
                world.ledger.emit(lost)
            world.complete(refs[1:])
        else:
            world.complete(refs)
        play.step(number)
    return play.case()


def outage() -> Case:
    """Play a run in the midst of which both workers fail, until all that can be probed with is.

    Three fresh prompts are let in; a success closes the circuit; nothing is dropped.
    """
    play = Play()
    world = play.world
    for number in range(1, STEPS + 1):
        if number == 3:
            for _ in range(60):
                world.sample()
                world.feed()
                probes = {worker: world.lease(worker=worker) for worker in ("a", "b")}
                world.feed()
                for worker, refs in probes.items():
                    world.fail(refs, worker=worker, live_workers=list(probes))
        play.step(number)
    return play.case()


def played_with_deaths() -> Case:
    """Play a run whose trainer dies twice, and once its store with it.

    Line l0 trains 1 to 4 and is left after 2; l1 trains 3 to 5 and is left after 4, with the store;
    l2 trains 5 to 7.
    """
    play = Play(saves=True)
    world = play.world
    bases: dict[int, journal_pb2.LedgerBase] = {}

    def until(first: int, last: int) -> None:
        for number in range(first, last + 1):
            world.feed()
            world.complete(world.lease(3))
            play.step(number)
            if (world.ledger.lineage, number) in (("l0", 2), ("l1", 4)):
                bases[number] = world.save(oldest_step=2)

    until(1, 4)
    world.feed()
    world.complete(world.lease(2), sessions=[1])
    world.resume(2)
    play.audit()
    until(3, 5)
    world.lease(2)
    world.open_line(4, store="s2", cut=bases[4])
    assert world.advance(resume_pb2.RESUME_PHASE_REISSUE) == ""
    lost = next(iter(world.ledger.groups.finished))
    world.report_lost([(lost.uid, 0)])
    world.warm_up()
    play.audit()
    until(5, STEPS)
    sampling.finish(world.ledger)
    return play.case()
