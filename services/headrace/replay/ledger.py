"""The ledger: where every prompt is. A pure, deterministic state machine.

It knows no gRPC, no disk and no clock. Rules (feeding, leasing, sampling, circuit) read it,
decide, and `emit` events; `apply` is the only place where state changes, so that the same events
always give the same state:

    RegisterPrompts   LeasePrompts     all n sessions settled     SampleBatch(s)      CommitStep(s)
    ─────────────► PENDING ───────► RUNNING ───────────► FINISHED ───────────► SAMPLED ────────► TRAINED
                    ▲  ▲               │                                          │
                    │  └───────────────┘ lease ended, expired, rows lost          ├─► FINISHED  new trainer
                    └─────────────── FAILED  failures used up                     └─► PENDING   unreadable
    any live state ─► DROPPED(reason)

The balance rule: fed = pending + running + finished + failed + sampled + trained + Σ dropped.
"""

from __future__ import annotations

from collections import Counter

from headrace.replay import circuit_events, draft, draft_events, timeline_events
from headrace.replay.events import Event, name_of, to_record
from headrace.replay.group import (
    DROPPED,
    FINISHED,
    PENDING,
    RUNNING,
    SAMPLED,
    TRAINED,
    Group,
)
from headrace.replay.groups import GroupTable
from headrace.replay.progress import Circuit, CommitMemo, Feed, OpenStep
from headrace.replay.window import Window
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import prompt_pb2, replay_pb2, resume_pb2

OPEN = resume_pb2.RESUME_PHASE_OPEN
HAND_FED_ORDINAL = 2**40
"""Ordinals of rows that came in by hand begin here, beyond every feed."""


