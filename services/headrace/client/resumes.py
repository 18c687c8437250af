"""How a run went on from a checkpoint, in words and numbers. Asks nobody."""

from __future__ import annotations

from typing import Final

from headrace.client.words import LIVE_STATES
from headrace.v1 import replay_pb2, resume_pb2

WAITS: Final = {
    resume_pb2.RESUME_PHASE_PLAN: "picking a checkpoint",
    resume_pb2.RESUME_PHASE_STORE: "restoring trajectories",
    resume_pb2.RESUME_PHASE_LEDGER: "rolling the ledger back",
    resume_pb2.RESUME_PHASE_WEIGHTS: "waiting for the trainer's weights and a worker with them",
    resume_pb2.RESUME_PHASE_REISSUE: "offering again what was running or lost",
    resume_pb2.RESUME_PHASE_WARMUP: "filling the window",
}
"""What each phase does."""
PHASES: Final = {
    phase: resume_pb2.ResumePhase.Name(phase).removeprefix("RESUME_PHASE_").lower()
    for phase in (*WAITS, resume_pb2.RESUME_PHASE_OPEN)
}
"""The phases' names, in order."""


def is_open(resume: resume_pb2.ResumeState) -> bool:
    """Whether it is done: the run goes on."""
    return resume.phase == resume_pb2.RESUME_PHASE_OPEN


def origin(step: int) -> str:
    """Say where a run goes on from."""
    return f"step {step}" if step else "the beginning"


def resume_in_words(resume: resume_pb2.ResumeState) -> str:
    """`resumed from step 5: 12 groups kept, 3 reissued (2 sessions kept), 4 dropped as stale`.

    Of one that is under way: what it does now.
    """
    where = origin(resume.step)
    if not is_open(resume):
        doing = WAITS.get(resume.phase, "beginning")
        return f"resuming from {where}: {doing}"
    parts = [f"{kept_count(resume)} groups kept"]
    if resume.reissued_count:
        sessions = resume.sessions_kept_count
        parts.append(f"{resume.reissued_count} reissued ({sessions} sessions kept)")
    if resume.untrained_count:
        parts.append(f"{resume.untrained_count} to be trained on again")
    if resume.dropped_count:
        parts.append(f"{resume.dropped_count} dropped as stale")
    if resume.topped_up_count:
        parts.append(f"{resume.topped_up_count} fed")
    return f"resumed from {where}: {', '.join(parts)}"


def kept_count(resume: resume_pb2.ResumeState) -> int:
    """Count the groups that stay live and need not be generated again."""
    live = sum(int(getattr(resume.counts, state)) for state in LIVE_STATES)
    return max(0, live - resume.reissued_count - resume.dropped_count)


def timeline_in_words(status: replay_pb2.GetReplayStatusResponse) -> str:
    """`3f2a91, which left 77ab01 after step 5`; of a run that never resumed only the name."""
    if len(status.lineages) < 2:
        return status.lineage
    last = status.lineages[-1]
    return f"{last.id}, which left {last.parent} after {origin(last.fork_step)}"


def saved_in_words(status: replay_pb2.GetReplayStatusResponse) -> str:
    """`step 20, saving step 40`."""
    saved = f"step {status.saved_step}" if status.saved_step else "none"
    return f"{saved}, saving step {status.snapshot.step}" if status.HasField("snapshot") else saved
