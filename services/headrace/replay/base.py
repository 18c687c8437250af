"""The ledger at one position as a message, and back: what compaction keeps.

A ledger that was loaded from its base and one that replayed every event decide alike; the loaded
one has forgotten groups that settled long ago, but for their counts.
"""

from __future__ import annotations

from collections import Counter

from headrace.replay.events import SCHEMA_VERSION
from headrace.replay.group import DROPPED, SETTLED, TRAINED, Group
from headrace.replay.groups import GroupTable
from headrace.replay.ledger import Ledger
from headrace.replay.progress import CommitMemo, Feed, OpenStep
from headrace.v1 import journal_pb2 as journal


def to_base(
    ledger: Ledger, *, keep_settled: int, keep_uncovered: bool = False
) -> journal.LedgerBase:
    """Shape the ledger, of the settled groups only the last `keep_settled`, which it then knows.

    With `keep_uncovered` those that a rollback may make live again stay, too.
    """
    ledger.groups.forget_settled(keep_settled, keep_uncovered=keep_uncovered)
    table, circuit = ledger.groups, ledger.circuit
    remembered: Counter[int] = Counter(g.drop_reason for g in table if g.state == DROPPED)
    base = journal.LedgerBase(
        schema_version=SCHEMA_VERSION,
        position=ledger.position,
        run_opened=journal.RunOpened(
            run_id=ledger.run_id,
            lineage=ledger.lineages[0].id,
            n=ledger.n,
            train_batch_size=ledger.batch_size,
            basis=ledger.basis,
            temperature=ledger.temperature,
        ),
        feed_opened=journal.FeedOpened(
            row_count=ledger.feed.row_count,
            ordinal_count=ledger.feed.ordinal_count,
            total_steps=ledger.feed.total_steps,
            fingerprint=ledger.feed.fingerprint,
        ),
        cursor=ledger.cursor,
        source_state=ledger.source_state,
        committed_step=ledger.committed_step,
        last_commit=journal.CommitMemo(
            step=ledger.last_commit.step,
            trained_count=ledger.last_commit.trained,
            stale_count=ledger.last_commit.stale,
            position=ledger.last_commit.position,
        ),
        trainer=journal.TrainerRegistered(
            trainer_id=ledger.trainer_id, incarnation=ledger.trainer_incarnation
        ),
        former_trainers=sorted(ledger.former_trainers),
        weights=ledger.weights.values(),
        store=journal.StoreRegistered(
            store_incarnation=ledger.store_incarnation, capacity_bytes=ledger.store_capacity
        ),
        credit=ledger.credit,
        credit_answers=ledger.credit_answers,
        circuit=journal.CircuitOpened(cause=circuit.cause, error=circuit.error),
        streaks=[
            journal.FailureStreak(
                worker_id=worker_id,
                failures=circuit.streaks.get(worker_id, Counter()),
                ejected=worker_id in circuit.ejected,
            )
            for worker_id in sorted(circuit.streaks.keys() | circuit.ejected)
        ],
        circuit_fed_count=circuit.fed_count,
        filtered_in_step=ledger.filtered_in_step,
        regenerated=ledger.regenerated,
        ended_by=ledger.ended_by,
        paused=ledger.paused,
        hand_fed=ledger.hand_fed,
        lineages=ledger.lineages,
        resume=ledger.resume,
        snapshot=ledger.snapshot,
        saved_step=ledger.saved_step,
        oldest_step=table.covered_step,
        ended_snapshot=ledger.ended_snapshot,
        given_up=ledger.given_up,
        groups=[_to_stored(table, group) for group in table.in_order_of_settling()],
        forgotten_trained=table.forgotten[TRAINED],
        forgotten_dropped={
            int(reason): count - remembered[reason]
            for reason, count in table.dropped.items()
            if count > remembered[reason]
        },
    )
    if ledger.open_step:
        step = ledger.open_step
        base.open_step.step = step.step
        base.open_step.group_count = step.group_count
        base.open_step.part_count = len(step.parts)
        base.parts.extend(journal.SampledPart(uids=uids) for uids in step.parts)
    return base


