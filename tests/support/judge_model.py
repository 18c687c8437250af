"""The judge's own idea of a prompt's life: a second, minimal reading of the rules.

It is fed the journal's records one by one and writes down whatever may not happen. It shares no
code with the ledger. Each finding begins with the kind of thing it is:

    ordinal     the feed skipped, repeated or reordered a row
    transition  a prompt went from one state to another that does not follow
    fence       somebody without the current lease, store or time line changed something
    window      more prompts live, or leased, than the window allows
    stale       what is past the threshold was leased or sampled, or what is not was dropped
    order       a batch was not the oldest finished groups
    step        steps out of order, or not complete
    line, resume, cut                                                  see `judge_timeline`
    draft                                                              see `judge_drafts`
    end         something happened after the end, or the circuit was not respected
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from judge_circuit import Circuit
from judge_drafts import Drafts, oldest_of
from judge_prompts import Prompts
from judge_rules import (
    DROPPED,
    FAILED,
    FINISHED,
    PENDING,
    RUNNING,
    SAMPLED,
    SESSION_KEY,
    TRAINED,
    WINDOW,
    HandedOut,
    Prompt,
    Rules,
    reason_name,
)
from judge_timeline import REISSUE, WARMUP, Timeline

from headrace.v1 import journal_pb2, replay_pb2

AFTER_THE_END = frozenset(
    {
        "prompts_registered",
        "weights_published",
        "store_registered",
        "trainer_registered",
        "snapshot_ended",
        "resume_begun",
        "resume_advanced",
        "ledger_emptied",
        "lineage_opened",
    }
)
"""What may still be written then."""


class Model(Drafts, Timeline):
    """Follows a journal."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.found: list[str] = []
        self.prompts = Prompts()
        self.position = 0
        self.steps = rules.steps
        """As the feed was opened last."""
        self.epoch = 0
        self.lineage = ""
        self.counts: list[Counter[str]] = [Counter()]
        """By position: prompts by state, and `dropped:reason`."""
        self.store = ""
        self.incarnation = 0
        self.opened: tuple[int, int, int] | None = None
        """The open step: its number, groups per part, parts."""
        self.parts: dict[tuple[int, int], list[str]] = {}
        self.handed_out: dict[tuple[str, int, int], list[dict[str, HandedOut]]] = {}
        """By line, step and part: what it consisted of, each time that it was complete."""
        self.trained: dict[int, list[str]] = {}
        self.circuit = Circuit(rules)
        self.ended = ""
        self.expired_count = 0
        self.leased_count = 0
        self._excess = 0
        self._returned = 0
        self.begin_timeline()

    def follow(self, records: Iterable[journal_pb2.JournalRecord]) -> None:
        for record in records:
            if record.position != self.position + 1:
                self.say("ordinal", f"journal position {record.position} after {self.position}")
            if record.writer_epoch < self.epoch:
                self.say("fence", f"writer epoch {record.writer_epoch} after {self.epoch}")
            self.position, self.epoch = record.position, record.writer_epoch
            name = str(record.WhichOneof("event"))
            event = getattr(record, name)
            if self.ended and name not in AFTER_THE_END:
                self.say("end", f"{name} after the run's end")
            if self.circuit.owes_closing and name != "circuit_closed":
                self.say("end", f"the circuit is open, prompts were blamed, and {name} follows")
            self._returned = 0
            self._check_gates(name)
            getattr(self, f"_{name}", self._unexpected)(event)
            self._check_window()
            self.counts.append(self.prompts.counts)

    def say(self, kind: str, what: str) -> None:
        self.found.append(f"{kind}: {what} (position {self.position})")

    def _say_if(self, kind: str, who: str, fault: str) -> None:
        if fault:
            self.say(kind, f"{who} {fault}")

    # -- derived

    @property
    def step(self) -> int:
        return max(self.trained, default=0) + 1

    def base(self, prompt: Prompt) -> int:
        """The step that a span counts from; 0 for none."""
        if self.rules.basis == "fed":
            return prompt.fed_step
        versions = [record.min_version for record in prompt.sessions.values()]
        if prompt.state == RUNNING:
            versions += [prompt.lease_version, *oldest_of(prompt)]
        return min(versions) + 1 if versions else 0

    def span(self, prompt: Prompt, step: int) -> int:
        base = self.base(prompt)
        return step - base + 1 if base else 0

    @property
    def target(self) -> int:
        """Design 2.4, from scratch."""
        sampled, trained = self.prompts.count(SAMPLED), self.prompts.count(TRAINED)
        to_sample = self.rules.batch - sampled if self.opened else 0
        to_train = self.steps * self.rules.batch - trained - sampled
        return max(0, min(self.rules.window + to_sample, to_train))

    def _check_window(self) -> None:
        """Live prompts are at most the target; what came back from outside is kept, not refilled."""
        excess = max(0, self.prompts.count(*WINDOW) - self.target)
        if excess > self._excess + self._returned:
            self.say("window", f"{excess} live prompts beyond the target of {self.target}")
        self._excess = excess

    def _find(self, uid: str) -> Prompt:
        if uid not in self.prompts:
            self.say("transition", f"{uid} was never fed")
            self.prompts.add(Prompt(uid, -1, self.step, PENDING))
        return self.prompts[uid]

    def _move(self, uid: str, to: str, *sources: str, reason: str = "") -> Prompt:
        prompt = self._find(uid)
        if prompt.state not in sources:
            self.say("transition", f"{uid} goes from {prompt.state} to {to}")
        self.prompts.move(prompt, to, reason)
        if to != RUNNING:
            prompt.worker = ""
        if to not in (PENDING, RUNNING):
            prompt.drafts.clear()
        return prompt

    # -- the run, its feed, its peers

    def _run_opened(self, event: journal_pb2.RunOpened) -> None:
        if self.position != 1:
            self.say("fence", "the run began twice")
        self.lineage = event.lineage

    def _feed_opened(self, event: journal_pb2.FeedOpened) -> None:
        told = (self.rules.steps, self.rules.first_steps)
        if event.row_count != self.rules.rows or event.total_steps not in told:
            self.say("step", f"{event.row_count} rows and {event.total_steps} steps")
        self.steps = event.total_steps

    def _prompts_registered(self, event: journal_pb2.PromptsRegistered) -> None:
        if event.first_ordinal != len(self.prompts):
            self.say("ordinal", f"{event.first_ordinal} after {len(self.prompts) - 1}")
        for ordinal, new in enumerate(event.prompts, event.first_ordinal):
            if new.uid in self.prompts:
                self.say("ordinal", f"{new.uid} was fed twice")
            if new.uid != self.rules.uid(ordinal):
                self.say("ordinal", f"{ordinal} is {new.uid}, not {self.rules.uid(ordinal)}")
            reason = reason_name(new.drop_reason)
            if not reason and self.rules.text and new.payload.text != self.rules.text(new.uid):
                self.say("ordinal", f"{new.uid} is {new.payload.text!r}")
            if bool(self.ended) != (reason == "surplus"):
                self.say("end", f"{new.uid} registered as {reason or 'usable'}")
            if not reason and self.phase < WARMUP:
                self.say("resume", f"{new.uid} fed before the window is to fill up")
            if not reason and self._excess:
                self.say("window", f"{new.uid} fed while the window is full")
            if not reason:
                fault = self.circuit.feed(probes=self.prompts.count(PENDING, RUNNING))
                self._say_if("window", f"{new.uid} fed", fault)
            state = DROPPED if reason else PENDING
            self.prompts.add(
                Prompt(new.uid, ordinal, self.step, state, reason, payload=new.payload)
            )

    def _trainer_registered(self, event: journal_pb2.TrainerRegistered) -> None:
        if self.incarnation and event.incarnation != self.incarnation + 1:
            self.say("fence", f"trainer {event.incarnation} after {self.incarnation}")
        if self.opened:  # What was fed for it stays.
            self._returned += self.rules.batch - self.prompts.count(SAMPLED)
        self.incarnation, self.opened, self.cut = event.incarnation, None, None
        self.line_of[event.incarnation] = self.lineage
        for prompt in self.prompts.of(SAMPLED):
            kept = prompt.store == self.store
            self._move(prompt.uid, FINISHED if kept else PENDING, SAMPLED)
            if not kept:
                prompt.sessions.clear()
            self._returned += 1

    def _weights_published(self, event: journal_pb2.WeightsPublished) -> None:
        weights = event.weights
        versions = [v for lineage, v in self.published if lineage == self.lineage]
        if weights.id.lineage != self.lineage or weights.id.version in versions:
            self.say("fence", f"weights {weights.id.lineage} v{weights.id.version}")
        first = max(self.ends.values(), default=0)
        if not max(versions, default=first - 1) < weights.id.version < self.step:
            self.say("step", f"weights v{weights.id.version} before step {self.step}")
        self.published[weights.id.lineage, weights.id.version] = weights.checksum

    def _store_registered(self, event: journal_pb2.StoreRegistered) -> None:
        if event.store_incarnation == self.store:
            return
        self.store, self.cut = event.store_incarnation, None
        for prompt in self.prompts.of(PENDING, RUNNING, FINISHED, FAILED):
            if prompt.sessions and prompt.state in (RUNNING, FINISHED):
                self._move(prompt.uid, PENDING, RUNNING, FINISHED)
            prompt.sessions.clear()

    # -- generation

    def _prompts_leased(self, event: journal_pb2.PromptsLeased) -> None:
        version, step, threshold = event.weights.version, self.step, self.rules.threshold
        line = event.weights.lineage
        if not self.lives(line, version) or (line, version) not in self.published:
            self.say("fence", f"leased with {line} v{version}")
        dated = self.rules.strategy == "drop" and threshold is not None
        if dated and version < step - (threshold or 0):
            self.say("stale", f"leased with v{version} for step {step}")
        if self.rules.sync and version != step - 1:
            self.say("stale", f"leased with v{version} for step {step} in sync mode")
        for lease in event.leases:
            prompt = self._move(lease.uid, RUNNING, PENDING)
            if lease.attempt != prompt.attempt + 1:
                self.say("fence", f"{lease.uid}: attempt {lease.attempt} after {prompt.attempt}")
            prompt.attempt, prompt.worker = lease.attempt, event.worker_id
            prompt.lease_version = version
            made = [record.min_version for record in prompt.sessions.values()]
            prompt.lease_oldest = min([version, *oldest_of(prompt), *made])
            self.check_none_is_past(prompt)
        self.leased_count += len(event.leases)
        if self.prompts.count(RUNNING, FINISHED) > self.target:
            self.say("window", f"running + finished are more than {self.target} after a lease")
        held = sum(prompt.worker == event.worker_id for prompt in self.prompts.of(RUNNING))
        self._say_if("end", event.worker_id, self.circuit.lease(event.worker_id, held))

    def _check_lease(self, uid: str, attempt: int, worker: str) -> None:
        prompt = self._find(uid)
        if (prompt.state, prompt.attempt, prompt.worker) != (RUNNING, attempt, worker):
            self.say("fence", f"{worker} does not hold attempt {attempt} of {uid}")

    def _leases_ended(self, event: journal_pb2.LeasesEnded) -> None:
        for ended in event.leases:
            self._check_lease(ended.lease.uid, ended.lease.attempt, event.worker_id)
            prompt = self._move(ended.lease.uid, PENDING, RUNNING)
            expired = ended.end == replay_pb2.LEASE_END_EXPIRED
            prompt.expiries += expired
            self.expired_count += expired
            if ended.end == replay_pb2.LEASE_END_FAILED:
                prompt.drafts.clear()
                self.circuit.fail(event.worker_id, ended.lease.uid)

    def _sessions_completed(self, event: journal_pb2.SessionsCompleted) -> None:
        if event.store_incarnation != self.store:
            self.say("fence", f"rows of store {event.store_incarnation}, not {self.store}")
        self.circuit.succeed(event.worker_id)
        for item in event.sessions:
            uid, record = item.lease.uid, item.record
            self._check_lease(uid, item.lease.attempt, event.worker_id)
            prompt = self._find(uid)
            if record.session in prompt.sessions or not 0 <= record.session < self.rules.n:
                self.say("fence", f"{uid}: session {record.session} recorded twice, or unknown")
            if (record.lineage, record.attempt) != (self.lineage, prompt.attempt):
                self.say("fence", f"{uid}: rows of {record.lineage}a{record.attempt}")
            self.check_gone_on_with(prompt, record)
            if not prompt.lease_oldest <= record.min_version <= record.max_version < self.step:
                self.say("stale", f"{uid}: v{record.min_version}-{record.max_version}")
            prompt.sessions[record.session] = record
            prompt.store = event.store_incarnation
            if len(prompt.sessions) == self.rules.n:
                self._move(uid, FINISHED, RUNNING)

    def _sessions_forgotten(self, event: journal_pb2.SessionsForgotten) -> None:
        for uid in event.uids:
            prompt = self._move(uid, PENDING, PENDING)
            if self.span(prompt, event.step) <= (self.rules.threshold or 0):
                self.say("stale", f"{uid} forgot sessions that could be used")
            prompt.sessions.clear()

    def _groups_failed(self, event: journal_pb2.GroupsFailed) -> None:
        for uid in event.uids:
            self._move(uid, FAILED, PENDING)
            self._say_if("transition", uid, self.circuit.set_aside(uid))
        for uid in event.retried_uids:
            self._move(uid, PENDING, FAILED)
            self._returned += 1

    def _worker_ejected(self, event: journal_pb2.WorkerEjected) -> None:
        self._say_if("end", event.worker_id, self.circuit.eject(event.worker_id))

    def _circuit_opened(self, event: journal_pb2.CircuitOpened) -> None:
        self._say_if("end", "the circuit", self.circuit.open(event.cause))

    def _circuit_closed(self, event: journal_pb2.CircuitClosed) -> None:
        self._say_if("end", "the circuit", self.circuit.close())
        for prompt in self.prompts.of(FAILED):
            self._move(prompt.uid, PENDING, FAILED)
            self._returned += 1

    def _groups_dropped(self, event: journal_pb2.GroupsDropped) -> None:
        reason = reason_name(event.reason)
        for number, uid in enumerate(event.uids):
            prompt = self._find(uid)
            sources, fault = self._may_drop(reason, prompt, event.step)
            if fault:
                self.say("stale", f"{uid}: {fault}")
            if reason == "stale" and event.spans[number] != self.span(prompt, event.step):
                self.say("stale", f"{uid} dropped with span {event.spans[number]}")
            self.circuit.drop(
                reason,
                was_probe=prompt.state in (PENDING, RUNNING),
                is_worn=prompt.expiries >= self.rules.max_expiries,
            )
            self._move(uid, DROPPED, *sources, reason=reason)

    def _may_drop(self, reason: str, prompt: Prompt, step: int) -> tuple[tuple[str, ...], str]:
        """Say from where a prompt may be dropped for this reason, and what is wrong with it."""
        if reason.startswith("stale"):
            if (reason == "stale_at_restore") != (self.phase == REISSUE):
                return (*WINDOW, FAILED), f"{reason} in phase {self.phase}"
            fresh = self.span(prompt, step) <= (self.rules.threshold or 0)
            return (*WINDOW, FAILED), "not stale, and dropped" if fresh else ""
        if reason == "failed":
            worn = prompt.expiries >= self.rules.max_expiries
            return (FAILED, *((PENDING,) if worn else ())), ""
        if reason == "filtered":
            rewards = {record.reward for record in prompt.sessions.values()}
            return (FINISHED,), "its rewards differ" if len(rewards) != 1 else ""
        if reason == "cancelled":
            return (PENDING, RUNNING, FAILED), ""
        return (*WINDOW, FAILED, SAMPLED), ""

    # -- training

    def _step_opened(self, event: journal_pb2.StepOpened) -> None:
        if self.opened or event.step != self.step or event.group_count != self.rules.batch:
            self.say("step", f"step {event.step} of {event.group_count} opened at {self.step}")
        self.opened = (event.step, event.group_count // event.part_count, event.part_count)
        self.parts = {(event.step, part): [] for part in range(event.part_count)}

    def _batch_sampled(self, event: journal_pb2.BatchSampled) -> None:
        place, quota = (event.step, event.part), self.opened[1] if self.opened else 0
        if place not in self.parts or len(self.parts[place]) + len(event.uids) > quota:
            self.say("step", f"{len(event.uids)} groups for part {event.part} of {event.step}")
            return
        oldest = sorted(self.prompts.of(FINISHED), key=lambda each: (self.base(each), each.ordinal))
        if list(event.uids) != [prompt.uid for prompt in oldest[: len(event.uids)]]:
            self.say("order", f"step {event.step} got {list(event.uids)}")
        for uid in event.uids:
            prompt = self._move(uid, SAMPLED, FINISHED)
            span, most = self.span(prompt, event.step), self.rules.threshold
            if most is not None and self.rules.strategy == "drop" and span > most:
                self.say("stale", f"{uid} sampled with span {span} > {most}")
        self.parts[place] += event.uids
        if len(self.parts[place]) == quota:
            complete = {uid: self._as_handed_out(uid, event.step) for uid in self.parts[place]}
            self.handed_out.setdefault((self.lineage, *place), []).append(complete)

    def _as_handed_out(self, uid: str, step: int) -> HandedOut:
        prompt = self.prompts[uid]
        records = [prompt.sessions[session] for session in sorted(prompt.sessions)]
        keys = tuple(
            SESSION_KEY.format(uid=uid, session=r.session, lineage=r.lineage, attempt=r.attempt)
            for r in records
        )
        versions = tuple((record.min_version, record.max_version) for record in records)
        begun = tuple(prompt.begun.get(record.session, ()) for record in records)
        return HandedOut(prompt.ordinal, self.span(prompt, step), keys, versions, begun)

    def _groups_returned(self, event: journal_pb2.GroupsReturned) -> None:
        for uid in event.uids:
            if uid not in self.parts.get((event.step, event.part), ()):
                self.say("step", f"{uid} returned from a part that it is not in")
                continue
            self.parts[event.step, event.part].remove(uid)
            self._move(uid, PENDING, SAMPLED).sessions.clear()

    def _step_committed(self, event: journal_pb2.StepCommitted) -> None:
        trained = [uid for part in sorted(self.parts) for uid in self.parts[part]]
        if (
            not self.opened
            or event.step != self.opened[0]
            or event.lineage != self.lineage
            or len(trained) != self.rules.batch
        ):
            self.say("step", f"step {event.step} committed with {len(trained)} groups")
        for uid in trained:
            self._move(uid, TRAINED, SAMPLED)
        self.trained_in[self.lineage, event.step] = trained
        self.line_of_step[event.step] = self.lineage
        self.trained[event.step], self.opened, self.parts = trained, None, {}

    # -- the end and the rest

    def _unexpected(self, event: Any) -> None:
        self.say("end", f"{type(event).__name__}, which nobody asked for")

    def _run_ended(self, event: journal_pb2.RunEnded) -> None:
        self.ended = event.cause
