"""What a run goes on from. Pure: the checkpoints it chooses from were looked at before.

                         journal there                       journal lost (`fresh`)
    no checkpoint        roll back to step 0                 begin (*)
    checkpoints          roll back to the newest valid       restore the newest valid one
    all damaged          refused                             refused
    over, and saved      finished                            -
    older than one       refused                             -

    resume.path          roll back to it, over or not        restore it
    a new lineage        start over                          start over

    (*) back to step 0, if a resume has begun that nobody sees through any more: nothing is leased
        before the ledger has come to the end of one

Only checkpoints of the run's own time line count. One that the journal should know, and does not,
says that the journal is an older copy: the run would train again, in silence, what it had trained.
What tells that there was a checkpoint once, even if nothing of it can be read: a manifest, the
pointer, or the ledger's word. So a run never begins again from scratch in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.checkpoint.directory import Found
from headrace.checkpoint.lines import is_on_line
from headrace.checkpoint.manifest import Manifest
from headrace.config.checkpoint import ResumeConfig
from headrace.config.wish import AUTO, is_fulfilled, wish_of
from headrace.errors import CannotResumeError, NoValidCheckpointError
from headrace.v1 import checkpoint_pb2 as pb
from headrace.v1 import replay_pb2, resume_pb2, store_pb2

BEGIN: Final = pb.RESUME_ACTION_BEGIN
ROLL_BACK: Final = pb.RESUME_ACTION_ROLL_BACK
RESTORE: Final = pb.RESUME_ACTION_RESTORE
FINISHED: Final = pb.RESUME_ACTION_FINISHED
START_OVER: Final = pb.RESUME_ACTION_START_OVER
KEEP: Final = pb.STORE_ACTION_KEEP
RELOAD: Final = pb.STORE_ACTION_RESTORE
REGENERATE: Final = pb.STORE_ACTION_REGENERATE
UNKNOWN: Final = resume_pb2.RESUME_PHASE_UNSPECIFIED
OPEN: Final = resume_pb2.RESUME_PHASE_OPEN


@dataclass(frozen=True)
class Plan:
    """What a resume does."""

    action: pb.ResumeAction.ValueType
    committed_step: int
    checkpoint: Found | None = None
    """None: the run goes back to its beginning, or there is nothing to do."""
    store: pb.StoreAction.ValueType = KEEP
    salvage: bool = True
    """Whether finished sessions are kept."""
    skipped: tuple[Found, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """The step that it goes back to."""
        return self.checkpoint.step if self.checkpoint else 0

    @property
    def manifest(self) -> Manifest | None:
        """The checkpoint's."""
        return self.checkpoint.manifest if self.checkpoint else None

    def message(self) -> pb.ResumePlan:
        """Give it as the API has it."""
        plan = pb.ResumePlan(
            action=self.action,
            step=self.step,
            committed_step=self.committed_step,
            store=self.store,
            skipped=[found.message() for found in self.skipped],
            notes=self.notes,
        )
        if self.checkpoint is not None:
            plan.checkpoint.CopyFrom(self.checkpoint.message(is_latest=True))
        return plan


@dataclass(frozen=True)
class Choice:
    """Checkpoints to try, the best first; the first whole one is taken."""

    action: pb.ResumeAction.ValueType
    candidates: tuple[Found, ...] = ()
    skipped: tuple[Found, ...] = ()
    had_checkpoint: bool = False
    """There was one once: if no candidate is whole, nothing is begun from scratch."""
    notes: tuple[str, ...] = field(default=())


def choose(
    status: replay_pb2.GetReplayStatusResponse,
    found: Sequence[Found],
    resume: ResumeConfig,
    *,
    run_id: str,
    latest: int | None,
    named: Found | None,
    saves: bool,
) -> Choice:
    """Say what can be gone on from.

    Args:
        status: Where the ledger is.
        found: What lies in the storage, newest first, abandoned lines left out.
        resume: The configuration.
        run_id: The run.
        latest: The step that the pointer names.
        named: What `resume.path` names, if it does.
        saves: Whether the run makes checkpoints.

    Raises:
        CannotResumeError: the mode does not allow it, or the storage is another run's.

    """
    wish = wish_of(resume)
    if wish != AUTO and is_fulfilled(wish, status.resume):
        if named is not None and named.manifest and named.step not in [one.step for one in found]:
            found = sorted([*found, named], key=lambda one: -one.step)
        chosen = _automatic(status, found, run_id=run_id, latest=latest, saves=saves)
        note = f"resume.mode: {resume.mode} was done already; the run goes on from there"
        return replace(chosen, notes=(*chosen.notes, note))
    if resume.mode == "disable":
        return _anew(status, found, resume)
    if resume.mode == "path":
        assert named is not None
        return _named(status, named, run_id=run_id)
    return _automatic(status, found, run_id=run_id, latest=latest, saves=saves)


