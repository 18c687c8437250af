"""The judge's own idea of snapshots, resumes and time lines; a part of `judge_model.Model`.

line     a time line began wrongly: not all that was trained later is live again, something of a
         dead line was kept, or what could be kept was not
resume   a resume skipped a phase, or something went on that has to wait for its end
cut      a snapshot of the wrong step, or in the middle of something
"""

from __future__ import annotations

from copy import deepcopy
from itertools import chain
from typing import TYPE_CHECKING, Any

from judge_drafts import tokens_of
from judge_prompts import Prompts
from judge_rules import (
    DROPPED,
    FAILED,
    FINISHED,
    PENDING,
    RUNNING,
    SAMPLED,
    TRAINED,
    WINDOW,
    Prompt,
)

from headrace.v1 import journal_pb2, prompt_pb2, resume_pb2

if TYPE_CHECKING:
    from judge_circuit import Circuit
    from judge_rules import Rules

STORE = resume_pb2.RESUME_PHASE_STORE
LEDGER = resume_pb2.RESUME_PHASE_LEDGER
WEIGHTS = resume_pb2.RESUME_PHASE_WEIGHTS
REISSUE = resume_pb2.RESUME_PHASE_REISSUE
WARMUP = resume_pb2.RESUME_PHASE_WARMUP
OPEN = resume_pb2.RESUME_PHASE_OPEN
WAITING = frozenset({"prompts_leased", "step_opened", "batch_sampled", "step_committed"})
"""What waits for the end of a resume."""