class Ledger:
    """The state of a run, and the events that have not been written yet."""

    def __init__(self, opened: journal.RunOpened) -> None:
        self.run_id = opened.run_id
        self.lineages = [resume_pb2.Lineage(id=opened.lineage)]
        """The time lines up to the current one, oldest first."""
        self.n = opened.n
        self.batch_size = opened.train_batch_size
        self.basis = opened.basis
        self.groups = GroupTable(opened.n)
        self.position = 0
        self.feed = Feed()
        self.committed_step = 0
        self.open_step: OpenStep | None = None
        self.last_commit = CommitMemo()
        self.trainer_id = ""
        self.trainer_incarnation = 0
        self.former_trainers: set[str] = set()
        self.weights: dict[tuple[str, int], prompt_pb2.PublishedWeights] = {}
        self.latest_weights: prompt_pb2.PublishedWeights | None = None
        self.store_incarnation = ""
        self.store_capacity = 0
        self.cursor = 0
        """The next ordinal of the feed."""
        self.source_state = ""
        self.hand_fed: dict[str, journal.HandFed] = {}
        self.paused = False
        self.credit = 0
        self.credit_answers: dict[str, int] = {}
        self.circuit = Circuit()
        self.filtered_in_step = 0
        self.regenerated: Counter[str] = Counter()
        self.ended_by = ""
        self.resume: resume_pb2.ResumeState | None = None
        """The resume under way, or the last one."""
        self.snapshot: resume_pb2.SnapshotState | None = None
        """The snapshot under way."""
        self.ended_snapshot = ""
        """The last snapshot that ended."""
        self.given_up: dict[int, str] = {}
        """Snapshots that were given up, by step, as far as checkpoints are kept."""
        self.saved_step = 0
        """The step of the newest checkpoint of this time line; 0 = there is none."""
        self._outbox: list[journal.JournalRecord] = []
        self.emit(opened)

    # -- events ------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Apply an event and put it into the outbox."""
        record = to_record(event, self.position + 1)
        self.apply(record)
        self._outbox.append(record)

    def take_events(self) -> list[journal.JournalRecord]:
        """Hand over the events that are to be written."""
        taken, self._outbox = self._outbox, []
        return taken

    def apply(self, record: journal.JournalRecord) -> None:
        """Change the state by one event. Raises ValueError for a gap in positions."""
        if record.position != self.position + 1:
            msg = f"journal position {record.position} follows {self.position}"
            raise ValueError(msg)
        self.position = record.position
        name = name_of(record)
        event = getattr(record, name)
        for module in (circuit_events, draft_events, timeline_events):
            if name in module.HANDLERS:
                module.HANDLERS[name](self, event)
                break
        else:
            getattr(self, f"_on_{name}")(event)

    # -- derived -----------------------------------------------------------------------------

    @property
    def lineage(self) -> str:
        """The current time line."""
        return self.lineages[-1].id

    @property
    def is_resuming(self) -> bool:
        """Whether a resume holds leasing and sampling back."""
        return self.resume is not None and self.resume.phase != OPEN

    @property
    def is_fresh(self) -> bool:
        """Whether there is nothing to go on from: no trainer has ever published weights.

        A resume that has begun and has brought nothing yet does not change that.
        """
        return not self.weights and not self.committed_step and len(self.lineages) == 1

    @property
    def current_step(self) -> int:
        """The step that is being worked on: the last committed + 1."""
        return self.committed_step + 1

    @property
    def hand_fed_count(self) -> int:
        """Rows that came in by hand."""
        return sum(fed.count for fed in self.hand_fed.values())

    @property
    def feed_is_over(self) -> bool:
        """Whether every ordinal of the run is registered."""
        return self.feed.total_steps > 0 and self.cursor >= self.feed.ordinal_count

    @property
    def live_count(self) -> int:
        """PENDING + RUNNING + FINISHED."""
        counts = self.groups.counts
        return counts[PENDING] + counts[RUNNING] + counts[FINISHED]

    def window(self, size: int) -> Window:
        """Look at the window; `size` = floor(W x B)."""
        counts = self.groups.counts
        return Window(
            size=size,
            open_count=self.open_step.open_count if self.open_step else 0,
            remaining=self.feed.total_steps * self.batch_size - counts[TRAINED] - counts[SAMPLED],
            occupancy=self.live_count,
            credit=self.credit,
        )

    # -- the changes, one per event -------------------------------------------------------------

    def touch(self, group: Group) -> None:
        """Note that the current event concerns the group."""
        group.history.append(self.position)

    def _on_run_opened(self, event: journal.RunOpened) -> None:
        pass

    def _on_feed_opened(self, event: journal.FeedOpened) -> None:
        self.feed = Feed(event.row_count, event.ordinal_count, event.total_steps, event.fingerprint)

    def _on_prompts_registered(self, event: journal.PromptsRegistered) -> None:
        wanted = 0
        for offset, prompt in enumerate(event.prompts):
            self._register(prompt, event.first_ordinal + offset)
            wanted += prompt.drop_reason == prompt_pb2.DROP_REASON_UNSPECIFIED
        self.cursor += len(event.prompts)
        self.source_state = event.source_state
        self.credit = max(0, self.credit - max(0, wanted - event.own_demand))
        if self.resume and self.is_resuming:
            self.resume.topped_up_count += wanted
        if self.circuit.is_open:
            self.circuit.fed_count += wanted

    def _on_rows_registered(self, event: journal.RowsRegistered) -> None:
        first = HAND_FED_ORDINAL + self.hand_fed_count
        for offset, prompt in enumerate(event.prompts):
            self._register(prompt, first + offset)
        fed = journal.HandFed(call=event.call, count=len(event.prompts))
        self.hand_fed[event.request_id] = fed

    def _register(self, prompt: replay_pb2.NewPrompt, ordinal: int) -> None:
        dropped = prompt.drop_reason != prompt_pb2.DROP_REASON_UNSPECIFIED
        group = Group(
            uid=prompt.uid,
            ordinal=ordinal,
            payload=prompt.payload,
            state=DROPPED if dropped else PENDING,
            drop_reason=prompt.drop_reason,
            fed_step=self.current_step,
            base=self.current_step if self.basis == "fed" and not dropped else 0,
        )
        self.groups.add(group)
        self.touch(group)

    def _on_prompts_leased(self, event: journal.PromptsLeased) -> None:
        for lease in event.leases:
            with self.groups.changing(self.groups[lease.uid]) as group:
                group.state = RUNNING
                group.attempt = lease.attempt
                group.worker_id = event.worker_id
                if self.basis != "fed":
                    made = [event.weights.version, *map(draft.oldest, group.drafts.values())]
                    bases = [version + 1 for version in made]
                    group.base = min(group.base or bases[0], *bases)
                self.touch(group)

    def _on_leases_ended(self, event: journal.LeasesEnded) -> None:
        for ended in event.leases:
            with self.groups.changing(self.groups[ended.lease.uid]) as group:
                self.to_pending(group)
                if ended.end == replay_pb2.LEASE_END_EXPIRED:
                    group.expiries += 1
                elif ended.end == replay_pb2.LEASE_END_FAILED:
                    group.drafts.clear()  # They may be what fails.
                    # While the circuit is open nobody knows whose fault it is; its closing says.
                    group.failures += not (
                        self.circuit.is_open or event.worker_id in self.circuit.ejected
                    )
                    group.last_error = ended.error
                self.touch(group)
            if ended.end == replay_pb2.LEASE_END_FAILED:
                streak = self.circuit.streaks.setdefault(event.worker_id, Counter())
                streak[ended.lease.uid] += 1
            cause = replay_pb2.LeaseEnd.Name(ended.end).removeprefix("LEASE_END_").lower()
            self.regenerated[cause] += 1

    def _on_sessions_completed(self, event: journal.SessionsCompleted) -> None:
        records: dict[str, list[prompt_pb2.SessionRecord]] = {}
        for item in event.sessions:
            records.setdefault(item.lease.uid, []).append(item.record)
        for uid, settled in records.items():
            with self.groups.changing(self.groups[uid]) as group:
                group.sessions.update((record.session, record) for record in settled)
                group.store_incarnation = event.store_incarnation
                for record in settled:
                    group.drafts.pop(record.session, None)
                if len(group.sessions) == self.n:
                    group.state = FINISHED
                    group.worker_id = ""
                    group.base = self.base_of(group)
                self.touch(group)
        if self.circuit.is_open:
            return  # Its closing says who is to blame.
        streak = self.circuit.streaks.pop(event.worker_id, None)
        if event.worker_id in self.circuit.ejected:
            # It can do other prompts after all: once more, those it failed at are to blame.
            self.circuit.ejected.discard(event.worker_id)
            circuit_events.blame(self, streak or ())

    def _on_sessions_forgotten(self, event: journal.SessionsForgotten) -> None:
        for uid in event.uids:
            with self.groups.changing(self.groups[uid]) as group:
                self.forget_sessions(group)
                self.touch(group)

    def _on_groups_dropped(self, event: journal.GroupsDropped) -> None:
        for uid in event.uids:
            with self.groups.changing(self.groups[uid]) as group:
                if group.state == SAMPLED and self.open_step:
                    self._leave_part(uid)
                group.state = DROPPED
                group.drop_reason = event.reason
                group.worker_id = ""
                self.touch(group)
        if event.reason == prompt_pb2.DROP_REASON_FILTERED:
            self.filtered_in_step += len(event.uids)
        if event.reason == prompt_pb2.DROP_REASON_STALE_AT_RESTORE and self.resume:
            self.resume.dropped_count += len(event.uids)
        if (
            event.reason == prompt_pb2.DROP_REASON_STALE
            and self.position == self.last_commit.position + 1
        ):
            self.last_commit.stale = len(event.uids)

    def _on_trainer_registered(self, event: journal.TrainerRegistered) -> None:
        if self.trainer_id:
            self.former_trainers.add(self.trainer_id)
        self.trainer_id = event.trainer_id
        self.trainer_incarnation = event.incarnation
        timeline_events.give_up_snapshot(self)
        self.open_step = None
        for sampled in list(self.groups.sampled.values()):
            with self.groups.changing(sampled) as group:
                group.step = 0
                group.state = FINISHED
                if group.store_incarnation != self.store_incarnation:
                    self.to_pending(group)
                    self.forget_sessions(group)
                    self.regenerated["store_lost"] += 1
                self.touch(group)

    def _on_weights_published(self, event: journal.WeightsPublished) -> None:
        weights = prompt_pb2.PublishedWeights()
        weights.CopyFrom(event.weights)
        self.weights[weights.id.lineage, weights.id.version] = weights
        self.latest_weights = weights

    def _on_step_opened(self, event: journal.StepOpened) -> None:
        parts: list[list[str]] = [[] for _ in range(event.part_count)]
        self.open_step = OpenStep(event.step, event.group_count, parts)

    def _on_batch_sampled(self, event: journal.BatchSampled) -> None:
        assert self.open_step
        self.open_step.parts[event.part].extend(event.uids)
        for uid in event.uids:
            with self.groups.changing(self.groups[uid]) as group:
                group.state = SAMPLED
                group.step = event.step
                self.touch(group)

    def _on_groups_returned(self, event: journal.GroupsReturned) -> None:
        for uid in event.uids:
            self._leave_part(uid)
            with self.groups.changing(self.groups[uid]) as group:
                group.step = 0
                group.last_error = event.error
                self.to_pending(group)
                self.forget_sessions(group)
                self.touch(group)
        self.regenerated["store_lost"] += len(event.uids)

    def _on_step_committed(self, event: journal.StepCommitted) -> None:
        trained = list(self.groups.sampled.values())
        for sampled in trained:
            with self.groups.changing(sampled) as group:
                group.state = TRAINED
                group.lineage = event.lineage
                self.touch(group)
        self.committed_step = event.step
        self.open_step = None
        self.filtered_in_step = 0
        self.last_commit = CommitMemo(event.step, len(trained), position=self.position)

    def _on_store_registered(self, event: journal.StoreRegistered) -> None:
        changed = event.store_incarnation != self.store_incarnation
        self.store_incarnation = event.store_incarnation
        self.store_capacity = event.capacity_bytes
        if not changed:
            return
        timeline_events.give_up_snapshot(self)
        for live in [group for group in self.groups.live() if group.sessions]:
            with self.groups.changing(live) as group:
                if group.state in (RUNNING, FINISHED):
                    self.regenerated["store_lost"] += 1
                    self.to_pending(group)
                self.forget_sessions(group)
                self.touch(group)

    def _on_credit_added(self, event: journal.CreditAdded) -> None:
        self.credit += event.count
        self.credit_answers[event.request_id] = self.credit

    def _on_run_paused(self, event: journal.RunPaused) -> None:
        self.paused = True

    def _on_run_resumed(self, event: journal.RunResumed) -> None:
        self.paused = False

    def _on_run_ended(self, event: journal.RunEnded) -> None:
        self.ended_by = event.cause

    # -- shared steps --------------------------------------------------------------------------

    def to_pending(self, group: Group) -> None:
        """Take the group out of whatever hands it is in; its sessions stay."""
        group.state = PENDING
        group.worker_id = ""
        if self.basis != "fed":
            group.base = self.base_of(group)

    def forget_sessions(self, group: Group) -> None:
        """Have all of the group's sessions generated again."""
        group.sessions.clear()
        if self.basis != "fed" and group.state != RUNNING:
            group.base = 0

    def base_of(self, group: Group) -> int:
        """Give the step its span counts from. `generated`: the step after the oldest weights that made a token; `fed`: unchanged."""
        if self.basis == "fed":
            return group.base
        versions = [record.min_version for record in group.sessions.values()]
        return min(versions) + 1 if versions else 0

    def _leave_part(self, uid: str) -> None:
        assert self.open_step
        for part in self.open_step.parts:
            if uid in part:
                part.remove(uid)
