"""A random walk of all parties over a ledger, with deaths, judged from outside.

The same seed walks the same way. What is wrong is found by the judge's model, by refusals that did
not come, by a run that does not end, and by a ledger that its events do not rebuild.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from judge_model import Model
from judge_rules import Rules
from ledger_drafts import piece, report, token
from ledger_resumes import replayed
from ledger_world import World, settings

from headrace.errors import StepOutOfOrderError, StoreFencedError, WireError
from headrace.replay import leasing, resuming, rows, sampling
from headrace.replay.audit import audit
from headrace.replay.base import from_base, to_base
from headrace.replay.ending import at_end
from headrace.v1 import journal_pb2, prompt_pb2, replay_pb2, resume_pb2

N, BATCH, ROWS = 2, 4, 160
MOST_TOKENS = 12
WORKERS = ("a", "b", "c")
PROMPTS = ("pending", "running", "finished", "failed", "sampled", "trained")


def walked(seed: int, actions: int = 500) -> list[str]:
    """Walk, end the run, and say everything that is wrong; nothing, if it was as it should be."""
    walk = Walk(seed)
    try:
        for _ in range(actions):
            walk.act()
        walk.end()
    except Exception as error:
        walk.found.append(f"broken: {type(error).__name__}: {error}")
    walk.judge()
    return walk.found


class Walk:
    """One run, from its first row to its end."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.whims = random.Random(f"whims {seed}")
        """Of what came later, so that a seed walks as it did."""
        self.warmup = self.random.choice([0.5, 1, 2, 3])
        rules: dict[str, Any] = {
            "basis": self.random.choice(["generated", "generated", "fed"]),
            "threshold": self.random.choice([3, 5, 8]),
        }
        self.rules = Rules(
            n=N,
            batch=BATCH,
            warmup=self.warmup,
            rows=ROWS,
            steps=ROWS // BATCH,
            uid=lambda ordinal: f"e0r{ordinal}",
            max_failures=2,
            token=token,
            most_tokens=MOST_TOKENS,
            salvage=self.random.random() < 0.8,
            **rules,
        )
        self.settings = settings(
            window_size=self.rules.window, max_failures=2, saves=True, max_expiries=100,
            max_response_length=MOST_TOKENS, **rules
        )  # fmt: skip
        self.found: list[str] = []
        self.world = World(self.settings, row_count=ROWS)
        self.world.keep_settled = 10**6
        self.held: list[tuple[str, replay_pb2.LeaseRef, str]] = []
        self.known: set[tuple[str, int]] = set()
        """All weights that were ever published."""
        self.checkpoints: dict[int, journal_pb2.LedgerBase] = {}
        self.trainers: list[int] = []
        """Incarnations that were succeeded."""
        self.lives = 1
        """Of the store, heard or not."""
        self.words: list[tuple[str, str]] = []
        """What stores have said, heard or not: who each is, and whom it follows."""
        self.returned: list[tuple[str, int, str, int]] = []
        """Groups that were given back: time line, step, uid, attempt."""
        self.starts_over = False
        """Whether the resume under way leaves everything behind."""

    def act(self) -> None:
        """Have somebody do something."""
        ledger = self.world.ledger
        self.known |= ledger.weights.keys()
        often: list[Callable[[], object]] = [
            self.world.feed, self.lease, self.lease, self.complete, self.complete, self.report,
            self.report, self.go_on,
        ]  # fmt: skip
        seldom: list[Callable[[], object]] = [
            self.fail, self.fail, self.expire, self.late, self.dead_weights, self.old_trainer, self.give_back,
            self.late_return, self.save, self.new_store, self.restart, self.trainer_dies, self.journal_is_lost,
        ]  # fmt: skip
        if ledger.is_resuming:
            self.random.choice([self.resume] * 12 + often + seldom)()
        else:
            self.random.choice(often * 4 + seldom)()
        self.count()

    # -- workers

    def lease(self) -> None:
        latest = self.world.ledger.latest_weights
        if latest is None:
            return
        worker = self.random.choice(WORKERS)
        version = max(0, latest.id.version - self.random.choice([0, 0, 0, 1, 9]))
        refs = self.world.lease(self.random.randint(1, 6), worker, version)
        self.held += [(worker, ref, self.world.ledger.lineage) for ref in refs]

    def some(self) -> tuple[str, list[replay_pb2.LeaseRef]]:
        """Give current leases of one worker."""
        worker = self.random.choice(WORKERS)
        ledger = self.world.ledger
        held = [
            ref
            for name, ref, line in self.held
            if name == worker
            and line == ledger.lineage
            and (group := ledger.groups.get(ref.uid)) is not None
            and (group.attempt, group.worker_id) == (ref.attempt, worker)
        ]
        return worker, self.random.sample(held, min(len(held), 4))

    def complete(self) -> None:
        worker, refs = self.some()
        sessions = self.random.choice([None, None, [0], [1]])
        self.world.complete(refs, worker=worker, sessions=sessions)

    def report(self) -> None:
        """Say how far sessions have come: what is new, something twice, or by any weights."""
        worker, refs = self.some()
        if self.world.ledger.latest_weights:
            for ref in refs:
                pieces = [self.piece(ref.uid, session) for session in self.random.sample([0, 1], 1)]
                report(self.world, ref, *pieces, worker=worker)

    def piece(self, uid: str, session: int) -> prompt_pb2.Draft:
        ledger = self.world.ledger
        draft, latest = ledger.groups[uid].drafts.get(session), ledger.latest_weights
        assert latest
        length = len(draft.token_ids) if draft else 0
        line, version = latest.id.lineage, latest.id.version
        if self.random.random() < 0.1:
            # With `fed` the ledger does not know what a lease was given with, and believes it all.
            known = self.known if self.rules.basis != "fed" else self.known - ledger.weights.keys()
            line, version = self.random.choice(sorted(known) or [(line, version)])
        offset = max(0, length - self.random.choice([0, 0, 0, 2, -1]))
        count = self.random.randint(1, MOST_TOKENS // 3)
        return piece(self.world, uid, session, offset, (version, count), lineage=line)

    def fail(self) -> None:
        worker, refs = self.some()
        if refs:
            self.world.fail(refs[:1], worker=worker, live_workers=WORKERS)

    def expire(self) -> None:
        self.world.expire(self.some()[1])

    def late(self) -> None:
        """Hear of leases that are not current any more."""
        ledger = self.world.ledger
        if not self.held:
            return
        worker, ref, line = self.random.choice(self.held)
        group = ledger.groups.get(ref.uid)
        held = group and (group.attempt, group.worker_id) == (ref.attempt, worker)
        if group is None or (held and line == ledger.lineage):
            return
        position = ledger.position
        self.world.complete([ref], worker=worker, sessions=[0, 1], version=0, lineage=line)
        if ledger.latest_weights:
            report(self.world, ref, self.piece(ref.uid, 0), worker=worker, lineage=line)
        self.unmoved(position, f"{worker} with {ref.uid} a{ref.attempt} of {line}")

    def dead_weights(self) -> None:
        """Ask for a lease with weights of any line."""
        if not self.known:
            return
        line, version = self.random.choice(sorted(self.known))
        weights = prompt_pb2.WeightsId(lineage=line, version=version)
        try:
            leasing.check_weights(self.world.ledger, weights, f"c{version}")
        except WireError:
            return
        count = min(1, self.world.allowance("z", version).count)
        leasing.lease(
            self.world.ledger, self.world.settings, worker_id="z", weights=weights, count=count
        )

    def unmoved(self, position: int, who: str) -> None:
        if self.world.ledger.position != position:
            self.found.append(f"fence: {who} changed something")

    # -- the trainer

    def go_on(self) -> None:
        """Sample, and commit what is complete."""
        ledger = self.world.ledger
        if ledger.ended_by or self.world.sample().status != replay_pb2.SAMPLE_STATUS_READY:
            return
        step = ledger.current_step
        self.world.commit()
        position = ledger.position
        self.world.commit(step)
        self.unmoved(position, "a repeated commit")
        if self.random.random() < 0.4:
            self.save()

    def give_back(self) -> None:
        ledger = self.world.ledger
        self.world.sample()
        opened, sampled = ledger.open_step, sorted(ledger.groups.sampled)
        if opened and sampled:
            uid = sampled[0]
            self.returned.append((ledger.lineage, opened.step, uid, ledger.groups[uid].attempt))
            self.say_returned(*self.returned[-1])

    def late_return(self) -> None:
        """Hear of a return once more, when its group may be made and sampled again."""
        self.give_back()
        self.world.generate()
        self.world.sample()
        of_line = [each for each in self.returned if each[0] == self.world.ledger.lineage]
        if of_line:
            position = self.world.ledger.position
            self.say_returned(*of_line[-1])
            self.unmoved(position, f"a repeated return of {of_line[-1]}")

    def say_returned(self, _: str, step: int, uid: str, attempt: int) -> None:
        with suppress(StepOutOfOrderError):
            sampling.return_groups(
                self.world.ledger,
                step=step,
                part=0,
                uids=[uid],
                attempts=[attempt],
                error="unreadable",
            )

    def old_trainer(self) -> None:
        ledger = self.world.ledger
        if not self.trainers:
            return
        position = ledger.position
        try:
            sampling.check_trainer(ledger, self.random.choice(self.trainers))
            sampling.sample(ledger, self.settings, step=ledger.current_step, part=0, part_count=1)
            sampling.commit_step(ledger, self.settings, ledger.current_step)
        except WireError:
            pass
        self.unmoved(position, "a trainer that was succeeded")

    def trainer_dies(self) -> None:
        ledger = self.world.ledger
        self.trainers.append(ledger.trainer_incarnation)
        self.world.new_trainer()
        if self.random.random() < 0.3:
            self.world.sample()
        steps = sorted(self.checkpoints) if ledger.groups.covered_step else [0]
        self.starts_over = self.whims.random() < 0.1
        self.world.begin_resume(0 if self.starts_over else self.random.choice(steps))

    # -- the coordinator

    def save(self) -> None:
        try:
            self.world.begin_cut()
        except WireError:
            return
        base = self.world.cut()
        if self.random.random() < 0.3:
            self.world.end_cut(committed=False)
            return
        self.checkpoints[self.world.ledger.committed_step] = base
        self.checkpoints = dict(sorted(self.checkpoints.items())[-2:])
        self.world.end_cut(oldest_step=min(self.checkpoints))

    def resume(self) -> None:
        """Go on with the resume, one step of it."""
        state, ledger = self.world.state, self.world.ledger
        if state.trainer_incarnation != ledger.trainer_incarnation:
            self.world.begin_resume(state.step)
        elif self.random.random() < 0.1:
            # Too early, unless nothing is to be waited for.
            self.world.advance(resume_pb2.ResumePhase.ValueType(state.phase + 1), ())
        elif state.phase == resume_pb2.RESUME_PHASE_LEDGER and not state.lineage:
            if self.starts_over:
                resuming.start_over(ledger, self.world.resume_id)
                self.count()
            self.open_line()
        else:
            if state.phase == resuming.WEIGHTS:
                self.world.publish(state.step)
            elif state.phase == resuming.REISSUE and ledger.groups.finished:
                lost = self.random.choice(list(ledger.groups.finished))
                self.world.report_lost([(lost.uid, 0)] if self.random.random() < 0.3 else [])
            elif state.phase == resuming.WARMUP:
                self.world.feed()
            self.world.advance(resume_pb2.ResumePhase.ValueType(state.phase + 1))

    def open_line(self, restore: journal_pb2.LedgerBase | None = None) -> None:
        step = self.world.state.step
        store, base = self.world.ledger.store_incarnation, restore
        if self.random.random() < 0.2:
            store, base = self.next_store(), self.checkpoints.get(step)
        self.world.roll_back(store=store, cut=base, salvage=self.rules.salvage)
        self.checkpoints = {k: v for k, v in self.checkpoints.items() if k <= step}
        self.found += [f"audit: {fault}" for fault in audit(self.world.ledger, self.settings)]

    # -- losses

    def new_store(self) -> None:
        if self.random.random() < 0.6:
            return
        if self.words and self.whims.random() < 0.5:
            self.hear(*self.whims.choice(self.words))
        word = (self.next_store(), self.world.ledger.store_incarnation)
        self.words.append(word)
        if self.whims.random() < 0.8:  # else it dies before it is heard
            self.hear(*word)
            if self.world.ledger.store_incarnation != word[0]:
                self.found.append(f"I8: the store that lives, {word[0]}, is not heard")

    def next_store(self) -> str:
        self.lives += 1
        return f"s{self.lives}"

    def hear(self, life: str, follows: str) -> None:
        """Let what a store has said arrive, for the first time or once more."""
        ledger = self.world.ledger
        before = ledger.store_incarnation
        with suppress(StoreFencedError):
            rows.register_store(ledger, incarnation=life, follows=follows, capacity_bytes=10**9)
        if int(ledger.store_incarnation[1:]) < int(before[1:]):
            self.found.append(f"I8: the store's life {life} is over, and is heard after {before}")

    def restart(self) -> None:
        before = self.snapshot()
        self.world.restart(compacted=self.random.random() < 0.7)
        if self.snapshot() != before:
            self.found.append("durable: a restart changed the ledger")

    def snapshot(self) -> journal_pb2.LedgerBase:
        base = to_base(
            from_base(to_base(self.world.ledger, keep_settled=10**6)), keep_settled=10**6
        )
        base.groups.sort(key=lambda stored: stored.group.ordinal)
        return base

    def journal_is_lost(self) -> None:
        if not self.checkpoints or self.random.random() < 0.5:
            return
        self.judge()
        step = self.random.choice(sorted(self.checkpoints))
        base, before = self.checkpoints[step], self.world
        self.world = World(
            self.settings,
            row_count=ROWS,
            store=base.store.store_incarnation,
            trainer=before.trainers + 1,
            publishes=False,
        )
        self.world.keep_settled, self.world.resumes = before.keep_settled, before.resumes
        self.trainers, self.words, self.starts_over = [], [], False
        self.world.feed()
        self.world.begin_resume(step)
        for phase in (resume_pb2.RESUME_PHASE_STORE, resume_pb2.RESUME_PHASE_LEDGER):
            self.world.advance(phase)
        self.world.restore(base)
        self.open_line(base)

    # -- the end

    def end(self) -> None:
        """Have everybody do their work until the run is over."""
        for _ in range(400):
            ledger = self.world.ledger
            if ledger.ended_by:
                return
            if ledger.is_resuming:
                self.resume()
            elif at_end(ledger):
                sampling.finish(ledger)
            else:
                self.world.feed()
                for worker in WORKERS:
                    self.world.complete(self.world.lease(50, worker), worker=worker)
                _, refs = self.some()
                self.world.expire(refs)
                for name, ref, _ in self.held:
                    if leasing.holder(ledger, name, ref):
                        self.world.complete([ref], worker=name)
                self.held = []
                zombies = [g for g in ledger.groups.running if g.worker_id == "z"]
                self.world.expire(
                    [replay_pb2.LeaseRef(uid=g.uid, attempt=g.attempt) for g in zombies]
                )
                self.go_on()
            self.count()
        self.found.append("stuck: the run does not end")

    def count(self) -> None:
        """Write down what the ledger says of itself, for the judge."""
        counted = self.world.ledger.groups.to_counts()
        said = {f"dropped:{reason}": count for reason, count in counted.dropped.items()}
        said |= {state: getattr(counted, state) for state in PROMPTS}
        self.said[self.world.ledger.position] = {k: v for k, v in said.items() if v}

    @property
    def said(self) -> dict[int, dict[str, int]]:
        if not hasattr(self.world, "said"):
            self.world.said = {}  # type: ignore[attr-defined]
        found: dict[int, dict[str, int]] = self.world.said  # type: ignore[attr-defined]
        return found

    def judge(self) -> None:
        """Look at this journal's events from outside."""
        model = Model(self.rules)
        try:
            records = self.world.records()
            model.follow(records)
            rebuilt = replayed(records).groups.to_counts()
        except Exception as error:
            self.found.append(f"broken: {type(error).__name__}: {error}")
            return
        self.found += model.found
        if rebuilt != self.world.ledger.groups.to_counts():
            self.found.append("durable: the events rebuild another ledger")
        for position, said in self.said.items():
            expected = dict(model.counts[position])
            if said != expected:
                self.found.append(f"balance: at {position} {said}, the judge has {expected}")
        if self.world.ledger.ended_by:
            left = [p.uid for p in model.prompts.values() if p.state not in ("trained", "dropped")]
            self.found += [f"lost: {uid} is live at the end" for uid in left]
