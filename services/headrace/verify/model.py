"""What the durable events say: an outsider's own fold of them, written from the protos' comments.

Shares no code with the ledger. Each event is checked against the state before it; what is not
allowed there is told, by the invariant of docs/faults.md that it breaks:

    I1  every prompt is in exactly one place        I8   finished groups have all their sessions
    I2  a prompt is fed and trained on once         I9   a cut is of one step, while nothing is torn
    I3  steps in order, of one time line            I11  a run ends for a reason
    I4  nothing is skipped at the end               I12  the feed's and the batches' order
    I5  the window, and nothing while resuming      I13  failures are counted, not guessed
    I6  leases, attempts and incarnations           I14  weights are of the living time line
    I7  no group past the threshold
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from headrace.v1 import journal_pb2, prompt_pb2
from headrace.v1 import replay_pb2 as pb

PENDING, RUNNING, FINISHED, FAILED, SAMPLED, TRAINED, DROPPED = (
    "pending", "running", "finished", "failed", "sampled", "trained", "dropped",
)  # fmt: skip
LIVE = (PENDING, RUNNING, FINISHED, FAILED, SAMPLED)
WEIGHTS_PHASE, WARMUP, OPEN = 4, 6, 7


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the run was told."""

    n: int
    """Sessions per group."""
    batch: int
    """Groups per step."""
    window: int
    """floor(W x B)."""
    threshold: int | None
    """T; None = nothing is ever stale."""
    drops: bool
    """Whether groups past T are dropped."""
    basis: str
    """`generated` or `fed`."""
    max_failures: int
    max_expiries: int
    uid_of: Callable[[int], str | None] = lambda ordinal: None
    """The uid of an ordinal, where it is known from elsewhere."""


@dataclass(slots=True)
class Session:
    """One recorded session."""

    key: str
    min_version: int
    max_version: int


@dataclass(slots=True)
class Group:
    """One prompt group."""

    uid: str
    ordinal: int
    state: str
    base: int = 0
    attempt: int = 0
    worker: str = ""
    sessions: dict[int, Session] = field(default_factory=dict)
    drafts: dict[int, list[int]] = field(default_factory=dict)
    """Sessions under way, as far as they were reported: by token the weights that made it."""
    incarnation: str = ""
    step: int = 0
    reason: str = ""
    """Why it was dropped."""
    reported_failures: int = 0
    expiries: int = 0


