"""What the events of the trainer change: weights, and the steps that it opens and commits.

Decisions are in `headrace.replay.sampling`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.replay.group import FINISHED, SAMPLED, TRAINED
from headrace.replay.progress import CommitMemo, OpenStep
from headrace.replay.timeline_events import give_up_snapshot
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import prompt_pb2

if TYPE_CHECKING:
    from headrace.replay.ledger import Ledger


def _on_trainer_registered(ledger: Ledger, event: journal.TrainerRegistered) -> None:
    if ledger.trainer_id:
        ledger.former_trainers.add(ledger.trainer_id)
    ledger.trainer_id = event.trainer_id
    ledger.trainer_incarnation = event.incarnation
    give_up_snapshot(ledger)
    ledger.open_step = None
    for sampled in list(ledger.groups.sampled.values()):
        with ledger.groups.changing(sampled) as group:
            group.step = 0
            group.state = FINISHED
            if group.store_incarnation != ledger.store_incarnation:
                ledger.to_pending(group)
                ledger.forget_sessions(group)
                ledger.regenerated["store_lost"] += 1
            ledger.touch(group)


def _on_weights_published(ledger: Ledger, event: journal.WeightsPublished) -> None:
    weights = prompt_pb2.PublishedWeights()
    weights.CopyFrom(event.weights)
    ledger.weights[weights.id.lineage, weights.id.version] = weights
    ledger.latest_weights = weights


def _on_step_opened(ledger: Ledger, event: journal.StepOpened) -> None:
    parts: list[list[str]] = [[] for _ in range(event.part_count)]
    ledger.open_step = OpenStep(event.step, event.group_count, parts)


def _on_batch_sampled(ledger: Ledger, event: journal.BatchSampled) -> None:
    assert ledger.open_step
    ledger.open_step.parts[event.part].extend(event.uids)
    for uid in event.uids:
        with ledger.groups.changing(ledger.groups[uid]) as group:
            group.state = SAMPLED
            group.step = event.step
            ledger.touch(group)


def _on_groups_returned(ledger: Ledger, event: journal.GroupsReturned) -> None:
    for uid in event.uids:
        leave_part(ledger, uid)
        with ledger.groups.changing(ledger.groups[uid]) as group:
            group.step = 0
            group.last_error = event.error
            ledger.to_pending(group)
            ledger.forget_sessions(group)
            ledger.touch(group)
    ledger.regenerated["store_lost"] += len(event.uids)


def _on_step_committed(ledger: Ledger, event: journal.StepCommitted) -> None:
    trained = list(ledger.groups.sampled.values())
    for sampled in trained:
        with ledger.groups.changing(sampled) as group:
            group.state = TRAINED
            group.lineage = event.lineage
            ledger.touch(group)
    ledger.committed_step = event.step
    ledger.open_step = None
    ledger.filtered_in_step = 0
    ledger.last_commit = CommitMemo(event.step, len(trained), position=ledger.position)


def leave_part(ledger: Ledger, uid: str) -> None:
    """Take a group out of the part of the open step that it was sampled for."""
    assert ledger.open_step
    for part in ledger.open_step.parts:
        if uid in part:
            part.remove(uid)


HANDLERS: Mapping[str, Callable[[Ledger, Any], None]] = {
    "trainer_registered": _on_trainer_registered,
    "weights_published": _on_weights_published,
    "step_opened": _on_step_opened,
    "batch_sampled": _on_batch_sampled,
    "groups_returned": _on_groups_returned,
    "step_committed": _on_step_committed,
}
"""By the event's name."""
