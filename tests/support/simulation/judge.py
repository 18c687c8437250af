"""The judge: what must hold (faults.md, I1-I14), from the history outside the system.

It sees durable events, answers as they leave, rows as they go, weights as they are made, and files
as they appear. The ledger's own audit is asked, too, and never believed alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.replay.audit import audit
from headrace.replay.groups import state_name
from headrace.v1 import journal_pb2, prompt_pb2
from headrace.v1 import replay_pb2 as pb
from simulation.engine import Call, Party
from simulation.model import (
    DROPPED,
    FINISHED,
    LIVE,
    OPEN,
    PENDING,
    RUNNING,
    TRAINED,
    Model,
    check,
)
from simulation.scenario import B
from simulation.storage import PARTS, TORN

if TYPE_CHECKING:
    from simulation.replay import Replay
    from simulation.store import Row, Store
    from simulation.trainer import Trainer
    from simulation.world import World

OF_TRAINERS = frozenset(
    ("weights_published", "step_opened", "batch_sampled", "groups_returned", "step_committed")
)
KEEP_CUTS = 12


class Judge:
    """Raises ViolationError as soon as something does not hold."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.model = Model(world.scenario, world.uid)
        self.event_count = 0
        self._cuts: dict[str, Model] = {}
        """The model at each cut, by snapshot."""
        self._seen: dict[tuple[str, int], Any] = {}
        """What the weights of (line, step) saw, as their trainer made them."""
        self.newest_trainer: Party | None = None
        """Who registered last, durably."""
        self._observed: dict[tuple[int, str], int] = {}
        """The newest version that a worker's life has loaded, by line."""
        self._gone_late: set[str] = set()
        """Rows that the deletion of a trainer who had been succeeded took away."""
        self.given_up: set[str] = set()
        """Prompts that a user wants to be dropped."""
        self.counts: Counter[str] = Counter()
        """What was seen, to know that a climate is not empty."""

    # -- events

    def enqueued(self, replay: Replay, records: Sequence[journal_pb2.JournalRecord]) -> None:
        """Look at who caused what, as it happens."""
        for record in records:
            name = record.WhichOneof("event")
            if name == "trainer_registered":
                replay.newest_trainer = replay.registered[record.position] = replay.serving
            elif name in OF_TRAINERS:
                check(
                    replay.serving is replay.newest_trainer,
                    f"I6: {name} by a trainer that was succeeded",
                )

    def durable(self, replay: Replay, records: Sequence[journal_pb2.JournalRecord]) -> None:
        """Take in events that became durable."""
        for record in records:
            self.event_count += 1
            name = record.WhichOneof("event")
            if name == "ledger_restored":
                self._restored(record)
                continue
            before = self.model.committed if name == "lineage_opened" else 0
            self.model.apply(record)
            if name == "snapshot_begun":
                self._keep_cut(record.snapshot_begun.snapshot_id)
            elif name == "lineage_opened":
                self._check_weights("I3: a rollback")
                self.counts["rollbacks"] += 1
                self.counts["untrained_steps"] += before - self.model.committed
            elif name == "sessions_completed":
                self._completed(record.sessions_completed)
            elif name == "groups_dropped":
                self._dropped(record.groups_dropped)
            elif name == "trainer_registered":
                self.newest_trainer = replay.registered[record.position]
            self.counts[name or ""] += 1

    def journal_lost(self) -> None:
        """Nothing is durable any more but checkpoints."""
        self.model = Model(self.world.scenario, self.world.uid)
        self.newest_trainer = None

    def _keep_cut(self, snapshot_id: str) -> None:
        self._cuts[snapshot_id] = self.model.copy()
        while len(self._cuts) > KEEP_CUTS:
            del self._cuts[next(iter(self._cuts))]

    def _restored(self, record: journal_pb2.JournalRecord) -> None:
        """The journal was lost: the model goes back to the cut that was taken."""
        base, now = record.ledger_restored.base, self.model
        check(record.position == now.position + 1, "I10: a hole in the journal")
        cut = self._cuts.get(base.snapshot.snapshot_id)
        check(cut is not None, "I9: restored from something that is no known cut")
        assert cut
        model = cut.copy()
        model.position = record.position
        model.store, model.trainer_incarnation = now.store, now.trainer_incarnation
        model.resume_id, model.resume_step = now.resume_id, now.resume_step
        model.resume_phase, model.snapshot_id = now.resume_phase, ""
        self.model = model
        self.counts["restores"] += 1

    def _completed(self, event: journal_pb2.SessionsCompleted) -> None:
        """Rows that are recorded are there, under that key, made by weights of this line."""
        store = self.world.disk
        if store.incarnation != event.store_incarnation:
            return  # it has died since
        for item in event.sessions:
            group = self.model.groups[item.lease.uid]
            session = group.sessions.get(item.record.session)
            if session is None:
                continue
            row = store.rows.get(session.key)
            check(row is not None, f"I8: {session.key} is recorded, and not in the store")
            assert row
            for line, version in row.made_by:
                on_line = self.model.is_on_line(line, version)
                check(on_line, f"I14: {session.key} was made by {line} v{version}")
            versions = [version for _, version in row.made_by]
            check(
                (session.min_version, session.max_version) == (min(versions), max(versions)),
                f"I14: {session.key} was made by {row.made_by}",
            )

    def _dropped(self, event: journal_pb2.GroupsDropped) -> None:
        """Nothing is cancelled that nobody wanted to be."""
        if event.reason == prompt_pb2.DROP_REASON_CANCELLED:
            unasked = set(event.uids) - self.given_up
            check(not unasked, f"I13: {unasked} are cancelled, and nobody wanted it")

    # -- answers

    def replied(self, replay: Replay, call: Call, method: str, request: Any, answer: Any) -> None:
        """What an answer says is durable."""
        if replay.journal.disk is not self.world.journal or replay.is_fenced:
            return  # it tells what was, to those who still ask it
        look = _ANSWERS.get(method)
        if look:
            look(self, call, request, answer)

    def _said_leases(self, call: Call, request: Any, answer: Any) -> None:
        for lease in answer.leases:
            group = self.model.groups.get(lease.uid)
            known = group is not None and group.attempt >= lease.attempt
            check(known, f"I10: the lease of {lease.uid} is answered and not durable")
            for draft in lease.drafts if lease.lineage == self.model.lineage else ():
                lives = all(self.model.is_on_line(s.lineage, s.version) for s in draft.weight_spans)
                check(lives, f"I14: {lease.uid} is to be gone on with, from a dead line")
                self.counts["continued"] += 1

    def _said_kept(self, call: Call, request: Any, answer: Any) -> None:
        kept = iter(answer.kept_counts)
        for progress in request.progress:
            group = self.model.groups.get(progress.lease.uid)
            for draft in progress.drafts:
                count = next(kept)
                if group is None or (group.state, group.attempt) != (
                    RUNNING,
                    progress.lease.attempt,
                ):
                    continue  # its durable state is a later one
                known = len(group.drafts.get(draft.session, ()))
                done = draft.session in group.sessions or progress.lineage != self.model.lineage
                check(known >= count or done, f"I10: {count} tokens are kept, {known} are durable")

    def _said_sessions(self, call: Call, request: Any, answer: Any) -> None:
        for item, status in zip(request.sessions, answer.statuses, strict=True):
            group = self.model.groups.get(item.lease.uid)
            if status == pb.LEASE_STATUS_DONE and group and group.state == RUNNING:
                done = group.attempt > item.lease.attempt or item.record.session in group.sessions
                check(done, f"I10: sessions of {item.lease.uid} are answered and not durable")

    def _said_commit(self, call: Call, request: Any, answer: Any) -> None:
        check(self.model.committed >= request.step, "I10: a commit is answered and not durable")

    def _said_cursor(self, call: Call, request: Any, answer: Any) -> None:
        check(self.model.cursor >= answer.cursor, "I10: a cursor is answered and not durable")

    def _said_trainer(self, call: Call, request: Any, answer: Any) -> None:
        known = self.model.trainer_incarnation >= answer.incarnation
        check(known, "I10: a trainer is answered and not durable")

    def _said_batch(self, call: Call, request: Any, answer: Any) -> None:
        if answer.status != pb.SAMPLE_STATUS_READY:
            return
        parts = self.model.parts
        ours = parts is not None and request.step == self.model.committed + 1
        if ours and parts is not None:
            said = {group.uid for group in answer.groups}
            check(
                len(answer.groups) * request.part_count == B,
                f"I2: a part of {len(answer.groups)} groups",
            )
            lacking = said - set(parts[request.part])
            late = call.is_over or not call.caller.is_up
            check(not lacking or late, f"I10: {lacking} answered as sampled and not durable")

    def _said_resume(self, call: Call, request: Any, answer: Any) -> None:
        if self.model.resume_id == answer.state.resume_id:
            known = self.model.resume_phase >= answer.state.phase
            check(known, "I10: a phase is answered and not durable")

    # -- trainers and workers

    def trained(self, trainer: Trainer) -> None:
        """An update was made; what these weights saw is what they saw."""
        self._seen[trainer.lineage, trainer.step] = trainer.seen
        uids = [uid for batch in trainer.seen for uid in batch]
        check(len(uids) == len(set(uids)), "I2: weights saw a prompt twice")

    def read(self, trainer: Trainer, step: int, rows: Mapping[str, Row]) -> None:
        """A batch's rows were read; all were made by weights of the trainer's line."""
        if trainer is self.world.parties.get("trainer") and self.model.lineage == trainer.lineage:
            for key, row in rows.items():
                for line, version in row.made_by:
                    check(
                        self.model.is_on_line(line, version) and version < step,
                        f"I14: {key} was made by {line} v{version}, for step {step}",
                    )

    def committed(self, trainer: Trainer) -> None:
        """A commit was answered: ledger and weights agree, step by step."""
        if trainer is self.world.parties.get("trainer") and self.model.lineage == trainer.lineage:
            self._check_weights("I3: a commit")

    def trainer_loaded(self, trainer: Trainer, plan: Any) -> None:
        """A trainer goes on: what its weights saw is what the ledger says was trained."""
        if plan.state.lineage == self.model.lineage:
            self._compare(trainer.seen, "I3: a trainer's state")

    def loaded_weights(self, worker: Party, weights: Any) -> None:
        """A worker loaded weights: on a line never older than before."""
        key = (worker.number, weights.id.lineage)
        before = self._observed.get(key, -1)
        check(weights.id.version >= before, f"I14: v{weights.id.version} after v{before}")
        self._observed[key] = weights.id.version

    def goes_on(self, uid: str, session: int, draft: prompt_pb2.Draft | None) -> None:
        """A worker goes on with a response: each of its tokens is in its place, once."""
        from simulation.worker import token

        found = list(draft.token_ids) if draft else []
        wanted = [token(uid, session, place) for place in range(len(found))]
        check(found == wanted, f"I6: session {session} of {uid} is to be gone on with as {found}")

    def engine_failed(self, uid: str) -> None:
        """An engine raised."""
        self.counts["engine_failures"] += 1

    def _check_weights(self, what: str) -> None:
        """Compare the ledger's trainings with what the weights of the step have seen."""
        step = self.model.committed
        if step == 0:
            self._compare((), what)
        for line, fork in reversed(self.model.lineages):
            if (line, step) in self._seen:
                self._compare(self._seen[line, step], what)
                return
            if step > fork:
                break

    def _compare(self, seen: Any, what: str) -> None:
        trained = self.model.trained
        check(len(seen) == len(trained), f"{what}: {len(seen)} steps seen, {len(trained)} trained")
        for step, batch in enumerate(seen, 1):
            check(
                sorted(batch) == sorted(trained[step]),
                f"{what}: weights saw {batch} in step {step}, the ledger trained {trained[step]}",
            )

    # -- rows

    def _said_dead(self, call: Call, request: Any, answer: Any) -> None:
        dead = set(answer.dead_keys)
        for group in self.model.groups.values() if dead else ():
            if group.state in LIVE and group.incarnation == request.store_incarnation:
                for session in group.sessions.values():
                    check(session.key not in dead, f"I8: {session.key} is called dead")

    def deleted(self, store: Store, key: str) -> None:
        """A row goes. Nobody needed it when that was asked for; since then it may have come back.

        A trainer that finds it missing says so, and it is made again.
        """
        group = self.model.groups.get(key.split("_")[0])
        live = group and group.state in LIVE and store.disk.incarnation == self.model.store
        if live and group and any(session.key == key for session in group.sessions.values()):
            self._gone_late.add(key)
            self.counts["rows_deleted_late"] += 1

    def check_rows(self) -> None:
        """All rows that live groups record are in the store, once nothing is pending."""
        model, disk = self.model, self.world.disk
        if disk.incarnation != model.store or model.resume_phase != OPEN:
            return
        for group in model.groups.values():
            if group.state in (FINISHED, PENDING, RUNNING):
                for session in group.sessions.values():
                    there = session.key in disk.rows or session.key in self._gone_late
                    check(there, f"I8: {session.key} of {group.state} {group.uid} is not there")

    # -- the ledger itself

    def loaded(self, replay: Replay) -> None:
        """A life of the replay buffer loaded its journal: it is what the events say."""
        if replay.buffer.ledger.position >= self.model.position:
            self.compare_ledger(replay)

    def compare_ledger(self, replay: Replay) -> None:
        """Compare the ledger with the model, group by group, if both are at one position."""
        ledger, model = replay.buffer.ledger, self.model
        if ledger.position != model.position or not model.position:
            return
        found = audit(ledger, self.world.scenario.rules)
        if found and not ledger.is_resuming and not self._is_taking_up(found):
            check(False, f"I1: the ledger's audit: {found[:3]}")
        counts = Counter(group.state for group in model.groups.values())
        check(sum(counts.values()) == model.cursor, "I1: rows were fed and are nowhere")
        for group in ledger.groups:
            its = model.groups.get(group.uid)
            check(its is not None, f"I1: the ledger knows {group.uid}, the events do not")
            assert its
            state = state_name(group.state)
            same = (state, group.attempt) == (its.state, its.attempt)
            check(same, f"I1: {group.uid} is {state} {group.attempt}; events: {its}")
            if its.state in LIVE:
                drafts = {key: len(draft.token_ids) for key, draft in group.drafts.items()}
                same = drafts == {session: len(made) for session, made in its.drafts.items()}
                check(same, f"I1: {group.uid} is under way with {drafts}; events: {its}")
                sessions = sorted(group.sessions) == sorted(its.sessions)
                check(sessions, f"I1: {group.uid} has {sorted(group.sessions)}; events: {its}")
        check(ledger.groups.fed_count == model.cursor, "I1: groups are missing in the ledger")
        check(ledger.committed_step == model.committed, "I1: another step")
        check(ledger.lineage == model.lineage, "I1: another time line")

    @staticmethod
    def _is_taking_up(found: Sequence[str]) -> bool:
        return all("past the threshold" in line for line in found)

    # -- checkpoints

    def manifest_written(self, step: int) -> None:
        """A checkpoint is complete: all of its parts are of one cut."""
        storage, uri = self.world.storage, self.world.storage.uri(step)
        check(
            not any(part is TORN for part in storage.directories[step].parts.values()), "I9: torn"
        )
        check(not storage.look(step).problems, f"I9: {uri}: {storage.look(step).problems}")
        directory = storage.directories[step]
        manifest, parts = directory.manifest, directory.parts
        assert manifest
        check(set(parts) >= set(PARTS), f"I9: {uri} has {sorted(parts)}")
        base = journal_pb2.LedgerBase.FromString(parts["ledger"])
        check(base.committed_step == manifest.step, f"I9: the ledger of {uri} is of another step")
        check(len(parts["trainer"]) == manifest.step, f"I9: the weights of {uri}: another step")
        cut = self._cuts.get(manifest.snapshot_id)
        check(cut is not None, f"I9: {uri} is of no known cut")
        assert cut
        trained = [sorted(cut.trained[step]) for step in sorted(cut.trained)]
        seen = [sorted(batch) for batch in parts["trainer"]]
        check(trained == seen, f"I9: {uri}: weights saw {seen}, trained are {trained}")
        self._check_base(uri, base, cut)
        incarnation, rows = parts["store"]
        check(incarnation == manifest.store_incarnation, f"I9: {uri}: another store")
        there = dict(rows)
        for group in cut.groups.values():
            if group.state in LIVE and group.incarnation == incarnation:
                for session in group.sessions.values():
                    known = session.key in there or session.key in self._gone_late
                    check(known, f"I9: {uri} lacks {session.key}, which its ledger records")
        self.counts["checkpoints"] += 1

    def _check_base(self, uri: str, base: journal_pb2.LedgerBase, cut: Model) -> None:
        live = {s.group.uid: s.group for s in base.groups}
        for group in cut.groups.values():
            if group.state in LIVE:
                its = live.get(group.uid)
                check(its is not None, f"I9: the ledger of {uri} lacks {group.uid}")
                assert its
                same = state_name(its.state) == group.state and len(its.sessions) == len(
                    group.sessions
                )
                check(same, f"I9: the ledger of {uri} has {group.uid} as {state_name(its.state)}")
        check(base.cursor == cut.cursor, f"I9: the cursor of {uri} is another")

    def latest_written(self) -> None:
        """The pointer names a checkpoint that is whole."""
        storage = self.world.storage
        if storage.latest is not None:
            found = storage.look(storage.latest)
            check(found.manifest is not None, "I9: the pointer names what is no checkpoint")

    # -- the end

    def ended(self) -> None:
        """The run is at its end and nothing is under way: the books are balanced."""
        model, scenario = self.model, self.world.scenario
        check(bool(model.ended), "I11: the trainer is done, and the run has not ended")
        live = [group.uid for group in model.groups.values() if group.state in LIVE]
        check(not live, f"I4: {live} are neither trained nor dropped")
        check(model.cursor == model.ordinal_count, "I4: rows were never fed")
        trained = {uid for uids in model.trained.values() for uid in uids}
        states = {group.uid for group in model.groups.values() if group.state == TRAINED}
        check(trained == states, "I3: the steps' batches are not what is trained")
        self._check_weights("I3: the end")
        dropped = {group.uid for group in model.groups.values() if group.state == DROPPED}
        every = {model.uid_of(ordinal) for ordinal in range(model.ordinal_count)}
        check(trained | dropped == every, "I4: trained and dropped are not all rows")
        check(not trained & dropped, "I1: trained and dropped")
        check(len(trained) == model.committed * B, "I2: a step of another size")
        if scenario.is_exact:
            check(trained == every, f"I4: {sorted(every - trained)} were not trained")
        self.check_rows()


_ANSWERS: Mapping[str, Callable[[Judge, Call, Any, Any], None]] = {
    "LeasePrompts": Judge._said_leases,
    "RenewLeases": Judge._said_kept,
    "CompleteSessions": Judge._said_sessions,
    "CommitStep": Judge._said_commit,
    "RegisterPrompts": Judge._said_cursor,
    "OpenFeed": Judge._said_cursor,
    "AwaitDemand": Judge._said_cursor,
    "RegisterTrainer": Judge._said_trainer,
    "SampleBatch": Judge._said_batch,
    "BeginResume": Judge._said_resume,
    "AdvanceResume": Judge._said_resume,
    "RollBack": Judge._said_resume,
    "FindDeadTrajectories": Judge._said_dead,
}
