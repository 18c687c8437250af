"""What the events of the feed, of drops and of the circuit do to a run as it was told."""

from __future__ import annotations

from headrace.v1 import journal_pb2, prompt_pb2
from headrace.verify.told import (
    DROPPED,
    FAILED,
    LIVE,
    PENDING,
    RUNNING,
    SAMPLED,
    WARMUP,
    Group,
    Told,
)


class FeedEvents(Told):
    """From the first prompt to the run's end: who comes in, and who goes without being trained on."""

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
        for uid in event.retried_uids:
            self.check(self.circuit_open, f"I13: {uid} is tried again, and the circuit is closed")
            self._move(uid, PENDING, FAILED)

    def _on_circuit_opened(self, event: journal_pb2.CircuitOpened) -> None:
        self.circuit_open = True

    def _on_circuit_closed(self, event: journal_pb2.CircuitClosed) -> None:
        self.circuit_open = False
        for group in [group for group in self.groups.values() if group.state == FAILED]:
            self._move(group.uid, PENDING, FAILED)

    def _on_run_ended(self, event: journal_pb2.RunEnded) -> None:
        self.check(event.cause in ("steps_done", "data_ended"), "I11: it ended for no reason")
        if event.cause == "steps_done":
            self.check(self.committed >= self.total_steps, "I4: it ended before its last step")
        else:
            self.check(self.cursor >= self.ordinal_count, "I4: it ended before its data")
        self.ended = event.cause
