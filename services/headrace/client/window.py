"""How many prompts were in which state, at every moment: the events of the journal, counted.

Knows what each event does to a prompt's state, no more of the rules. Where the journal's
beginning was compacted away, a prompt that appears later was before in the state that its first
event tells, and prompts that never appear stayed where they are. So it is where a ledger was restored
from a checkpoint: what the checkpoint says of prompts is not among the events.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.v1 import prompt_pb2

STATES: Final = ("pending", "running", "finished", "failed", "sampled", "trained", "dropped")
_SETTLED: Final = ("trained", "dropped")


@dataclass(frozen=True)
class Moment:
    """The counts after one event."""

    position: int
    """The event's place in the journal."""
    unix_time_s: float
    """When it was written."""
    step: int
    """The last committed step."""
    counts: Mapping[str, int]
    """Prompts by state."""


def count(
    events: Iterable[prompt_pb2.LedgerEvent],
    now: Mapping[str, int],
    *,
    step: int,
    n: int = 0,
) -> list[Moment]:
    """Count through the events, all that there are up to now.

    Args:
        events: In order.
        now: The counts after the last of them.
        step: The last committed step then.
        n: Samples per prompt, if the run's first event is not among them.

    """
    tally = _Tally(n)
    whole: list[Moment] = []
    """Of a journal that was begun anew, until the ledger of the lost one was restored into it."""
    moments: list[Moment] = []
    for event in events:
        if event.name == "ledger_restored":
            tally, whole, moments = _Tally(tally.n), [*whole, *moments], []
        moments.append(tally.take(event))
    if not moments:
        return []
    last = moments[-1]
    before = {state: now.get(state, 0) - last.counts[state] for state in STATES}
    earlier_steps = step - last.step
    return whole + [
        Moment(
            moment.position,
            moment.unix_time_s,
            moment.step + earlier_steps,
            {state: moment.counts[state] + before[state] for state in STATES},
        )
        for moment in moments
    ]


