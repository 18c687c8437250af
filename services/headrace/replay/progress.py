"""How far the run is, beside where its groups are: feed, open step, last commit, circuit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headrace.v1 import replay_pb2, resume_pb2


@dataclass
class OpenStep:
    """The step that is being sampled: its parts, each a list of uids handed out."""

    step: int
    group_count: int
    parts: list[list[str]]

    @property
    def quota(self) -> int:
        """Groups in one part."""
        return self.group_count // len(self.parts)

    @property
    def open_count(self) -> int:
        """Groups still to be sampled."""
        return self.group_count - sum(len(part) for part in self.parts)


@dataclass
class Feed:
    """What is known of the data set."""

    row_count: int = 0
    ordinal_count: int = 0
    total_steps: int = 0
    fingerprint: str = ""


@dataclass
class CommitMemo:
    """The answer to the last CommitStep, for its repeat."""

    step: int = 0
    trained: int = 0
    stale: int = 0
    position: int = 0


@dataclass
class Circuit:
    """Open when all workers fail, or the filter's budget is used up."""

    cause: replay_pb2.CircuitCause.ValueType = replay_pb2.CIRCUIT_CAUSE_UNSPECIFIED
    error: str = ""
    streaks: dict[str, Counter[str]] = field(default_factory=dict)
    """By worker: failures since its last success, by prompt."""
    ejected: set[str] = field(default_factory=set)
    """Workers whose failures are their own, until they succeed."""
    fed_count: int = 0
    """Prompts let in since it opened."""

    @property
    def is_open(self) -> bool:
        """Whether feeding stops and leasing is cut to probes."""
        return self.cause != replay_pb2.CIRCUIT_CAUSE_UNSPECIFIED

    def tries(self, uid: str) -> int:
        """Failures of a prompt that no success has explained yet, of all workers together."""
        return sum(streak[uid] for streak in self.streaks.values())

    def streak(self, worker_id: str) -> int:
        """Failures in a row of a worker, on different prompts."""
        return len(self.streaks.get(worker_id, ()))


def phase_name(phase: resume_pb2.ResumePhase.ValueType) -> str:
    """Name a phase of a resume as people do: `WARMUP`."""
    return resume_pb2.ResumePhase.Name(phase).removeprefix("RESUME_PHASE_")


def being_resumed(resume: resume_pb2.ResumeState) -> str:
    """Say why nothing goes on while a resume is under way."""
    return f"the run is being resumed from step {resume.step}: {phase_name(resume.phase)}"
