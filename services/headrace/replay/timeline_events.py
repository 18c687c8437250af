"""What the events of snapshots, resumes and time lines change.

    SnapshotBegun ─► SnapshotEnded
    ResumeBegun ─► ResumeAdvanced … ─► [LedgerRestored] ─► LineageOpened ─► RowsLost … ─► OPEN
                                       [LedgerEmptied]

Decisions are in `headrace.replay.{cutting,resuming}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.replay.draft_events import cut_drafts
from headrace.replay.group import FINISHED, PENDING, RUNNING, TRAINED
from headrace.replay.progress import CommitMemo
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import resume_pb2

if TYPE_CHECKING:
    from headrace.replay.group import Group
    from headrace.replay.ledger import Ledger


def give_up_snapshot(ledger: Ledger) -> None:
    """Note that the snapshot under way, if any, does not come to its end."""
    if ledger.snapshot is not None:
        ledger.given_up[ledger.snapshot.step] = ledger.snapshot.snapshot_id
    ledger.snapshot = None


def _on_snapshot_begun(ledger: Ledger, event: journal.SnapshotBegun) -> None:
    ledger.given_up.pop(event.step, None)  # Its directory is made anew.
    ledger.snapshot = resume_pb2.SnapshotState(
        snapshot_id=event.snapshot_id, step=event.step, position=ledger.position
    )


def _on_snapshot_ended(ledger: Ledger, event: journal.SnapshotEnded) -> None:
    ledger.ended_snapshot = event.snapshot_id
    if event.committed:
        ledger.snapshot = None
        ledger.saved_step = event.step
        ledger.groups.cover(event.oldest_step)
        for step in [step for step in ledger.given_up if step < event.oldest_step]:
            del ledger.given_up[step]
    else:
        give_up_snapshot(ledger)


def _on_resume_begun(ledger: Ledger, event: journal.ResumeBegun) -> None:
    give_up_snapshot(ledger)
    ledger.resume = resume_pb2.ResumeState(
        resume_id=event.resume_id,
        phase=resume_pb2.RESUME_PHASE_PLAN,
        trainer_incarnation=event.trainer_incarnation,
        step=event.step,
    )


def _on_resume_advanced(ledger: Ledger, event: journal.ResumeAdvanced) -> None:
    assert ledger.resume
    ledger.resume.phase = event.phase


def _on_ledger_restored(ledger: Ledger, event: journal.LedgerRestored) -> None:
    from headrace.replay.base import from_base  # it builds ledgers

    restored = from_base(event.base)
    assert ledger.resume
    ledger.resume.restored = True
    kept = {name: getattr(ledger, name) for name in _OF_THIS_JOURNAL}
    fenced = ledger.former_trainers | restored.former_trainers | {restored.trainer_id}
    vars(ledger).update(vars(restored) | kept)
    ledger.former_trainers = fenced - {ledger.trainer_id, ""}
    ledger.snapshot = None  # It was under way when the ledger was cut; this is what it made.
    for group in ledger.groups:
        group.history = [ledger.position]


_OF_THIS_JOURNAL = (
    "position",
    "resume",
    "trainer_id",
    "trainer_incarnation",
    "store_incarnation",
    "store_capacity",
    "temperature",
    "given_up",
    "_outbox",
)
"""What a restored ledger keeps of the one whose place it takes."""


def _on_ledger_emptied(ledger: Ledger, event: journal.LedgerEmptied) -> None:
    opened = journal.RunOpened(
        run_id=ledger.run_id,
        n=ledger.n,
        train_batch_size=ledger.batch_size,
        basis=ledger.basis,
    )
    kept = {name: getattr(ledger, name) for name in (*_OF_THIS_JOURNAL, *_OF_THIS_RUN)}
    vars(ledger).update(vars(type(ledger)(opened)) | kept)


_OF_THIS_RUN = ("lineages", "former_trainers", "ended_snapshot", "feed", "paused")
"""What an emptied ledger keeps beside that: who is fenced, the data, and a user's word."""


def _on_lineage_opened(ledger: Ledger, event: journal.LineageOpened) -> None:
    assert ledger.resume
    line = resume_pb2.Lineage()
    line.CopyFrom(event.lineage)
    cut_drafts(ledger, line.fork_step if event.drafts_kept else None)
    ledger.resume.lineage, ledger.resume.parent = line.id, line.parent
    for change in event.groups:
        with ledger.groups.changing(ledger.groups[change.uid]) as group:
            ledger.resume.untrained_count += group.state == TRAINED
            had_work = group.state == RUNNING or bool(group.sessions)
            _reopen(ledger, group, change, event.store_incarnation)
            ledger.regenerated["rolled_back"] += had_work and group.state == PENDING
    ledger.lineages.append(line)
    ledger.committed_step = line.fork_step
    ledger.last_commit = CommitMemo(line.fork_step)
    ledger.open_step = None
    ledger.filtered_in_step = 0
    ledger.ended_by = ""
    ledger.saved_step = line.fork_step  # Its checkpoint is what the run goes on from.
    ledger.store_incarnation = event.store_incarnation
    ledger.weights = {
        key: weights for key, weights in ledger.weights.items() if key[1] <= line.fork_step
    }
    ledger.latest_weights = None
    ledger.resume.counts.CopyFrom(ledger.groups.to_counts())
    _count_reissued(ledger)


def _reopen(
    ledger: Ledger, group: Group, change: journal.ReopenedGroup, store_incarnation: str
) -> None:
    group.sessions = {record.session: record for record in change.sessions}
    for session in group.sessions:  # A checkpoint may have what was begun anew since.
        group.drafts.pop(session, None)
    group.state = FINISHED if len(group.sessions) == ledger.n else PENDING
    group.base = change.base
    group.store_incarnation = store_incarnation
    group.worker_id, group.lineage, group.step = "", "", 0
    ledger.touch(group)


def _on_rows_lost(ledger: Ledger, event: journal.RowsLost) -> None:
    for uid, session in zip(event.uids, event.sessions, strict=True):
        with ledger.groups.changing(ledger.groups[uid]) as group:
            # What was PENDING was counted when its time line began.
            ledger.regenerated["rolled_back"] += group.state == FINISHED
            group.sessions.pop(session, None)
            ledger.to_pending(group)
            ledger.touch(group)
    _count_reissued(ledger)


def _count_reissued(ledger: Ledger) -> None:
    assert ledger.resume
    pending = ledger.groups.pending
    ledger.resume.reissued_count = len(pending)
    ledger.resume.sessions_kept_count = sum(len(group.sessions) for group in pending)


HANDLERS: Mapping[str, Callable[[Ledger, Any], None]] = {
    "snapshot_begun": _on_snapshot_begun,
    "snapshot_ended": _on_snapshot_ended,
    "resume_begun": _on_resume_begun,
    "resume_advanced": _on_resume_advanced,
    "ledger_restored": _on_ledger_restored,
    "ledger_emptied": _on_ledger_emptied,
    "lineage_opened": _on_lineage_opened,
    "rows_lost": _on_rows_lost,
}
"""By the event's name."""
