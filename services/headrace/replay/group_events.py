"""What the events of prompt groups change, from the feed to FINISHED or DROPPED.

Decisions are in `headrace.replay.{feeding,leasing,dropping}`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.replay import draft
from headrace.replay.circuit_events import blame
from headrace.replay.group import DROPPED, FINISHED, PENDING, RUNNING, SAMPLED, Group
from headrace.replay.step_events import leave_part
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import prompt_pb2, replay_pb2

if TYPE_CHECKING:
    from headrace.replay.ledger import Ledger

HAND_FED_ORDINAL = 2**40
"""Ordinals of rows that came in by hand begin here, beyond every feed."""


def _on_prompts_registered(ledger: Ledger, event: journal.PromptsRegistered) -> None:
    wanted = 0
    for offset, prompt in enumerate(event.prompts):
        _register(ledger, prompt, event.first_ordinal + offset)
        wanted += prompt.drop_reason == prompt_pb2.DROP_REASON_UNSPECIFIED
    ledger.cursor += len(event.prompts)
    ledger.source_state = event.source_state
    ledger.credit = max(0, ledger.credit - max(0, wanted - event.own_demand))
    if ledger.resume and ledger.is_resuming:
        ledger.resume.topped_up_count += wanted
    if ledger.circuit.is_open:
        ledger.circuit.fed_count += wanted


def _on_rows_registered(ledger: Ledger, event: journal.RowsRegistered) -> None:
    first = HAND_FED_ORDINAL + ledger.hand_fed_count
    for offset, prompt in enumerate(event.prompts):
        _register(ledger, prompt, first + offset)
    fed = journal.HandFed(call=event.call, count=len(event.prompts))
    ledger.hand_fed[event.request_id] = fed


def _register(ledger: Ledger, prompt: replay_pb2.NewPrompt, ordinal: int) -> None:
    dropped = prompt.drop_reason != prompt_pb2.DROP_REASON_UNSPECIFIED
    group = Group(
        uid=prompt.uid,
        ordinal=ordinal,
        payload=prompt.payload,
        state=DROPPED if dropped else PENDING,
        drop_reason=prompt.drop_reason,
        fed_step=ledger.current_step,
        base=ledger.current_step if ledger.basis == "fed" and not dropped else 0,
    )
    ledger.groups.add(group)
    ledger.touch(group)


def _on_prompts_leased(ledger: Ledger, event: journal.PromptsLeased) -> None:
    for lease in event.leases:
        with ledger.groups.changing(ledger.groups[lease.uid]) as group:
            group.state = RUNNING
            group.attempt = lease.attempt
            group.worker_id = event.worker_id
            if ledger.basis != "fed":
                made = [event.weights.version, *map(draft.oldest, group.drafts.values())]
                bases = [version + 1 for version in made]
                group.base = min(group.base or bases[0], *bases)
            ledger.touch(group)


def _on_leases_ended(ledger: Ledger, event: journal.LeasesEnded) -> None:
    for ended in event.leases:
        with ledger.groups.changing(ledger.groups[ended.lease.uid]) as group:
            ledger.to_pending(group)
            if ended.end == replay_pb2.LEASE_END_EXPIRED:
                group.expiries += 1
            elif ended.end == replay_pb2.LEASE_END_FAILED:
                group.drafts.clear()  # They may be what fails.
                # While the circuit is open nobody knows whose fault it is; its closing says.
                group.failures += not (
                    ledger.circuit.is_open or event.worker_id in ledger.circuit.ejected
                )
                group.last_error = ended.error
            ledger.touch(group)
        if ended.end == replay_pb2.LEASE_END_FAILED:
            streak = ledger.circuit.streaks.setdefault(event.worker_id, Counter())
            streak[ended.lease.uid] += 1
        cause = replay_pb2.LeaseEnd.Name(ended.end).removeprefix("LEASE_END_").lower()
        ledger.regenerated[cause] += 1


def _on_sessions_completed(ledger: Ledger, event: journal.SessionsCompleted) -> None:
    records: dict[str, list[prompt_pb2.SessionRecord]] = {}
    for item in event.sessions:
        records.setdefault(item.lease.uid, []).append(item.record)
    for uid, settled in records.items():
        with ledger.groups.changing(ledger.groups[uid]) as group:
            group.sessions.update((record.session, record) for record in settled)
            group.store_incarnation = event.store_incarnation
            for record in settled:
                group.drafts.pop(record.session, None)
            if len(group.sessions) == ledger.n:
                group.state = FINISHED
                group.worker_id = ""
                group.base = ledger.base_of(group)
            ledger.touch(group)
    if ledger.circuit.is_open:
        return  # Its closing says who is to blame.
    streak = ledger.circuit.streaks.pop(event.worker_id, None)
    if event.worker_id in ledger.circuit.ejected:
        # It can do other prompts after all: once more, those it failed at are to blame.
        ledger.circuit.ejected.discard(event.worker_id)
        blame(ledger, streak or ())


def _on_sessions_forgotten(ledger: Ledger, event: journal.SessionsForgotten) -> None:
    for uid in event.uids:
        with ledger.groups.changing(ledger.groups[uid]) as group:
            ledger.forget_sessions(group)
            ledger.touch(group)


def _on_groups_dropped(ledger: Ledger, event: journal.GroupsDropped) -> None:
    for uid in event.uids:
        with ledger.groups.changing(ledger.groups[uid]) as group:
            if group.state == SAMPLED and ledger.open_step:
                leave_part(ledger, uid)
            group.state = DROPPED
            group.drop_reason = event.reason
            group.worker_id = ""
            ledger.touch(group)
    if event.reason == prompt_pb2.DROP_REASON_FILTERED:
        ledger.filtered_in_step += len(event.uids)
    if event.reason == prompt_pb2.DROP_REASON_STALE_AT_RESTORE and ledger.resume:
        ledger.resume.dropped_count += len(event.uids)
    if (
        event.reason == prompt_pb2.DROP_REASON_STALE
        and ledger.position == ledger.last_commit.position + 1
    ):
        ledger.last_commit.stale = len(event.uids)


HANDLERS: Mapping[str, Callable[[Ledger, Any], None]] = {
    "prompts_registered": _on_prompts_registered,
    "rows_registered": _on_rows_registered,
    "prompts_leased": _on_prompts_leased,
    "leases_ended": _on_leases_ended,
    "sessions_completed": _on_sessions_completed,
    "sessions_forgotten": _on_sessions_forgotten,
    "groups_dropped": _on_groups_dropped,
}
"""By the event's name."""
