"""The end of a run: when no further step can be trained, and what becomes of what is left."""

from __future__ import annotations

from headrace.replay.dropping import drop
from headrace.replay.group import FAILED, FINISHED, PENDING, RUNNING
from headrace.replay.ledger import Ledger
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import prompt_pb2


def at_end(ledger: Ledger) -> str:
    """Say why no further step can be trained; empty if one can.

    `steps_done`: all are committed. `data_ended`: the feed is over, and what is left does not fill
    the step, of which prompts in flight may still become a part.
    """
    if not ledger.feed.total_steps:
        return ""
    if ledger.committed_step >= ledger.feed.total_steps:
        return "steps_done"
    if not ledger.feed_is_over:
        return ""
    counts = ledger.groups.counts
    left = counts[FINISHED] + counts[PENDING] + counts[RUNNING]
    if ledger.circuit.is_open:
        left += counts[FAILED]
    need = ledger.open_step.open_count if ledger.open_step else ledger.batch_size
    return "data_ended" if left < need else ""


def ends_soon(ledger: Ledger) -> bool:
    """Whether the data may end within the next step: the feed has no more than a batch left."""
    return ledger.feed.ordinal_count - ledger.cursor <= ledger.batch_size


def end_run(ledger: Ledger, cause: str) -> None:
    """End the run: what is live becomes surplus."""
    left = [*ledger.groups.live(), *ledger.groups.sampled.values()]
    drop(ledger, prompt_pb2.DROP_REASON_SURPLUS, left, step=ledger.current_step)
    ledger.emit(journal.RunEnded(cause=cause))