class Model:
    """The run as the durable events tell it."""

    def __init__(self, rules: Rules, say: Callable[[str], None]) -> None:
        """Make an empty one.

        Args:
            rules: What the run was told.
            say: Is told each violation; it may raise.

        """
        self.rules = rules
        self.say = say
        self.position = 0
        self.groups: dict[str, Group] = {}
        self.counts = dict.fromkeys((*LIVE, TRAINED, DROPPED), 0)
        self.lineages: list[tuple[str, int]] = []
        self.cursor = 0
        self.total_steps = 0
        self.ordinal_count = 0
        self.committed = 0
        self.trained: dict[int, list[str]] = {}
        """By step: what the ledger says was trained."""
        self.parts: list[list[str]] | None = None
        self.weights: dict[tuple[str, int], str] = {}
        self.latest: tuple[str, int] | None = None
        self.store = ""
        self.ended = ""
        self.resume_phase = OPEN
        self.resume_step = 0
        self.resume_id = ""
        self.snapshot_id = ""
        self.trainer_incarnation = 0
        self.circuit_open = False

    def check(self, holds: bool, text: str) -> None:
        """Tell what does not hold."""
        if not holds:
            self.say(f"{text} (position {self.position})")

    # -- derived

    @property
    def lineage(self) -> str:
        """The current time line."""
        return self.lineages[-1][0] if self.lineages else ""

    @property
    def open_count(self) -> int:
        """What the open step still has to sample."""
        return (
            self.rules.batch - sum(len(part) for part in self.parts)
            if self.parts is not None
            else 0
        )

    @property
    def target(self) -> int:
        """Groups that should be live (design 2.4)."""
        remaining = (
            self.total_steps * self.rules.batch - self.counts[TRAINED] - self.counts[SAMPLED]
        )
        return max(0, min(self.rules.window + self.open_count, remaining))

    @property
    def occupancy(self) -> int:
        """Groups in the window."""
        return self.counts[PENDING] + self.counts[RUNNING] + self.counts[FINISHED]

    def is_on_line(self, lineage: str, version: int) -> bool:
        """Whether weights belong to the past of the current time line."""
        last = float("inf")
        for name, fork in reversed(self.lineages):
            if name == lineage:
                return version <= last
            last = min(last, fork)
        return False

    def base_of(self, group: Group) -> int:
        """The step that its span counts from."""
        if self.rules.basis == "fed":
            return group.base
        return min((s.min_version for s in group.sessions.values()), default=-1) + 1

    # -- events

    def apply(self, record: journal_pb2.JournalRecord) -> None:
        """Take in a durable event."""
        self.check(record.position == self.position + 1, "I10: a hole in the journal")
        self.position = record.position
        name = record.WhichOneof("event")
        assert name
        handler = _HANDLERS.get(name)
        if handler is None:
            self.say(f"an event of an unknown kind, {name} (position {self.position})")
            return
        handler(self, getattr(record, name))

    def _move(self, uid: str, state: str, *allowed: str) -> Group:
        group = self.groups.get(uid)
        if group is None:
            self.say(f"I1: {uid} was never fed (position {self.position})")
            group = self.groups[uid] = Group(uid, -1, allowed[0])
            self.counts[group.state] += 1
        self.check(group.state in allowed, f"I1: {uid} goes from {group.state} to {state}")
        self.counts[group.state] -= 1
        self.counts[state] += 1
        group.state = state
        if state not in (PENDING, RUNNING):
            group.drafts.clear()
        return group

    def _to_pending(self, group: Group) -> None:
        group.worker = ""
        if self.rules.basis != "fed":
            group.base = self.base_of(group)

    def _forget(self, group: Group) -> None:
        group.sessions.clear()
        if self.rules.basis != "fed":
            group.base = 0

    def _on_run_opened(self, event: journal_pb2.RunOpened) -> None:
        self.lineages = [(event.lineage, 0)]

    def _on_feed_opened(self, event: journal_pb2.FeedOpened) -> None:
        self.total_steps, self.ordinal_count = event.total_steps, event.ordinal_count

    def _on_prompts_registered(self, event: journal_pb2.PromptsRegistered) -> None:
        self.check(event.first_ordinal == self.cursor, "I12: the feed has a hole, or a repeat")
        wanted = sum(not prompt.drop_reason for prompt in event.prompts)
        self.check(
            not wanted or self.resume_phase >= WARMUP, "I5: fed while the run is being resumed"
        )
        room = max(0, self.target - self.occupancy)
        self.check(wanted <= room, f"I5: {wanted} prompts fed, {room} were wanted")
        for offset, prompt in enumerate(event.prompts):
            ordinal = event.first_ordinal + offset
            known = self.rules.uid_of(ordinal)
            self.check(known in (None, prompt.uid), f"I12: {prompt.uid} is not row {ordinal}")
            self.check(prompt.uid not in self.groups, f"I2: {prompt.uid} is fed twice")
            state = DROPPED if prompt.drop_reason else PENDING
            base = self.committed + 1 if self.rules.basis == "fed" and not prompt.drop_reason else 0
            self.groups[prompt.uid] = Group(prompt.uid, ordinal, state, base)
            if prompt.drop_reason:
                name = prompt_pb2.DropReason.Name(prompt.drop_reason)
                self.groups[prompt.uid].reason = name.removeprefix("DROP_REASON_").lower()
            self.counts[state] += 1
        self.cursor += len(event.prompts)
        self.check(self.cursor <= self.ordinal_count, "I12: more rows than there are")

    def _on_prompts_leased(self, event: journal_pb2.PromptsLeased) -> None:
        self.check(self.resume_phase == OPEN, "I5: leased while the run is being resumed")
        weights = (event.weights.lineage, event.weights.version)
        self.check(weights in self.weights, f"I14: leased with weights {weights}, never published")
        self.check(self.is_on_line(*weights), f"I14: leased with weights {weights} of a dead line")
        for lease in event.leases:
            group = self._move(lease.uid, RUNNING, PENDING)
            self.check(lease.attempt > group.attempt, f"I6: attempt {lease.attempt} again")
            group.attempt, group.worker = lease.attempt, event.worker_id
            if self.rules.basis != "fed":
                made = [event.weights.version, *map(min, group.drafts.values())]
                group.base = min(group.base or made[0] + 1, min(made) + 1)
        working = self.counts[RUNNING] + self.counts[FINISHED]
        self.check(working <= self.target, f"I5: {working} running and finished of {self.target}")

    def _on_leases_ended(self, event: journal_pb2.LeasesEnded) -> None:
        for ended in event.leases:
            group = self._move(ended.lease.uid, PENDING, RUNNING)
            self._check_holder(group, event.worker_id, ended.lease.attempt)
            self._to_pending(group)
            if ended.end == pb.LEASE_END_FAILED:
                group.reported_failures += 1
                group.drafts.clear()
            group.expiries += ended.end == pb.LEASE_END_EXPIRED

    def _check_holder(self, group: Group, worker: str, attempt: int) -> None:
        self.check(
            (group.worker, group.attempt) == (worker, attempt),
            f"I6: {group.uid} is held by {group.worker} as {group.attempt}, not {worker} {attempt}",
        )

    def _on_sessions_completed(self, event: journal_pb2.SessionsCompleted) -> None:
        self.check(event.store_incarnation == self.store, "I8: rows of another life of the store")
        for item in event.sessions:
            group, record = self.groups[item.lease.uid], item.record
            self.check(group.state == RUNNING, f"I6: {group.uid} completed while {group.state}")
            self._check_holder(group, event.worker_id, item.lease.attempt)
            self.check(record.session not in group.sessions, f"I8: {group.uid} has a session twice")
            self.check(
                record.attempt == group.attempt, f"I6: {group.uid} recorded as {record.attempt}"
            )
            key = f"{group.uid}_{record.session}_0_{record.lineage}a{record.attempt}"
            group.sessions[record.session] = Session(key, record.min_version, record.max_version)
            group.incarnation = event.store_incarnation
            draft = group.drafts.pop(record.session, [])
            self.check(
                record.token_count >= len(draft)
                and record.min_version <= min(draft, default=2**62),
                f"I6: session {record.session} of {group.uid} does not go on with what there was",
            )
        for uid in dict.fromkeys(item.lease.uid for item in event.sessions):
            group = self.groups[uid]
            if len(group.sessions) == self.rules.n:
                self._move(uid, FINISHED, RUNNING)
                group.worker = ""
                group.base = self.base_of(group)

    def _on_tokens_reported(self, event: journal_pb2.TokensReported) -> None:
        for progress in event.progress:
            group = self.groups[progress.lease.uid]
            self.check(group.state == RUNNING, f"I6: {group.uid} reported while {group.state}")
            self._check_holder(group, event.worker_id, progress.lease.attempt)
            self.check(
                progress.lineage == self.lineage, f"I6: {group.uid} reported for {progress.lineage}"
            )
            for draft in progress.drafts:
                self._grow(group, draft)

    def _grow(self, group: Group, draft: prompt_pb2.Draft) -> None:
        known = group.drafts.setdefault(draft.session, [])
        what = f"session {draft.session} of {group.uid}"
        self.check(draft.session not in group.sessions, f"I8: {what} is recorded and under way")
        self.check(draft.offset == len(known), f"I6: {what} has {len(known)} tokens, then others")
        for span in draft.weight_spans:
            weights = (span.lineage, span.version)
            lives = weights in self.weights and self.is_on_line(*weights)
            self.check(lives, f"I14: {what} is made by weights {weights} of a dead line")
            self.check(span.begin == len(known), f"I6: {what} has tokens by no weights")
            known += [span.version] * (span.end - span.begin)
        if self.rules.basis != "fed":
            self.check(
                min(known, default=0) + 1 >= group.base, f"I7: {what} is older than its base"
            )

    def _on_drafts_dropped(self, event: journal_pb2.DraftsDropped) -> None:
        for uid, session in zip(event.uids, event.sessions, strict=True):
            group = self._move(uid, PENDING, PENDING)
            draft = group.drafts.pop(session, [])
            self.check(bool(draft), f"I6: {uid} has no draft of session {session} to drop")
            if event.reason == "stale" and draft and self.rules.drops:
                span = event.step - min(draft)
                most = self.rules.threshold or 0
                self.check(span > most, f"I7: a draft of {uid} is dropped at span {span}")

    def _on_sessions_forgotten(self, event: journal_pb2.SessionsForgotten) -> None:
        for uid in event.uids:
            self._forget(self._move(uid, PENDING, PENDING))

    def _on_groups_dropped(self, event: journal_pb2.GroupsDropped) -> None:
        reason = event.reason
        stale = reason in (prompt_pb2.DROP_REASON_STALE, prompt_pb2.DROP_REASON_STALE_AT_RESTORE)
        if stale:
            self.check(len(event.spans) == len(event.uids), "I7: a drop without its span")
        for index, uid in enumerate(event.uids):
            group = self.groups[uid]
            if stale:
                span = event.step - group.base + 1 if group.base else 0
                self.check(span == event.spans[index], f"I7: {uid} has span {span}")
                self.check(
                    span > (self.rules.threshold or 0), f"I7: {uid} is dropped at span {span}"
                )
                self.check(event.step == self.committed + 1, "I7: judged at another step")
            if reason == prompt_pb2.DROP_REASON_FAILED:
                tried = (
                    group.reported_failures >= self.rules.max_failures
                    or group.expiries >= self.rules.max_expiries
                )
                self.check(tried, f"I13: {uid} is dropped as failed, and never failed so often")
            if reason == prompt_pb2.DROP_REASON_CANCELLED:
                asked = group.state in (PENDING, RUNNING, FAILED)
                self.check(asked, f"I1: {uid} is cancelled, and was {group.state}")
            if group.state == SAMPLED:
                for part in self.parts or ():
                    if uid in part:
                        part.remove(uid)
            self._move(uid, DROPPED, *LIVE)
            group.worker = ""
            group.reason = prompt_pb2.DropReason.Name(reason).removeprefix("DROP_REASON_").lower()

    def _on_groups_failed(self, event: journal_pb2.GroupsFailed) -> None:
        for uid in event.uids:
            self._move(uid, FAILED, PENDING)

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

    def _on_store_registered(self, event: journal_pb2.StoreRegistered) -> None:
        changed = event.store_incarnation != self.store
        self.store = event.store_incarnation
        if not changed:
            return
        self.snapshot_id = ""
        for group in self.groups.values():
            if group.sessions and group.state in (PENDING, RUNNING, FINISHED, FAILED):
                if group.state in (RUNNING, FINISHED):
                    self._move(group.uid, PENDING, RUNNING, FINISHED)
                    self._to_pending(group)
                self._forget(group)

    def _on_circuit_opened(self, event: journal_pb2.CircuitOpened) -> None:
        self.circuit_open = True

    def _on_circuit_closed(self, event: journal_pb2.CircuitClosed) -> None:
        self.circuit_open = False
        for group in [group for group in self.groups.values() if group.state == FAILED]:
            self._move(group.uid, PENDING, FAILED)

    def _on_worker_ejected(self, event: journal_pb2.WorkerEjected) -> None:
        pass

    def _on_run_ended(self, event: journal_pb2.RunEnded) -> None:
        self.check(event.cause in ("steps_done", "data_ended"), "I11: it ended for no reason")
        if event.cause == "steps_done":
            self.check(self.committed >= self.total_steps, "I4: it ended before its last step")
        else:
            self.check(self.cursor >= self.ordinal_count, "I4: it ended before its data")
        self.ended = event.cause

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

    def _on_rows_lost(self, event: journal_pb2.RowsLost) -> None:
        for uid, session in zip(event.uids, event.sessions, strict=True):
            group = self._move(uid, PENDING, PENDING, FINISHED)
            group.sessions.pop(session)
            self._to_pending(group)


_HANDLERS: Mapping[str, Callable[[Model, Any], None]] = {
    name.removeprefix("_on_"): handler
    for name, handler in vars(Model).items()
    if name.startswith("_on_")
}