def from_base(base: journal.LedgerBase) -> Ledger:
    """Rebuild the ledger as it was at the base's position."""
    ledger = Ledger(base.run_opened)
    ledger.take_events()
    ledger.position = base.position
    feed = base.feed_opened
    ledger.feed = Feed(feed.row_count, feed.ordinal_count, feed.total_steps, feed.fingerprint)
    ledger.cursor = base.cursor
    ledger.source_state = base.source_state
    ledger.committed_step = base.committed_step
    memo = base.last_commit
    ledger.last_commit = CommitMemo(memo.step, memo.trained_count, memo.stale_count, memo.position)
    if base.HasField("open_step"):
        parts = [list(part.uids) for part in base.parts]
        ledger.open_step = OpenStep(base.open_step.step, base.open_step.group_count, parts)
    ledger.trainer_id = base.trainer.trainer_id
    ledger.trainer_incarnation = base.trainer.incarnation
    ledger.former_trainers = set(base.former_trainers)
    for weights in base.weights:
        ledger.weights[weights.id.lineage, weights.id.version] = weights
        if weights.id.lineage == _current(base):
            ledger.latest_weights = weights
    ledger.store_incarnation = base.store.store_incarnation
    ledger.store_capacity = base.store.capacity_bytes
    ledger.credit = base.credit
    ledger.credit_answers = dict(base.credit_answers)
    ledger.hand_fed = {key: _copied(fed) for key, fed in base.hand_fed.items()}
    ledger.paused = base.paused
    ledger.ended_by = base.ended_by
    ledger.filtered_in_step = base.filtered_in_step
    ledger.regenerated = Counter(dict(base.regenerated))
    if base.lineages:
        ledger.lineages = list(base.lineages)
    ledger.resume = base.resume if base.HasField("resume") else None
    ledger.snapshot = base.snapshot if base.HasField("snapshot") else None
    ledger.saved_step = base.saved_step
    ledger.ended_snapshot = base.ended_snapshot
    ledger.given_up = dict(base.given_up)
    ledger.groups.cover(base.oldest_step)
    _restore_circuit(ledger, base)
    ledger.groups.recall_forgotten(base.forgotten_trained, base.forgotten_dropped)
    for stored in base.groups:
        ledger.groups.add(_from_stored(stored))
    return ledger


def _current(base: journal.LedgerBase) -> str:
    return base.lineages[-1].id if base.lineages else base.run_opened.lineage


def _restore_circuit(ledger: Ledger, base: journal.LedgerBase) -> None:
    ledger.circuit.cause = base.circuit.cause
    ledger.circuit.error = base.circuit.error
    ledger.circuit.fed_count = base.circuit_fed_count
    for streak in base.streaks:
        if streak.failures:
            ledger.circuit.streaks[streak.worker_id] = Counter(dict(streak.failures))
        if streak.ejected:
            ledger.circuit.ejected.add(streak.worker_id)


def _copied(fed: journal.HandFed) -> journal.HandFed:
    return journal.HandFed(call=fed.call, count=fed.count)


def _to_stored(table: GroupTable, group: Group) -> journal.StoredGroup:
    seen = group.to_proto()
    if group.state in SETTLED and not table.is_uncovered(group):
        # Their rows are gone; the journal tells what they were, as far back as it goes.
        seen.ClearField("sessions")
    return journal.StoredGroup(
        group=seen,
        payload=group.payload,
        fed_step=group.fed_step,
        store_incarnation=group.store_incarnation,
        history=group.history,
        drafts=group.drafts.values(),
    )


def _from_stored(stored: journal.StoredGroup) -> Group:
    seen = stored.group
    return Group(
        uid=seen.uid,
        ordinal=seen.ordinal,
        payload=stored.payload if stored.HasField("payload") else None,
        state=seen.state,
        fed_step=stored.fed_step,
        base=seen.base,
        attempt=seen.attempt,
        failures=seen.failure_count,
        expiries=seen.expiry_count,
        worker_id=seen.worker_id,
        sessions={record.session: record for record in seen.sessions},
        store_incarnation=stored.store_incarnation,
        drop_reason=seen.drop_reason,
        step=seen.step,
        lineage=seen.lineage,
        last_error=seen.last_error,
        history=list(stored.history),
        drafts={draft.session: draft for draft in stored.drafts},
    )
