"""How a run goes on from a checkpoint: what is kept, and when each phase is done.

    PLAN ─► STORE ─► LEDGER ─► WEIGHTS ─► REISSUE ─► WARMUP ─► OPEN

The coordinator asks for each phase; here it is decided whether the one before is done. Whatever was
trained after the step is live again, sessions made by later weights are forgotten, the cursor
stays, and what was dropped stays dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.errors import CannotResumeError, InvalidFieldError, ResumeLostError
from headrace.replay import feeding
from headrace.replay.dropping import drop, drop_stale
from headrace.replay.group import FAILED, FINISHED, PENDING, RUNNING, SAMPLED, TRAINED, Group
from headrace.replay.ledger import Ledger
from headrace.replay.progress import phase_name
from headrace.replay.settings import LedgerSettings
from headrace.trajectory.key import TrajectoryKey
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import prompt_pb2, resume_pb2

PLAN = resume_pb2.RESUME_PHASE_PLAN
WEIGHTS = resume_pb2.RESUME_PHASE_WEIGHTS
REISSUE = resume_pb2.RESUME_PHASE_REISSUE
WARMUP = resume_pb2.RESUME_PHASE_WARMUP
OPEN = resume_pb2.RESUME_PHASE_OPEN

Sessions: TypeAlias = Mapping[int, prompt_pb2.SessionRecord]


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """What a new time line is opened with."""

    lineage: str
    """Its id, never used before."""
    store_incarnation: str
    """The life of the store that runs now."""
    salvage: bool = True
    """Whether sessions made by weights up to the step are kept, and what there is of others."""
    cut: Mapping[str, Sessions] = field(default_factory=dict)
    """Sessions that the checkpoint lists, by group; those are in a store that was restored."""


def begin_resume(ledger: Ledger, *, resume_id: str, incarnation: int, step: int) -> None:
    """Begin a resume for the trainer; leasing, sampling and feeding stop. A repeat changes nothing.

    Raises:
        InvalidFieldError: no id, or a negative step.
        ResumeLostError: the trainer's resume is done; nobody would see another through.

    """
    if not resume_id or step < 0:
        raise InvalidFieldError("resume_id", "and a step are required")
    known = ledger.resume
    if known and known.resume_id == resume_id:
        return
    if known and known.trainer_incarnation == incarnation and known.phase == OPEN:
        raise ResumeLostError("the run goes on with this trainer already: the call comes late")
    ledger.emit(
        journal.ResumeBegun(resume_id=resume_id, trainer_incarnation=incarnation, step=step)
    )


def current(ledger: Ledger, resume_id: str) -> resume_pb2.ResumeState:
    """Return the resume.

    Raises:
        ResumeLostError: it is another one, none, or its trainer was succeeded.

    """
    resume = ledger.resume
    if resume is None or resume.resume_id != resume_id:
        raise ResumeLostError(f"the resume {resume_id!r} is not the run's newest")
    if resume.trainer_incarnation != ledger.trainer_incarnation:
        raise ResumeLostError(f"the trainer of the resume {resume_id!r} was succeeded by another")
    return resume


def start_over(ledger: Ledger, resume_id: str) -> None:
    """Leave everything behind: the run begins again. `roll_back` follows. A repeat changes nothing.

    The groups that there were need not be remembered, as for a roll back to step 0.

    Raises:
        ResumeLostError: another resume has begun.
        InvalidFieldError: the resume goes back to a later step.

    """
    resume = current(ledger, resume_id)
    if resume.step:
        raise InvalidFieldError("start_over", f"is for step 0, and this resume is of {resume.step}")
    if not resume.lineage:
        ledger.emit(
            journal.LedgerEmptied(
                resume_id=resume_id,
                committed_step=ledger.committed_step,
                counts=ledger.groups.to_counts(),
            )
        )


def roll_back(ledger: Ledger, resume_id: str, rollback: Rollback) -> None:
    """Go back to the resume's step and open a new time line there. A repeat changes nothing.

    Raises:
        ResumeLostError: another resume has begun.
        CannotResumeError: the ledger does not reach the step, or has forgotten what was trained
            after it.

    """
    resume = current(ledger, resume_id)
    if resume.lineage:
        return
    if resume.step > ledger.committed_step:
        raise CannotResumeError(
            f"the checkpoint is of step {resume.step}, and the ledger has committed "
            f"{ledger.committed_step} only: its journal is not this run's, or an older copy of it"
        )
    untrained = ledger.groups.trained_after(resume.step)
    if len(untrained) != (ledger.committed_step - resume.step) * ledger.batch_size:
        raise CannotResumeError(
            f"prompts trained between step {resume.step} and {ledger.committed_step} are forgotten "
            f"(the oldest checkpoint kept is of step {ledger.groups.covered_step}): go back to a "
            "newer checkpoint, or start a new run"
        )
    ledger.emit(
        journal.LineageOpened(
            resume_id=resume_id,
            lineage=resume_pb2.Lineage(
                id=rollback.lineage, parent=ledger.lineage, fork_step=resume.step
            ),
            store_incarnation=rollback.store_incarnation,
            groups=_reopened(ledger, rollback, resume.step, untrained),
            drafts_kept=rollback.salvage,
        )
    )


def check_cut(ledger: Ledger, base: journal.LedgerBase, step: int) -> None:
    """Make sure that a cut is of this very past: versions of a line that was left repeat.

    Raises:
        CannotResumeError: it is of another run, step or time line.

    """
    line = base.lineages[-1].id if base.lineages else base.run_opened.lineage
    ends = {each.parent: each.fork_step for each in ledger.lineages[1:]}
    known = line == ledger.lineage or step <= ends.get(line, -1)
    if base.run_opened.run_id != ledger.run_id or base.committed_step != step or not known:
        raise CannotResumeError(
            f"the ledger of the checkpoint is of run {base.run_opened.run_id}, line {line}, step "
            f"{base.committed_step}, which is not step {step} of what this run goes on from"
        )


def _reopened(
    ledger: Ledger, rollback: Rollback, step: int, untrained: Sequence[Group]
) -> Iterator[journal.ReopenedGroup]:
    """Give every group that is not the same on the new time line."""
    for group in [*untrained, *ledger.groups.live(), *ledger.groups.sampled.values()]:
        if group.state == FAILED and not ledger.circuit.is_open:
            continue  # It is dropped before the window fills up.
        kept = _kept(ledger, rollback, step, group)
        base = _base(ledger, step, group, kept)
        moves = group.state in (RUNNING, SAMPLED, TRAINED, FAILED)
        moves |= bool(kept) and group.store_incarnation != rollback.store_incarnation
        if moves or base != group.base or kept != group.sessions:
            yield journal.ReopenedGroup(
                uid=group.uid, base=base, sessions=[kept[number] for number in sorted(kept)]
            )


def _kept(ledger: Ledger, rollback: Rollback, step: int, group: Group) -> Sessions:
    """Keep what weights up to the step have made, where the store still has it.

    Along a time line versions only grow, so that the number alone says whether a session's weights
    are of the line that goes on.
    """
    if not rollback.salvage:
        return {}
    there = group.sessions
    if group.store_incarnation != rollback.store_incarnation:
        there = dict(rollback.cut.get(group.uid, {}))
    return {number: each for number, each in there.items() if each.max_version <= step}


def _base(ledger: Ledger, step: int, group: Group, kept: Sessions) -> int:
    if ledger.basis == "fed":
        # Fed after the step, or not generated yet: it counts as fed now.
        return min(group.base, step + 1) if kept else step + 1
    return min(each.min_version for each in kept.values()) + 1 if kept else 0


def advance(
    ledger: Ledger,
    settings: LedgerSettings,
    *,
    resume_id: str,
    phase: resume_pb2.ResumePhase.ValueType,
    confirmed: Collection[tuple[str, int]],
) -> str:
    """Begin the next phase, if the one before is done; say what it waits for, empty if nothing.

    Args:
        ledger: Is changed.
        settings: What is stale.
        resume_id: The resume.
        phase: The phase that is to begin; one that has begun is not begun again.
        confirmed: Weights, (lineage, version), that a worker who is there has loaded.

    Raises:
        ResumeLostError: another resume has begun.
        InvalidFieldError: it is not the next phase.

    """
    resume = current(ledger, resume_id)
    if phase <= resume.phase:
        return ""
    if phase != resume.phase + 1 or phase > OPEN:
        raise InvalidFieldError("phase", f"must be the one after {phase_name(resume.phase)}")
    blocked_by = _not_done(ledger, settings, resume, confirmed)
    if blocked_by:
        return blocked_by
    if phase == WARMUP:
        _drop_unusable(ledger, settings)  # First: a journal that is torn here does it again.
    ledger.emit(journal.ResumeAdvanced(resume_id=resume_id, phase=phase))
    return ""


def _not_done(
    ledger: Ledger,
    settings: LedgerSettings,
    resume: resume_pb2.ResumeState,
    confirmed: Collection[tuple[str, int]],
) -> str:
    """Say what the resume's phase still waits for."""
    if resume.phase == resume_pb2.RESUME_PHASE_LEDGER and not resume.lineage:
        return "the ledger to be rolled back"
    if resume.phase == WEIGHTS:
        wanted = (resume.lineage, resume.step)
        if wanted not in ledger.weights:
            return f"the trainer to publish weights {resume.lineage} v{resume.step}"
        if wanted not in confirmed:
            return f"a worker to load weights {resume.lineage} v{resume.step}"
    if resume.phase == WARMUP:
        wanted_count = feeding.demand(ledger, settings)
        if wanted_count:
            return f"the feeder to register {wanted_count} prompts"
    return ""


