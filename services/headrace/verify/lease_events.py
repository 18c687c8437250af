"""What the events of workers and of the store do to a run as it was told."""

from __future__ import annotations

from headrace.v1 import journal_pb2, prompt_pb2
from headrace.v1 import replay_pb2 as pb
from headrace.verify.told import FAILED, FINISHED, OPEN, PENDING, RUNNING, Group, Session, Told


class LeaseEvents(Told):
    """Leases, what was generated under them, and what was lost of it."""

    def _on_prompts_leased(self, event: journal_pb2.PromptsLeased) -> None:
        self.check(self.resume_phase == OPEN, "I5: leased while the run is being resumed")
        weights = (event.weights.lineage, event.weights.version)
        self.check(weights in self.weights, f"I14: leased with weights {weights}, never published")
        self.check(self.is_on_line(*weights), f"I14: leased with weights {weights} of a dead line")
        for lease in event.leases:
            group = self._move(lease.uid, RUNNING, PENDING)
            self.check(lease.attempt > group.attempt, f"I6: attempt {lease.attempt} again")
            group.attempt, group.worker = lease.attempt, event.worker_id
            for session, draft in group.drafts.items() if self.rules.drops else ():
                span = self.committed + 1 - min(draft)
                most = self.rules.threshold or 0
                self.check(
                    span <= most, f"I7: session {session} of {group.uid} goes on at span {span}"
                )
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

    def _on_worker_ejected(self, event: journal_pb2.WorkerEjected) -> None:
        pass

    def _on_rows_lost(self, event: journal_pb2.RowsLost) -> None:
        for uid, session in zip(event.uids, event.sessions, strict=True):
            group = self._move(uid, PENDING, PENDING, FINISHED)
            group.sessions.pop(session)
            self._to_pending(group)
