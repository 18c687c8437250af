"""What the trainer does to the ledger: register, publish, sample, return, commit."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from headrace.errors import (
    InvalidFieldError,
    StepNotCompleteError,
    StepOutOfOrderError,
    TrainerFencedError,
    WeightsConflictError,
)
from headrace.replay.dropping import drop_stale
from headrace.replay.ending import at_end, end_run
from headrace.replay.group import FINISHED, SAMPLED, Group
from headrace.replay.ledger import Ledger
from headrace.replay.progress import OpenStep, being_resumed
from headrace.replay.settings import LedgerSettings
from headrace.replay.staleness import blocks_sampling
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import prompt_pb2, replay_pb2


@dataclass(frozen=True)
class Sample:
    """What came of asking for a part of a batch."""

    status: replay_pb2.SampleStatus.ValueType
    groups: Sequence[Group] = ()
    blocked_by: str = ""


def register_trainer(ledger: Ledger, trainer_id: str) -> None:
    """Make it the run's trainer; what an earlier one had sampled returns.

    Raises:
        InvalidFieldError: no id.
        TrainerFencedError: it was succeeded by a newer trainer.

    """
    if not trainer_id:
        raise InvalidFieldError("trainer_id", "is required")
    if trainer_id == ledger.trainer_id:
        return
    if trainer_id in ledger.former_trainers:
        raise TrainerFencedError("a newer trainer has registered", trainer_id=trainer_id)
    before = ledger.trainer_incarnation or _first_incarnation(ledger)
    ledger.emit(journal.TrainerRegistered(trainer_id=trainer_id, incarnation=before + 1))


def _first_incarnation(ledger: Ledger) -> int:
    """Give the number that a journal's trainers are counted from.

    Each journal has its own: a trainer that outlived a journal which was lost is not taken for one
    of the next.
    """
    return (zlib.crc32(ledger.lineages[0].id.encode()) & 0xFFFFFF) * 1000


def check_trainer(ledger: Ledger, incarnation: int) -> None:
    """Refuse every trainer but the newest.

    Raises:
        TrainerFencedError: a newer one has registered, or none has.

    """
    if incarnation != ledger.trainer_incarnation or not ledger.trainer_id:
        raise TrainerFencedError(
            f"trainer incarnation {incarnation} is not the current one, "
            f"{ledger.trainer_incarnation}"
        )


def publish_weights(ledger: Ledger, weights: prompt_pb2.PublishedWeights) -> int:
    """Announce weights; the same again changes nothing.

    Returns:
        The oldest version whose files may still be needed: workers load the newest, and one may
        be loading the version before it.

    Raises:
        InvalidFieldError: a foreign lineage, or no place or checksum.
        WeightsConflictError: known with another checksum, or older than the newest.

    """
    if weights.id.lineage != ledger.lineage or not weights.uri or not weights.checksum:
        raise InvalidFieldError("weights", "need this run's lineage, a uri and a checksum")
    known = ledger.weights.get((weights.id.lineage, weights.id.version))
    latest = ledger.latest_weights
    if known is not None and known.checksum != weights.checksum:
        raise WeightsConflictError(
            f"version {weights.id.version} was published with another checksum"
        )
    if known is None:
        if latest is not None and weights.id.version <= latest.id.version:
            raise WeightsConflictError(
                f"version {weights.id.version} comes after {latest.id.version}"
            )
        if not 0 <= weights.id.version <= ledger.committed_step:
            raise WeightsConflictError(
                f"version {weights.id.version} is published before step {weights.id.version} is "
                "committed"
            )
        ledger.emit(journal.WeightsPublished(weights=weights))
    return max(0, weights.id.version - 1)


def sample(
    ledger: Ledger, settings: LedgerSettings, *, step: int, part: int, part_count: int
) -> Sample:
    """Hand out a part of the step's batch if it is ready. Idempotent on (step, part).

    Raises:
        InvalidFieldError, StepOutOfOrderError: as the RPC says.

    """
    if ledger.ended_by:
        return Sample(replay_pb2.SAMPLE_STATUS_DATA_ENDED)
    if not ledger.feed.total_steps:
        return Sample(replay_pb2.SAMPLE_STATUS_WAITING, blocked_by="the feeder to open the feed")
    if ledger.resume and ledger.is_resuming:
        return Sample(replay_pb2.SAMPLE_STATUS_WAITING, blocked_by=being_resumed(ledger.resume))
    may_open = ledger.open_step is None and step == ledger.current_step
    if may_open and (cause := at_end(ledger)):
        return _at_end(ledger, settings, cause)
    opened = _open(ledger, step=step, part=part, part_count=part_count)
    need = opened.quota - len(opened.parts[part])
    if not need:
        return Sample(replay_pb2.SAMPLE_STATUS_READY, _groups(ledger, opened.parts[part]))
    if cause := at_end(ledger):
        return _at_end(ledger, settings, cause)
    counts = ledger.groups.counts
    if counts[FINISHED] < need:
        blocked_by = f"{need - counts[FINISHED]} more finished groups of the {need} this part needs"
        if ledger.circuit.is_open:
            blocked_by += f", and the circuit is open: {ledger.circuit.error}{_way_out(ledger)}"
        return Sample(replay_pb2.SAMPLE_STATUS_WAITING, blocked_by=blocked_by)
    oldest = next(iter(ledger.groups.running), None)
    if oldest and blocks_sampling(oldest.base, step, settings):
        blocked_by = f"{oldest.uid} is running and has reached span {settings.threshold} (wait)"
        return Sample(replay_pb2.SAMPLE_STATUS_WAITING, blocked_by=blocked_by)
    uids = [group.uid for group in islice(ledger.groups.finished, need)]
    ledger.emit(journal.BatchSampled(lineage=ledger.lineage, step=step, part=part, uids=uids))
    return Sample(replay_pb2.SAMPLE_STATUS_READY, _groups(ledger, opened.parts[part]))


def _way_out(ledger: Ledger) -> str:
    """Say how a user ends the wait for an open circuit, if no fresh prompt can."""
    if ledger.circuit.cause == replay_pb2.CIRCUIT_CAUSE_FILTER_BUDGET:
        return " (nothing is leased until `headrace circuit close`)"
    if not ledger.feed_is_over:
        return ""
    return (
        " (no fresh prompt is left to probe with: once its cause is mended `headrace circuit close` "
        "has all tried again, and `headrace drop UID` gives up a prompt that nobody can do)"
    )


def _at_end(ledger: Ledger, settings: LedgerSettings, cause: str) -> Sample:
    """Say that there is no more; without checkpoints nothing has to be saved, and that is it."""
    if not settings.saves:
        end_run(ledger, cause)
    return Sample(replay_pb2.SAMPLE_STATUS_DATA_ENDED)


def finish(ledger: Ledger) -> int:
    """End the run as its trainer asks; count what became surplus. A repeat changes nothing.

    Raises:
        StepNotCompleteError: there are steps to be trained.

    """
    if ledger.ended_by:
        return 0
    cause = at_end(ledger)
    if not cause or ledger.is_resuming:
        raise StepNotCompleteError(
            f"the run is not at its end: step {ledger.current_step} of {ledger.feed.total_steps} is "
            "to be trained"
        )
    before = ledger.groups.dropped[prompt_pb2.DROP_REASON_SURPLUS]
    end_run(ledger, cause)
    return ledger.groups.dropped[prompt_pb2.DROP_REASON_SURPLUS] - before


def _groups(ledger: Ledger, uids: Sequence[str]) -> list[Group]:
    return [ledger.groups[uid] for uid in uids]


def _open(ledger: Ledger, *, step: int, part: int, part_count: int) -> OpenStep:
    if step != ledger.current_step:
        raise StepOutOfOrderError(
            f"step {step} is not the current one", current_step=str(ledger.current_step)
        )
    if ledger.open_step is None:
        if part_count < 1 or ledger.batch_size % part_count:
            raise InvalidFieldError(
                "part_count", f"{part_count} does not divide the batch of {ledger.batch_size}"
            )
        if part:
            raise StepOutOfOrderError(f"part 0 of step {step} comes first", next_part="0")
        ledger.emit(
            journal.StepOpened(step=step, group_count=ledger.batch_size, part_count=part_count)
        )
    opened = ledger.open_step
    assert opened
    if part_count != len(opened.parts):
        raise InvalidFieldError("part_count", f"step {step} was opened with {len(opened.parts)}")
    if not 0 <= part < part_count:
        raise InvalidFieldError("part", f"must be 0 to {part_count - 1}")
    incomplete = [i for i, uids in enumerate(opened.parts) if len(uids) < opened.quota]
    if incomplete and part > incomplete[0]:
        raise StepOutOfOrderError(
            f"part {incomplete[0]} of step {step} comes first", next_part=str(incomplete[0])
        )
    return opened


def return_groups(
    ledger: Ledger,
    *,
    step: int,
    part: int,
    uids: Sequence[str],
    attempts: Sequence[int] = (),
    error: str,
) -> int:
    """Take back groups of a part that the trainer cannot read; count those that are back.

    A repeat may come when a group was made and sampled again: under another attempt, so it stays.
    A trainer that does not know attempts names none, or 0, and means whatever the part holds.

    Raises:
        InvalidFieldError: not as many attempts as groups.
        StepOutOfOrderError: the step is not open.

    """
    if attempts and len(attempts) != len(uids):
        raise InvalidFieldError("attempts", "must be one per group, or none")
    opened = ledger.open_step
    if opened is None or opened.step != step or not 0 <= part < len(opened.parts):
        raise StepOutOfOrderError(
            f"part {part} of step {step} is not open", current_step=str(ledger.current_step)
        )
    asked = dict(zip(uids, attempts or [0] * len(uids), strict=True))
    present = [
        uid
        for uid, attempt in asked.items()
        if uid in opened.parts[part] and attempt in (0, ledger.groups[uid].attempt)
    ]
    before = [uid for uid, attempt in asked.items() if _was_returned(ledger, uid, attempt)]
    if present:
        ledger.emit(journal.GroupsReturned(step=step, part=part, uids=present, error=error))
    return len(present) + len(before)


def _was_returned(ledger: Ledger, uid: str, attempt: int) -> bool:
    """Whether a group that was sampled under an attempt is not any more."""
    group = ledger.groups.get(uid)
    return attempt > 0 and group is not None and (group.state, group.attempt) != (SAMPLED, attempt)


def commit_step(ledger: Ledger, settings: LedgerSettings, step: int) -> None:
    """Make what the step sampled TRAINED, move on, and drop what is stale then.

    Raises:
        StepOutOfOrderError: it is neither the open step nor the last committed one.
        StepNotCompleteError: parts are still to be sampled.

    """
    if step == ledger.committed_step and step:
        return
    opened = ledger.open_step
    if opened is None or opened.step != step:
        raise StepOutOfOrderError(f"step {step} is not open", current_step=str(ledger.current_step))
    if opened.open_count:
        raise StepNotCompleteError(
            f"{opened.open_count} groups of step {step} are still to be sampled"
        )
    ledger.emit(journal.StepCommitted(lineage=ledger.lineage, step=step))
    if settings.drops:
        drop_stale(ledger, settings, ledger.current_step)
    if step == ledger.feed.total_steps and not settings.saves:
        end_run(ledger, "steps_done")
