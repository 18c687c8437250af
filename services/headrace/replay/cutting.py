"""When the ledger may be cut for a snapshot, and how a snapshot ends."""

from __future__ import annotations

from headrace.errors import InvalidFieldError, SnapshotLostError, StepOutOfOrderError
from headrace.replay.ending import at_end
from headrace.replay.ledger import Ledger
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import resume_pb2


def begin_cut(ledger: Ledger, *, snapshot_id: str, step: int) -> None:
    """Cut the ledger here; a snapshot that was under way is given up. A repeat changes nothing.

    Raises:
        InvalidFieldError: no id.
        SnapshotLostError: that snapshot has ended; the call came late.
        StepOutOfOrderError: the step is not the last committed one, a step is open, or the run is
            being resumed.

    """
    if not snapshot_id:
        raise InvalidFieldError("snapshot_id", "is required")
    under_way = ledger.snapshot
    if under_way and under_way.snapshot_id == snapshot_id:
        return
    if snapshot_id == ledger.ended_snapshot:
        raise SnapshotLostError(f"the snapshot {snapshot_id!r} has ended")
    if step != ledger.committed_step or step < 1:
        raise StepOutOfOrderError(
            f"step {step} is not the last committed one, {ledger.committed_step}",
            current_step=str(ledger.current_step),
        )
    if ledger.is_resuming or (ledger.open_step and not at_end(ledger)):
        what = "the run is being resumed" if ledger.is_resuming else "a step is open"
        raise StepOutOfOrderError(
            f"step {step} cannot be saved: {what}", current_step=str(ledger.current_step)
        )
    if under_way:
        end_cut(
            ledger,
            snapshot_id=under_way.snapshot_id,
            committed=False,
            oldest_step=0,
            error="another snapshot has begun",
        )
    ledger.emit(journal.SnapshotBegun(snapshot_id=snapshot_id, step=step, lineage=ledger.lineage))


def cut_of(ledger: Ledger, snapshot_id: str) -> resume_pb2.SnapshotState:
    """Return the snapshot under way.

    Raises:
        SnapshotLostError: it is another one, or none.

    """
    under_way = ledger.snapshot
    if under_way is None or under_way.snapshot_id != snapshot_id:
        raise SnapshotLostError(f"the snapshot {snapshot_id!r} is not under way any more")
    return under_way


def end_cut(
    ledger: Ledger, *, snapshot_id: str, committed: bool, oldest_step: int, error: str
) -> None:
    """Note how a snapshot ended; one that is not under way is ignored."""
    under_way = ledger.snapshot
    if under_way is None or under_way.snapshot_id != snapshot_id:
        return
    ledger.emit(
        journal.SnapshotEnded(
            snapshot_id=snapshot_id,
            step=under_way.step,
            committed=committed,
            oldest_step=min(oldest_step, under_way.step) if committed else 0,
            error=error,
        )
    )