def _automatic(
    status: replay_pb2.GetReplayStatusResponse,
    found: Sequence[Found],
    *,
    run_id: str,
    latest: int | None,
    saves: bool,
) -> Choice:
    if status.ended and (not saves or _is_saved(status, found, run_id)):
        return Choice(FINISHED)
    ours = [one for one in found if one.manifest is None or one.manifest.run_id == run_id]
    foreign = [one for one in found if one not in ours]
    unreadable = [one for one in ours if one.manifest is None]
    if status.fresh:
        return _without_journal(status, ours, foreign, unreadable, run_id=run_id, latest=latest)
    _check_age(status, ours)
    on_line: list[Found] = []
    elsewhere: list[Found] = []
    for one in ours:
        if one.manifest is not None:
            suits = one.step <= status.committed_step
            suits = suits and is_on_line(one.manifest.lineage, one.step, status.lineages)
            (on_line if suits else elsewhere).append(one)
    skipped = [
        *unreadable,
        *_why(foreign, "is of another run"),
        *_why(elsewhere, "is not of this time line"),
    ]
    damaged = [one for one in unreadable if not one.unfinished]
    return Choice(
        ROLL_BACK,
        tuple(on_line),
        tuple(skipped),
        had_checkpoint=bool(status.saved_step or on_line or damaged),
    )


def _check_age(status: replay_pb2.GetReplayStatusResponse, ours: Iterable[Found]) -> None:
    """See that no checkpoint is of what would come after the journal's end.

    Raises:
        CannotResumeError: the journal is an older copy.

    """
    if status.resume.restored and not status.resume.lineage:
        return  # a restore that was cut short: positions are of two journals
    known = [line.id for line in status.lineages]
    for one in ours:
        if one.manifest is None:
            continue
        lines = [line.id for line in one.manifest.lineages]
        follows = len(lines) > len(known) or one.manifest.position > status.position
        if known and lines[: len(known)] == known and follows:
            raise CannotResumeError(
                f"{one.uri} was saved at step {one.step} of the time line {one.manifest.lineage}, "
                f"and the journal ends at step {status.committed_step} of {status.lineage}, before "
                "that: it is an older copy, or has lost what it acknowledged. Bring the newer one "
                "back, or empty it (journal.redis_url; a file journal's folder is `journal` in the "
                "run directory), and the run goes on from its newest checkpoint"
            )


def _is_saved(
    status: replay_pb2.GetReplayStatusResponse, found: Sequence[Found], run_id: str
) -> bool:
    """Whether the last step is in a checkpoint. A restored ledger may not know of its own."""
    if status.saved_step == status.committed_step:
        return True
    return any(
        one.step == status.committed_step
        and one.manifest is not None
        and one.manifest.run_id == run_id
        and is_on_line(one.manifest.lineage, one.step, status.lineages)
        for one in found
    )


def _begin(status: replay_pb2.GetReplayStatusResponse, *, skipped: Sequence[Found] = ()) -> Choice:
    """Begin; where a trainer has left a resume, only going back to the beginning ends that."""
    is_resuming = status.resume.phase not in (UNKNOWN, OPEN)
    return Choice(ROLL_BACK if is_resuming else BEGIN, skipped=tuple(skipped))


def _without_journal(
    status: replay_pb2.GetReplayStatusResponse,
    ours: Sequence[Found],
    foreign: Sequence[Found],
    unreadable: Sequence[Found],
    *,
    run_id: str,
    latest: int | None,
) -> Choice:
    readable = [one for one in ours if one.manifest is not None]
    if foreign:
        other = foreign[0]
        assert other.manifest is not None
        raise CannotResumeError(
            f"{other.uri} is a checkpoint of run {other.manifest.run_id}, and this is run "
            f"{run_id}: give another checkpoint.storage, or go on with that run by "
            f"run.run_id={other.manifest.run_id}"
        )
    had = bool(readable or latest or any(not one.unfinished for one in unreadable))
    if not had:
        return _begin(status, skipped=unreadable)
    # The line that was forked most often is the newest; the others are its past, or left behind.
    head = max(readable, key=lambda one: (_depth(one), one.step), default=None)
    lineages = head.manifest.lineages if head and head.manifest else ()
    on_line = [
        one
        for one in readable
        if one.manifest and is_on_line(one.manifest.lineage, one.step, lineages)
    ]
    left = _why([one for one in readable if one not in on_line], "is not of the newest time line")
    return Choice(RESTORE, tuple(on_line), (*unreadable, *left), had_checkpoint=True)


