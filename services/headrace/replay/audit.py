"""What must hold of a ledger at every instant, checked from scratch.

It recounts every group instead of trusting the indexes, so that a mistake in keeping them shows.
"""

from __future__ import annotations

from collections import Counter

from headrace.replay import draft
from headrace.replay.group import (
    DRAFTED,
    DROPPED,
    FINISHED,
    PENDING,
    RUNNING,
    SAMPLED,
    SETTLED,
    STATES,
    TRAINED,
    Group,
)
from headrace.replay.groups import state_name
from headrace.replay.ledger import Ledger
from headrace.replay.settings import LedgerSettings
from headrace.replay.staleness import is_stale
from headrace.v1 import prompt_pb2


def audit(ledger: Ledger, settings: LedgerSettings) -> list[str]:
    """List what does not hold, a line each; empty if all is well."""
    return [
        *balance_violations(ledger),
        *_recounts(ledger),
        *_accounts(ledger),
        *_steps(ledger),
        *(line for group in ledger.groups for line in _group(ledger, settings, group)),
    ]


def balance_violations(ledger: Ledger) -> list[str]:
    """Check the balance rule itself; cheap, whatever the ledger holds."""
    table = ledger.groups
    total = sum(table.counts[state] for state in STATES if state != DROPPED)
    total += sum(table.dropped.values())
    fed = ledger.cursor + ledger.hand_fed_count
    return [] if total == fed else [f"balance: fed {fed}, accounted for {total}"]


def _recounts(ledger: Ledger) -> list[str]:
    table = ledger.groups
    recounted = table.forgotten + Counter(group.state for group in table)
    found = [
        f"{state_name(state)}: {table.counts[state]} counted, {recounted[state]} there"
        for state in STATES
        if table.counts[state] != recounted[state]
    ]
    lengths = {PENDING: table.pending, RUNNING: table.running, FINISHED: table.finished}
    found += [
        f"{state_name(state)}: {len(index)} indexed, {recounted[state]} there"
        for state, index in lengths.items()
        if len(index) != recounted[state]
    ]
    if table.fed_count != ledger.cursor + ledger.hand_fed_count:
        found.append(f"{table.fed_count} groups known, {ledger.cursor} fed")
    return found


def _accounts(ledger: Ledger) -> list[str]:
    table = ledger.groups
    held = sum(group.held_bytes for group in table if group.state not in SETTLED)
    missing = sum(ledger.n - len(group.sessions) for group in table.running)
    drafted = sum(group.draft_token_count for group in table)
    found = []
    if held != table.held_bytes:
        found.append(f"held bytes: {table.held_bytes} counted, {held} there")
    if missing != table.running_missing:
        found.append(f"sessions due: {table.running_missing} counted, {missing} there")
    if drafted != table.draft_token_count:
        found.append(f"tokens in drafts: {table.draft_token_count} counted, {drafted} there")
    return found


def _steps(ledger: Ledger) -> list[str]:
    trained = ledger.groups.counts[TRAINED]
    found = []
    if trained != ledger.committed_step * ledger.batch_size:
        found.append(
            f"{ledger.committed_step} committed steps of {ledger.batch_size} trained {trained} groups"
        )
    per_step = Counter(group.step for group in ledger.groups if group.state == TRAINED)
    found += [
        f"step {s} is not committed and has trained" for s in per_step if s > ledger.committed_step
    ]
    found += [
        f"step {step} trained {count} groups, a step is {ledger.batch_size}"
        for step, count in per_step.items()
        if count > ledger.batch_size or (count < ledger.batch_size and not ledger.groups.forgotten)
    ]
    opened = ledger.open_step
    in_parts = Counter(uid for part in opened.parts for uid in part) if opened else Counter()
    if in_parts != Counter(list(ledger.groups.sampled)):
        found.append("the open step's parts and the SAMPLED groups are not the same")
    return found


def _group(ledger: Ledger, settings: LedgerSettings, group: Group) -> list[str]:
    found = []
    # Of a group that settled before the last compaction the sessions are forgotten.
    complete = len(group.sessions) == ledger.n or (group.state == TRAINED and not group.sessions)
    if group.state in (FINISHED, SAMPLED, TRAINED) and not complete:
        found.append(
            f"{group.uid} is {state_name(group.state)} with {len(group.sessions)} sessions"
        )
    if (group.drop_reason != prompt_pb2.DROP_REASON_UNSPECIFIED) != (group.state == DROPPED):
        found.append(
            f"{group.uid} is {state_name(group.state)} and has a drop reason, or lacks one"
        )
    if (group.state == RUNNING) != bool(group.worker_id):
        found.append(f"{group.uid} is {state_name(group.state)} and held by {group.worker_id!r}")
    found += [
        f"{group.uid} is {state_name(group.state)} and has a draft of session {session} {fault}"
        for session, each in group.drafts.items()
        if (fault := _draft_fault(ledger, group, each))
    ]
    past = is_stale(group.base, ledger.current_step, settings) and not ledger.is_resuming
    if group.state in (PENDING, RUNNING, FINISHED) and past:
        found.append(f"{group.uid} is {state_name(group.state)} and past the threshold")
    return found


def _draft_fault(ledger: Ledger, group: Group, kept: prompt_pb2.Draft) -> str:
    """Say what is wrong with a session that is under way; empty if nothing."""
    if group.state not in DRAFTED:
        return "that nobody works on"
    if kept.session in group.sessions:
        return "that is recorded"
    if not kept.token_ids or not draft.is_whole(kept):
        return "that is not whole"
    if any((span.lineage, span.version) not in ledger.weights for span in kept.weight_spans):
        return "by weights of another time line"
    counts_from = group.base if group.state == RUNNING and ledger.basis != "fed" else 0
    return "older than its base" if draft.oldest(kept) + 1 < counts_from else ""