def _drop_unusable(ledger: Ledger, settings: LedgerSettings) -> None:
    """Drop what cannot be trained on at the resumed step, so that it holds no slot."""
    failed = list(ledger.groups.failed.values())
    drop(ledger, prompt_pb2.DROP_REASON_FAILED, failed, step=ledger.current_step)
    if settings.drops:
        drop_stale(ledger, settings, ledger.current_step, prompt_pb2.DROP_REASON_STALE_AT_RESTORE)


def report_lost(ledger: Ledger, resume_id: str, lost: Sequence[TrajectoryKey]) -> int:
    """Forget sessions whose trajectories the store does not have; count their groups.

    Keys that no live group records are ignored.

    Raises:
        ResumeLostError: another resume has begun.

    """
    current(ledger, resume_id)
    known = list(dict.fromkeys((key.uid, key.session) for key in lost if _is_recorded(ledger, key)))
    if known:
        ledger.emit(
            journal.RowsLost(uids=[uid for uid, _ in known], sessions=[each for _, each in known])
        )
    return len({uid for uid, _ in known})


def _is_recorded(ledger: Ledger, key: TrajectoryKey) -> bool:
    group = ledger.groups.get(key.uid)
    if group is None or group.state not in (PENDING, FINISHED):
        return False
    record = group.sessions.get(key.session)
    return record is not None and (record.lineage, record.attempt) == (key.lineage, key.attempt)