def _depth(found: Found) -> int:
    return len(found.manifest.lineages) if found.manifest else 0


def _anew(
    status: replay_pb2.GetReplayStatusResponse, found: Sequence[Found], resume: ResumeConfig
) -> Choice:
    has_begun = not status.fresh or not all(one.unfinished for one in found)
    if "new_lineage" in resume.allow:
        return Choice(START_OVER, notes=(_left_behind(status, found),) if has_begun else ())
    if not has_begun:
        return _begin(status)
    there = "there are checkpoints" if status.fresh else "there is a journal"
    raise CannotResumeError(
        f"resume.mode: disable begins from scratch, and {there} of this run: give "
        "another run.run_dir, or leave behind what there is with resume.allow=[new_lineage]"
    )


def _left_behind(status: replay_pb2.GetReplayStatusResponse, found: Sequence[Found]) -> str:
    steps = ", ".join(str(one.step) for one in found) or "none"
    return (
        f"resume.mode: disable: the run begins again; of the time line {status.lineage} are left "
        f"behind {status.committed_step} trained steps, {status.counts.fed} prompts, and the "
        f"checkpoints (of steps: {steps}), which are moved aside"
    )


def _named(status: replay_pb2.GetReplayStatusResponse, named: Found, *, run_id: str) -> Choice:
    if named.manifest is None or named.problems:
        raise NoValidCheckpointError(f"resume.path: {'; '.join(named.problems)}")
    manifest = named.manifest
    if manifest.run_id != run_id:
        raise CannotResumeError(
            f"resume.path: {named.uri} is a checkpoint of run {manifest.run_id}, and this is run "
            f"{run_id}: go on with that run by run.run_id={manifest.run_id}, in an empty run "
            "directory"
        )
    if status.fresh:
        return Choice(RESTORE, (named,), had_checkpoint=True)
    if named.step > status.committed_step or not is_on_line(
        manifest.lineage, named.step, status.lineages
    ):
        raise CannotResumeError(
            f"resume.path: {named.uri} is of step {named.step} of the time line "
            f"{manifest.lineage}, and the run's journal is at step {status.committed_step} of "
            f"{status.lineage}, which does not come from there: begin another run from it, with "
            f"an empty run directory and run.run_id={run_id}"
        )
    return Choice(ROLL_BACK, (named,), had_checkpoint=True)


def _why(found: Iterable[Found], why: str) -> list[Found]:
    return [replace(one, problems=(*one.problems, f"{one.uri} {why}")) for one in found]


def nothing_whole(
    skipped: Sequence[Found], *, storage: str = "", saved_step: int = 0
) -> NoValidCheckpointError:
    """Say that there are checkpoints, or were, and none can be used."""
    if skipped:
        what, mend = "there are checkpoints, and none of them can be used", "mend one"
    else:
        what = f"step {saved_step} was saved, and there is no checkpoint in {storage}"
        mend = "have checkpoint.storage name the place where they are"
    lines = [f"{what}; the run does not begin again:"]
    lines += [problem for found in skipped for problem in found.problems]
    lines.append(f"{mend}, or begin another run: run.name=NAME or run.run_dir=DIR")
    return NoValidCheckpointError("\n".join(lines))


def store_action(
    status: replay_pb2.GetReplayStatusResponse,
    store: store_pb2.GetStoreStatusResponse,
    manifest: Manifest | None,
    action: pb.ResumeAction.ValueType,
) -> pb.StoreAction.ValueType:
    """Say what becomes of the rows.

    The store keeps what it holds if it is in the life that the checkpoint knows, or in one that
    the ledger knows and that holds rows, which are newer than the checkpoint's.
    """
    is_known = store.store_incarnation == status.store_incarnation
    if manifest is None:
        return KEEP if is_known else REGENERATE
    if is_known and store.store_incarnation == manifest.store_incarnation:
        return KEEP
    if is_known and action == ROLL_BACK and store.row_count:
        return KEEP
    return RELOAD if manifest.part("store").files else REGENERATE


def under_way(
    status: replay_pb2.GetReplayStatusResponse, incarnation: int
) -> resume_pb2.ResumeState | None:
    """Give the resume that the journal knows for a trainer; None if there is none."""
    state = status.resume
    if state.phase == UNKNOWN:
        return None
    return state if state.trainer_incarnation == incarnation else None
