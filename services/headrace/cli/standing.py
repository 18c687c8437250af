"""Where a run stands at one moment, as far as it matters to who starts its processes again."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.v1 import replay_pb2, resume_pb2


@dataclass(frozen=True)
class Standing:
    """Where the run stands."""

    ended: bool
    """Whether it is over, until a resume goes back behind its end."""
    committed_step: int
    """The last committed step."""
    gained: bool
    """Whether the newest trainer has committed a step."""

    @classmethod
    def of(cls, status: replay_pb2.GetReplayStatusResponse) -> Standing:
        """Read it from what the ledger says."""
        resume = status.resume
        if not status.HasField("resume"):
            gained = status.committed_step > 0
        else:
            is_open = resume.phase == resume_pb2.RESUME_PHASE_OPEN
            # A trainer that died before its resume began has committed nothing either.
            own = resume.trainer_incarnation == status.trainer_incarnation
            gained = is_open and own and status.committed_step > resume.step
        return cls(status.ended, status.committed_step, gained)