class _Tally:
    """Counts since the first event; below 0 where prompts were there before."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._steps = 0
        self._committed: int | None = None
        """The last committed step, once an event has named it."""
        self._counts = dict.fromkeys(STATES, 0)
        self._state: dict[str, str] = {}
        """Of live prompts."""
        self._members: defaultdict[str, set[str]] = defaultdict(set)
        """The other way round."""
        self._sessions: dict[str, set[int]] = {}
        self._holder: dict[str, str] = {}
        """The life of the store that holds a prompt's sessions."""
        self._store = ""

    def take(self, event: prompt_pb2.LedgerEvent) -> Moment:
        change = getattr(self, f"_on_{event.name}", None)  # the others move no prompt
        if change is not None:
            change(json.loads(event.detail_json or "{}"))
        return Moment(event.position, event.unix_time_s, self._steps, dict(self._counts))

    def _add(self, uid: str, state: str) -> None:
        self._counts[state] += 1
        if state not in _SETTLED:
            self._state[uid] = state
            self._members[state].add(uid)

    def _move(self, uid: str, to: str, *, usually_from: str) -> None:
        before = self._state.pop(uid, usually_from)
        self._counts[before] -= 1
        self._members[before].discard(uid)
        self._add(uid, to)
        if to in _SETTLED:
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        self._sessions.pop(uid, None)
        self._holder.pop(uid, None)

    def _on_run_opened(self, detail: dict[str, Any]) -> None:
        self.n, self._committed = int(detail["n"]), 0

    def _on_prompts_registered(self, detail: dict[str, Any]) -> None:
        for prompt in detail.get("prompts", ()):
            self._add(prompt["uid"], "dropped" if "drop_reason" in prompt else "pending")

    _on_rows_registered = _on_prompts_registered

    def _on_prompts_leased(self, detail: dict[str, Any]) -> None:
        for lease in detail.get("leases", ()):
            self._move(lease["uid"], "running", usually_from="pending")

    def _on_leases_ended(self, detail: dict[str, Any]) -> None:
        for ended in detail.get("leases", ()):
            self._move(ended["lease"]["uid"], "pending", usually_from="running")

    def _on_sessions_completed(self, detail: dict[str, Any]) -> None:
        store = detail.get("store_incarnation", "")
        self._store = self._store or store
        for item in detail.get("sessions", ()):
            uid = item["lease"]["uid"]
            sessions = self._sessions.setdefault(uid, set())
            sessions.add(int(item.get("record", {}).get("session", 0)))
            self._holder[uid] = store
            if len(sessions) == self.n:
                self._move(uid, "finished", usually_from="running")

    def _on_sessions_forgotten(self, detail: dict[str, Any]) -> None:
        for uid in detail.get("uids", ()):
            self._forget(uid)

    def _on_groups_dropped(self, detail: dict[str, Any]) -> None:
        failed = ("DROP_REASON_FAILED", "DROP_REASON_CANCELLED")
        before = "failed" if detail.get("reason") in failed else "finished"
        for uid in detail.get("uids", ()):
            self._move(uid, "dropped", usually_from=before)

    def _on_groups_failed(self, detail: dict[str, Any]) -> None:
        for uid in detail.get("uids", ()):
            self._move(uid, "failed", usually_from="pending")
        for uid in detail.get("retried_uids", ()):
            self._move(uid, "pending", usually_from="failed")

    def _on_trainer_registered(self, detail: dict[str, Any]) -> None:
        for uid in list(self._members["sampled"]):
            lost = self._holder.get(uid, self._store) != self._store
            self._move(uid, "pending" if lost else "finished", usually_from="sampled")
            if lost:
                self._forget(uid)

    def _on_batch_sampled(self, detail: dict[str, Any]) -> None:
        for uid in detail.get("uids", ()):
            self._move(uid, "sampled", usually_from="finished")

    def _on_groups_returned(self, detail: dict[str, Any]) -> None:
        for uid in detail.get("uids", ()):
            self._move(uid, "pending", usually_from="sampled")
            self._forget(uid)

    def _on_step_committed(self, detail: dict[str, Any]) -> None:
        self._steps += 1
        self._committed = int(detail["step"])
        for uid in list(self._members["sampled"]):
            self._move(uid, "trained", usually_from="sampled")

    def _on_store_registered(self, detail: dict[str, Any]) -> None:
        before, self._store = self._store, detail.get("store_incarnation", "")
        if before in ("", self._store):
            return
        for uid in list(self._sessions):
            state = self._state.get(uid)
            if state in ("running", "finished"):
                self._move(uid, "pending", usually_from=state)
            if state != "sampled":
                self._forget(uid)

    def _on_circuit_closed(self, detail: dict[str, Any]) -> None:
        for uid in list(self._members["failed"]):
            self._move(uid, "pending", usually_from="failed")

    def _on_lineage_opened(self, detail: dict[str, Any]) -> None:
        self._go_back(int(detail["lineage"].get("fork_step", 0)))
        self._store = detail.get("store_incarnation", "")
        for group in detail.get("groups", ()):
            uid = group["uid"]
            kept = {int(record.get("session", 0)) for record in group.get("sessions", ())}
            to = "finished" if len(kept) == self.n else "pending"
            self._move(uid, to, usually_from="trained")
            self._forget(uid)
            if kept:
                self._sessions[uid], self._holder[uid] = kept, self._store

    def _on_rows_lost(self, detail: dict[str, Any]) -> None:
        lost = zip(detail.get("uids", ()), detail.get("sessions", ()), strict=True)
        for uid, session in lost:
            self._move(uid, "pending", usually_from="finished")
            left = self._sessions.get(uid, set()) - {int(session)}
            if left:
                self._sessions[uid] = left
            else:
                self._forget(uid)

    def _on_ledger_emptied(self, detail: dict[str, Any]) -> None:
        self._committed = int(detail.get("committed_step", 0))
        self._go_back(0)
        left: dict[str, Any] = detail.get("counts", {})
        for state in STATES[:-1]:
            self._counts[state] -= int(left.get(state, 0))
        self._counts["dropped"] -= sum(map(int, left.get("dropped", {}).values()))
        for known in (self._state, self._members, self._sessions, self._holder):
            known.clear()

    def _go_back(self, step: int) -> None:
        self._steps -= 0 if self._committed is None else self._committed - step
        self._committed = step
