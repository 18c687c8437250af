"""The ledger: where every prompt is. A pure, deterministic state machine.

It knows no gRPC, no disk and no clock. Rules (feeding, leasing, sampling, circuit) read it,
decide, and `emit` events; `apply` is the only place where state changes, so that the same events
always give the same state. What each event changes is told in the modules named `…_events`:

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
from collections.abc import Callable, Mapping
from typing import Any

from headrace.replay import (
    circuit_events,
    draft_events,
    group_events,
    run_events,
    step_events,
    timeline_events,
)
from headrace.replay.events import Event, name_of, to_record
from headrace.replay.group import FINISHED, PENDING, RUNNING, SAMPLED, TRAINED, Group
from headrace.replay.groups import GroupTable
from headrace.replay.progress import Circuit, CommitMemo, Feed, OpenStep
from headrace.replay.window import Window
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import prompt_pb2, resume_pb2

OPEN = resume_pb2.RESUME_PHASE_OPEN

HANDLERS: Mapping[str, Callable[[Ledger, Any], None]] = {
    **run_events.HANDLERS,
    **group_events.HANDLERS,
    **draft_events.HANDLERS,
    **circuit_events.HANDLERS,
    **step_events.HANDLERS,
    **timeline_events.HANDLERS,
}
"""What changes the state, by the event's name."""


class Ledger:
    """The state of a run, and the events that have not been written yet."""

    def __init__(self, opened: journal.RunOpened) -> None:
        self.run_id = opened.run_id
        self.lineages = [resume_pb2.Lineage(id=opened.lineage)]
        """The time lines up to the current one, oldest first."""
        self.n = opened.n
        self.batch_size = opened.train_batch_size
        self.basis = opened.basis
        self.temperature = opened.temperature
        """0 if the run was begun by a version that did not write it down."""
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
        """Change the state by one event.

        Raises:
            ValueError: it leaves a gap in positions.
            KeyError: it is of a kind that has no handler.

        """
        if record.position != self.position + 1:
            msg = f"journal position {record.position} follows {self.position}"
            raise ValueError(msg)
        self.position = record.position
        name = name_of(record)
        HANDLERS[name](self, getattr(record, name))

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

    # -- what several events do to a group -----------------------------------------------------

    def touch(self, group: Group) -> None:
        """Note that the current event concerns the group."""
        group.history.append(self.position)

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