class Timeline:
    """Which line the run is on, and how it came there."""

    if TYPE_CHECKING:
        rules: Rules
        prompts: Prompts
        lineage: str
        store: str
        incarnation: int
        opened: tuple[int, int, int] | None
        parts: dict[tuple[int, int], list[str]]
        trained: dict[int, list[str]]
        ended: str
        circuit: Circuit
        _returned: int

        @property
        def target(self) -> int: ...
        @property
        def step(self) -> int: ...

        def say(self, kind: str, what: str) -> None: ...
        def base(self, prompt: Prompt) -> int: ...
        def _find(self, uid: str) -> Prompt: ...
        def cut_drafts(self, fork: int, *, kept: bool) -> None: ...
        def _move(self, uid: str, to: str, *sources: str, reason: str = "") -> Prompt: ...

    def begin_timeline(self) -> None:
        self.ends: dict[str, int] = {}
        """The last step of each line that was left, of the living line's ancestors."""
        self.line_of: dict[int, str] = {}
        """The line that a trainer works on, by incarnation."""
        self.line_of_step: dict[int, str] = {}
        """The line that trained each step of the living one."""
        self.trained_in: dict[tuple[str, int], list[str]] = {}
        """All that was ever trained, by line and step, dead ones too."""
        self.published: dict[tuple[str, int], str] = {}
        """Checksums of all weights ever published."""
        self.phase = OPEN
        self.resume: tuple[str, int] = ("", 0)
        """The resume under way: its id and step."""
        self.has_line = False
        self.cut: tuple[str, int, dict[str, dict[int, prompt_pb2.SessionRecord]]] | None = None
        """The snapshot under way: its id, its step, the sessions."""
        self.saved: dict[int, dict[str, dict[int, prompt_pb2.SessionRecord]]] = {}
        """Sessions of live prompts in each checkpoint."""
        self.covered = 0
        self.was_restored = False

    def lives(self, lineage: str, version: int) -> bool:
        """Whether weights are of the living line, or of an ancestor up to its fork."""
        return lineage == self.lineage or version <= self.ends.get(lineage, -1)

    def _check_gates(self, name: str) -> None:
        if self.phase != OPEN and name in WAITING:
            self.say("resume", f"{name} in {resume_pb2.ResumePhase.Name(self.phase)}")

    # -- snapshots

    def _snapshot_begun(self, event: journal_pb2.SnapshotBegun) -> None:
        if event.step != self.step - 1 or event.step < 1 or event.lineage != self.lineage:
            self.say("cut", f"of {event.lineage} step {event.step} at step {self.step}")
        if self.phase != OPEN:
            self.say("cut", "in the middle of a resume")
        there = len(self.prompts) < self.rules.rows * self.rules.epochs
        if self.opened and (there or self.prompts.count(*WINDOW) >= self.rules.batch):
            self.say("cut", "in the middle of a step")
        sessions = {
            prompt.uid: dict(prompt.sessions) for prompt in self.prompts.of(*WINDOW, SAMPLED)
        }
        self.cut = (event.snapshot_id, event.step, deepcopy(sessions))

    def _snapshot_ended(self, event: journal_pb2.SnapshotEnded) -> None:
        if self.cut is None or self.cut[:2] != (event.snapshot_id, event.step):
            self.say("cut", f"{event.snapshot_id} of step {event.step} ended, and never began")
        elif event.committed:
            if not event.oldest_step <= event.step:
                self.say("cut", f"covers {event.oldest_step}, of step {event.step}")
            self.saved[event.step] = self.cut[2]
            self.covered = max(self.covered, event.oldest_step)
        self.cut = None

    # -- resumes

    def _resume_begun(self, event: journal_pb2.ResumeBegun) -> None:
        if event.trainer_incarnation != self.incarnation:
            self.say("fence", f"a resume for trainer {event.trainer_incarnation}")
        if event.resume_id == self.resume[0]:
            self.say("resume", f"{event.resume_id} began twice")
        self.resume, self.phase = (event.resume_id, event.step), resume_pb2.RESUME_PHASE_PLAN
        self.has_line, self.cut = False, None

    def _resume_advanced(self, event: journal_pb2.ResumeAdvanced) -> None:
        name = resume_pb2.ResumePhase.Name(event.phase)
        if event.resume_id != self.resume[0] or event.phase != self.phase + 1:
            before = resume_pb2.ResumePhase.Name(self.phase)
            self.say("resume", f"{event.resume_id} came to {name} after {before}")
        if event.phase == WEIGHTS and not self.has_line:
            self.say("resume", f"came to {name} on the line that was left")
        if event.phase == REISSUE and (self.lineage, self.resume[1]) not in self.published:
            self.say("resume", f"came to {name} without weights")
        if event.phase == WARMUP:
            self._check_usable()
        if event.phase == OPEN:
            left = self.rules.rows * self.rules.epochs - len(self.prompts)
            lacking = min(left, self.target - self.prompts.count(*WINDOW))
            if lacking > 0 and not self.circuit.cause:
                self.say("window", f"open, and {lacking} prompts are lacking")
        self.phase = event.phase

    def _check_usable(self) -> None:
        """Nothing that cannot be used at the resumed step holds a slot of the window."""
        most = self.rules.threshold
        for prompt in self.prompts.of(*WINDOW):
            base = self.base(prompt)
            dated = self.rules.strategy == "drop" and most is not None and base
            if dated and self.step - base + 1 > (most or 0):
                self.say("stale", f"{prompt.uid} is past the threshold, and the window fills up")
        if self.prompts.of(FAILED) and not self.circuit.cause:
            self.say("window", "failed prompts are there, and the window fills up")

    def _ledger_emptied(self, event: journal_pb2.LedgerEmptied) -> None:
        """Leave everything behind but who was there, and what was ever trained and published."""
        if (event.resume_id, 0) != self.resume or self.phase != LEDGER or self.has_line:
            self.say("line", f"{event.resume_id} leaves all behind, in resume {self.resume}")
        if event.committed_step != self.step - 1:
            self.say("line", f"step {event.committed_step} is left behind at step {self.step}")
        if event.counts.fed != len(self.prompts):
            self.say("line", f"{event.counts.fed} prompts left behind of {len(self.prompts)}")
        self.prompts, self.trained, self.parts, self.opened = Prompts(), {}, {}, None
        self.line_of_step, self.saved, self.covered = {}, {}, 0
        self.circuit, self.ended, self.cut = type(self.circuit)(self.rules), "", None

    def _lineage_opened(self, event: journal_pb2.LineageOpened) -> None:
        line, fork = event.lineage, event.lineage.fork_step
        known = {self.lineage, *self.ends, *(lineage for lineage, _ in self.trained_in)}
        if line.parent != self.lineage or not line.id or line.id in known:
            self.say("line", f"{line.id} of {line.parent} began on {self.lineage}")
        if (event.resume_id, fork) != self.resume or self.has_line or self.phase == OPEN:
            self.say("line", f"{line.id} forks at {fork}, in resume {self.resume}")
        if not self.covered <= fork < self.step:
            self.say("line", f"forks at {fork}, at step {self.step} with {self.covered} covered")
        self.cut_drafts(fork, kept=event.drafts_kept)
        later = set(chain.from_iterable(u for s, u in self.trained.items() if s > fork))
        changed = {group.uid for group in event.groups}
        for uid in later - changed:
            self.say("line", f"{uid} was trained after {fork} and is not live again")
        for prompt in self.prompts.of(RUNNING, SAMPLED):
            if prompt.uid not in changed:
                self.say("line", f"{prompt.uid} stays {prompt.state}")
        for group in event.groups:
            self._reopen(group, fork, event.store_incarnation, untrained=group.uid in later)
        for prompt in self.prompts.of(PENDING, FINISHED):
            if prompt.uid not in changed and prompt.sessions:
                if prompt.store != event.store_incarnation:
                    self.say("line", f"{prompt.uid} keeps rows of store {prompt.store}")
                self._check_kept(prompt.uid, prompt.sessions, fork)
        self.trained = {step: uids for step, uids in self.trained.items() if step <= fork}
        self.line_of_step = {s: line for s, line in self.line_of_step.items() if s <= fork}
        self.saved = {step: cut for step, cut in self.saved.items() if step <= fork}
        self.ends = {lineage: min(end, fork) for lineage, end in self.ends.items()}
        self.ends[self.lineage] = fork
        self.lineage, self.opened, self.ended = line.id, None, ""
        self.line_of[self.incarnation] = line.id
        self.store, self.has_line = event.store_incarnation, True
        self._returned = len(self.prompts)

    def _reopen(
        self, group: journal_pb2.ReopenedGroup, fork: int, store: str, *, untrained: bool
    ) -> None:
        """Look at a group as the new line finds it; take it over."""
        sources = (TRAINED,) if untrained else (*WINDOW, FAILED, SAMPLED)
        there = {record.session: record for record in group.sessions}
        prompt = self._find(group.uid)
        had = prompt.sessions
        if prompt.store != store:
            # A checkpoint that is older than a restored journal is known to the lost one only.
            unknown = there if fork not in self.saved and self.was_restored else {}
            had = self.saved.get(fork, {}).get(group.uid, unknown)
        for session, record in there.items():
            if had.get(session) != record:
                self.say("line", f"{group.uid} has session {session}, which was not there")
        self._check_kept(group.uid, there, fork)
        could = {session for session, record in had.items() if record.max_version <= fork}
        if self.rules.salvage and prompt.store == store and could - there.keys():
            self.say("line", f"{group.uid} lost sessions {could - there.keys()}")
        state = FINISHED if len(there) == self.rules.n else PENDING
        self._move(group.uid, state, *sources)
        prompt.sessions, prompt.store = there, store
        prompt.drafts = {s: made for s, made in prompt.drafts.items() if s not in there}
        if self.rules.basis == "fed":
            prompt.fed_step = min(prompt.fed_step, fork + 1) if there else fork + 1
        if self.base(prompt) != group.base:
            self.say("line", f"{group.uid} counts from {group.base}, not {self.base(prompt)}")

    def _check_kept(self, uid: str, sessions: Any, fork: int) -> None:
        for session, record in sessions.items():
            alive = record.lineage == self.lineage or record.max_version <= self.ends.get(
                record.lineage, -1
            )
            if record.max_version > fork or not alive:
                self.say(
                    "line",
                    f"{uid} keeps session {session} of {record.lineage} v{record.max_version}",
                )

    def _rows_lost(self, event: journal_pb2.RowsLost) -> None:
        for uid, session in zip(event.uids, event.sessions, strict=True):
            prompt = self._move(uid, PENDING, PENDING, FINISHED)
            if prompt.sessions.pop(session, None) is None:
                self.say("line", f"{uid} lost session {session}, which it did not have")

    def _ledger_restored(self, event: journal_pb2.LedgerRestored) -> None:
        """Take the prompts over as the checkpoint has them; those of this journal are forgotten."""
        base = event.base
        if self.trained_in:
            self.say("line", "a ledger was restored over one that has trained")
        if base.run_opened.n != self.rules.n or base.committed_step != self.resume[1]:
            self.say("line", f"a ledger of step {base.committed_step} was restored")
        names = {value: name for name, value in prompt_pb2.PromptState.items()}
        self.prompts = Prompts()
        for stored in sorted(base.groups, key=lambda each: each.group.ordinal):
            seen = stored.group
            state = names[seen.state].removeprefix("PROMPT_STATE_").lower()
            self.prompts.add(
                Prompt(
                    seen.uid,
                    seen.ordinal,
                    # A rollback may have restamped it; only the base says so.
                    (self.rules.basis == "fed" and seen.base) or stored.fed_step,
                    state,
                    prompt_pb2.DropReason.Name(seen.drop_reason)
                    .removeprefix("DROP_REASON_")
                    .lower()
                    if state == DROPPED
                    else "",
                    payload=stored.payload,
                    attempt=seen.attempt,
                    sessions={record.session: record for record in seen.sessions},
                    store=stored.store_incarnation,
                    expiries=seen.expiry_count,
                    drafts={draft.session: list(tokens_of(draft)) for draft in stored.drafts},
                )
            )
            self.circuit.failures[seen.uid] = seen.failure_count
            if state == TRAINED:
                self.trained.setdefault(seen.step, []).append(seen.uid)
                self.trained_in.setdefault((seen.lineage, seen.step), []).append(seen.uid)
                self.line_of_step[seen.step] = seen.lineage
        if len(self.prompts) != base.cursor:
            self.say("line", f"{len(self.prompts)} prompts restored, the cursor is {base.cursor}")
        sessions = {
            prompt.uid: dict(prompt.sessions) for prompt in self.prompts.of(*WINDOW, SAMPLED)
        }
        self.saved[base.committed_step] = sessions
        self.ends = {line.parent: line.fork_step for line in base.lineages[1:]}
        self.lineage = base.lineages[-1].id
        for streak in base.streaks:
            self.circuit.streaks[streak.worker_id] = set(streak.failures)
            self.circuit.ejected |= {streak.worker_id} if streak.ejected else set()
        self.circuit.cause = base.circuit.cause
        for weights in base.weights:
            self.published[weights.id.lineage, weights.id.version] = weights.checksum
        self.was_restored = True
        self._returned = len(self.prompts)
