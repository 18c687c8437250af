"""Who works on which prompt: the gates of a lease, and how leases end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice

from headrace.errors import InvalidFieldError, WeightsUnknownError
from headrace.replay import circuit, drafts
from headrace.replay.dropping import drop_filtered
from headrace.replay.group import FINISHED, RUNNING, SAMPLED, TRAINED, Group
from headrace.replay.ledger import Ledger
from headrace.replay.progress import being_resumed
from headrace.replay.settings import LedgerSettings
from headrace.replay.staleness import oldest_usable_version
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import prompt_pb2, replay_pb2

HELD = replay_pb2.LEASE_STATUS_HELD
LOST = replay_pb2.LEASE_STATUS_LOST
DONE = replay_pb2.LEASE_STATUS_DONE
STORE_CHANGED = replay_pb2.LEASE_STATUS_STORE_CHANGED

MAX_LEASES_PER_CALL = 256
MAX_SESSIONS_PER_CALL = 4096
MAX_PAYLOAD_BYTES = 2 * 2**20
"""Prompts and drafts in one answer; well below the size of a message. At least one lease always
fits: what is too large of its drafts is dropped."""


@dataclass(frozen=True)
class Allowance:
    """How many leases a worker may take now, and what holds it back if that is none."""

    count: int
    blocked_by: str = ""


def check_weights(ledger: Ledger, weights: prompt_pb2.WeightsId, checksum: str) -> None:
    """Accept only weights that were published on this time line, byte for byte.

    Those of an ancestor count up to its fork; later ones the ledger has forgotten.

    Raises:
        WeightsUnknownError: otherwise; the metadata names the newest.

    """
    known = ledger.weights.get((weights.lineage, weights.version))
    if known is not None and known.checksum == checksum:
        return
    latest = ledger.latest_weights
    raise WeightsUnknownError(
        f"weights {weights.lineage} v{weights.version} with checksum {checksum[:12]} were not "
        "published on this time line",
        latest_lineage=latest.id.lineage if latest else "",
        latest_version=str(latest.id.version) if latest else "",
    )


def allowance(
    ledger: Ledger,
    settings: LedgerSettings,
    *,
    worker_id: str,
    version: int,
    store_held_bytes: int,
) -> Allowance:
    """Apply the gates - circuit, weights, window, room - in this order.

    `store_held_bytes` is what the store last said it holds, which may be more than the ledger
    knows of: rows that are not swept yet.
    """
    if ledger.resume and ledger.is_resuming:
        return Allowance(0, being_resumed(ledger.resume))
    if ledger.paused:
        return Allowance(0, "the run is paused: `headrace resume` lets it go on")
    probes = circuit.may_lease(ledger, worker_id)
    held = ledger.groups.leases[worker_id]
    if probes is not None and held >= probes:
        reason = "the circuit is open" if ledger.circuit.is_open else "this worker keeps failing"
        return Allowance(0, f"{reason}: {ledger.circuit.error or 'one probe at a time'}")
    oldest = oldest_usable_version(ledger.current_step, settings)
    if version < oldest:
        return Allowance(
            0, f"weights v{version} are too old for step {ledger.current_step}: v{oldest} or newer"
        )
    counts = ledger.groups.counts
    target = ledger.window(settings.window_size).target
    window_room = target - counts[RUNNING] - counts[FINISHED]
    if window_room <= 0:
        return Allowance(0, f"the window is full: running + finished = target = {target}")
    room = _store_room(ledger, settings, store_held_bytes)
    if room <= 0:
        return Allowance(0, "the store has no room: waiting for the trainer to use groups up")
    if not ledger.groups.pending:
        return Allowance(0, "no prompt is pending: waiting for the feeder")
    limits = [window_room, room] + ([probes - held] if probes is not None else [])
    return Allowance(min(limits))


def _store_room(ledger: Ledger, settings: LedgerSettings, store_held_bytes: int) -> int:
    """Groups the store can still take at their longest; none while no store is known."""
    used = max(ledger.groups.held_bytes, store_held_bytes) + reserved_bytes(ledger, settings)
    free = ledger.store_capacity - used
    return free // (ledger.n * settings.max_trajectory_bytes)


def reserved_bytes(ledger: Ledger, settings: LedgerSettings) -> int:
    """Room that current leases still need at most."""
    return ledger.groups.running_missing * settings.max_trajectory_bytes


def lease(
    ledger: Ledger,
    settings: LedgerSettings,
    *,
    worker_id: str,
    weights: prompt_pb2.WeightsId,
    count: int,
) -> list[Group]:
    """Lease the next prompts, as many as allowed: fewest failures first, then by ordinal.

    Probes go round: what an ejected worker fails at is not blamed and stays in front, and a prompt
    that nobody can do must not be the only one ever tried.
    """
    chosen: list[Group] = []
    room = MAX_PAYLOAD_BYTES
    candidates: Iterable[Group] = islice(ledger.groups.pending, count)
    if circuit.may_lease(ledger, worker_id) is not None:
        candidates = nsmallest(count, ledger.groups.pending, key=lambda group: group.attempt)
    for group in candidates:
        room -= drafts.size(group) + (group.payload.ByteSize() if group.payload else 0)
        if room < 0 and chosen:
            break
        chosen.append(group)
    if chosen:
        drafts.drop_unusable(ledger, settings, chosen, lease_bytes=MAX_PAYLOAD_BYTES)
        ledger.emit(
            journal.PromptsLeased(
                worker_id=worker_id,
                weights=weights,
                leases=[
                    replay_pb2.LeaseRef(uid=group.uid, attempt=group.attempt + 1)
                    for group in chosen
                ],
            )
        )
    return chosen


def holder(ledger: Ledger, worker_id: str, ref: replay_pb2.LeaseRef) -> Group | None:
    """Return the group if this worker holds this very lease on it."""
    group = ledger.groups.get(ref.uid)
    if group is None or group.state != RUNNING:
        return None
    if group.attempt != ref.attempt or group.worker_id != worker_id:
        return None
    return group


def status_of(
    ledger: Ledger, worker_id: str, ref: replay_pb2.LeaseRef
) -> replay_pb2.LeaseStatus.ValueType:
    """HELD, DONE (finished under this attempt) or LOST."""
    if holder(ledger, worker_id, ref):
        return HELD
    group = ledger.groups.get(ref.uid)
    if group and group.state in (FINISHED, SAMPLED, TRAINED) and group.attempt == ref.attempt:
        return DONE
    return LOST


def complete_sessions(
    ledger: Ledger,
    settings: LedgerSettings,
    *,
    worker_id: str,
    store_incarnation: str,
    items: Sequence[replay_pb2.CompletedSession],
) -> list[replay_pb2.LeaseStatus.ValueType]:
    """Record sessions, one verdict each.

    A record may name the time line of its lease: one of a line that was left is of no use, though
    attempts may be the same there.

    Raises:
        InvalidFieldError: a session that the group does not have, or negative sizes.

    """
    # Each field is read once: of a call's hundreds of messages, that is most of the cost.
    sessions = [
        (lease, record, lease.uid, lease.attempt, record.session)
        for lease, record in ((item.lease, item.record) for item in items)
    ]
    for _, record, uid, _, session in sessions:
        if not 0 <= session < ledger.n or record.trajectory_count < 1:
            raise InvalidFieldError("sessions.record", f"of {uid} is malformed")
    refs = {(uid, attempt): lease for lease, _, uid, attempt, _ in sessions}
    held = {lease: holder(ledger, worker_id, ref) for lease, ref in refs.items()}
    fresh: dict[tuple[str, int], tuple[replay_pb2.LeaseRef, prompt_pb2.SessionRecord, int]] = {}
    changed: set[str] = set()
    elsewhere: set[tuple[str, int]] = set()
    for lease, record, uid, attempt, session in sessions:
        group = held[uid, attempt]
        if group is None or session in group.sessions:
            continue
        if record.lineage not in ("", ledger.lineage):
            elsewhere.add((uid, session))
            continue
        if store_incarnation != ledger.store_incarnation:
            changed.add(uid)
            continue
        fresh[uid, session] = lease, record, attempt
    if fresh:
        event = journal.SessionsCompleted(worker_id=worker_id, store_incarnation=store_incarnation)
        for lease, record, attempt in fresh.values():
            completed = event.sessions.add(lease=lease, record=record).record
            completed.lineage, completed.attempt = ledger.lineage, attempt
        ledger.emit(event)
        circuit.judge_success(ledger, settings)
    now = {lease: status_of(ledger, worker_id, ref) for lease, ref in refs.items()}
    statuses = [
        LOST
        if (uid, session) in elsewhere
        else STORE_CHANGED
        if uid in changed
        else _completion_status(ledger, now[uid, attempt], uid, attempt, session)
        for _, _, uid, attempt, session in sessions
    ]
    touched = [ledger.groups[uid] for uid in dict.fromkeys(uid for uid, _ in fresh)]
    drop_filtered(ledger, settings, [group for group in touched if group.state == FINISHED])
    return statuses


def _completion_status(
    ledger: Ledger,
    lease: replay_pb2.LeaseStatus.ValueType,
    uid: str,
    attempt: int,
    session: int,
) -> replay_pb2.LeaseStatus.ValueType:
    """HELD as the lease is, DONE if this attempt recorded the session, else LOST."""
    if lease == HELD:
        return HELD
    group = ledger.groups.get(uid)
    record = group.sessions.get(session) if group else None
    return DONE if record and record.attempt == attempt else LOST


def end_leases(
    ledger: Ledger,
    settings: LedgerSettings,
    *,
    worker_id: str,
    leases: Sequence[replay_pb2.EndedLease],
    live_workers: Collection[str],
) -> list[replay_pb2.LeaseStatus.ValueType]:
    """End leases that are current; the others are answered LOST.

    Raises:
        InvalidFieldError: an end that is not the worker's to say, or a failure without an error.

    """
    for ended in leases:
        if ended.end not in (replay_pb2.LEASE_END_RETURNED, replay_pb2.LEASE_END_FAILED):
            raise InvalidFieldError("leases.end", "must be RETURNED or FAILED")
        if ended.end == replay_pb2.LEASE_END_FAILED and not ended.error:
            raise InvalidFieldError("leases.error", "is required for FAILED")
    current = {ended.lease.uid: ended for ended in leases if holder(ledger, worker_id, ended.lease)}
    statuses = [DONE if ended.lease.uid in current else LOST for ended in leases]
    if current:
        ledger.emit(journal.LeasesEnded(worker_id=worker_id, leases=current.values()))
    failed = [e for e in current.values() if e.end == replay_pb2.LEASE_END_FAILED]
    if failed:
        circuit.judge_failures(
            ledger,
            settings,
            worker_id=worker_id,
            live_workers=live_workers,
            failed=[ledger.groups[ended.lease.uid] for ended in failed],
            error=failed[-1].error,
        )
    return statuses


def expire(ledger: Ledger, settings: LedgerSettings, uids: Sequence[str]) -> None:
    """Take back leases that ran out."""
    by_worker: dict[str, list[Group]] = {}
    for uid in uids:
        group = ledger.groups[uid]
        if group.state == RUNNING:
            by_worker.setdefault(group.worker_id, []).append(group)
    for worker_id, groups in by_worker.items():
        ended = [
            replay_pb2.EndedLease(
                lease=replay_pb2.LeaseRef(uid=group.uid, attempt=group.attempt),
                end=replay_pb2.LEASE_END_EXPIRED,
            )
            for group in groups
        ]
        ledger.emit(journal.LeasesEnded(worker_id=worker_id, leases=ended))
        circuit.judge_expiries(ledger, settings, groups)
