"""What is known of a run by the events that were shown: its groups, its step, its time lines.

What the events do to it, and what is wrong with them, is told in the modules named `…_events`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

PENDING, RUNNING, FINISHED, FAILED, SAMPLED, TRAINED, DROPPED = (
    "pending", "running", "finished", "failed", "sampled", "trained", "dropped",
)  # fmt: skip
LIVE = (PENDING, RUNNING, FINISHED, FAILED, SAMPLED)
WEIGHTS_PHASE, WARMUP, OPEN = 4, 6, 7


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the run was told."""

    n: int
    """Sessions per group."""
    batch: int
    """Groups per step."""
    window: int
    """floor(W x B)."""
    threshold: int | None
    """T; None = nothing is ever stale."""
    drops: bool
    """Whether groups past T are dropped."""
    basis: str
    """`generated` or `fed`."""
    max_failures: int
    max_expiries: int
    uid_of: Callable[[int], str | None] = lambda ordinal: None
    """The uid of an ordinal, where it is known from elsewhere."""


@dataclass(slots=True)
class Session:
    """One recorded session."""

    key: str
    min_version: int
    max_version: int


@dataclass(slots=True)
class Group:
    """One prompt group."""

    uid: str
    ordinal: int
    state: str
    base: int = 0
    attempt: int = 0
    worker: str = ""
    sessions: dict[int, Session] = field(default_factory=dict)
    drafts: dict[int, list[int]] = field(default_factory=dict)
    """Sessions under way, as far as they were reported: by token the weights that made it."""
    incarnation: str = ""
    step: int = 0
    reason: str = ""
    """Why it was dropped."""
    reported_failures: int = 0
    expiries: int = 0


class Told:
    """The run as the durable events have told it so far."""

    def __init__(self, rules: Rules, say: Callable[[str], None]) -> None:
        """Make an empty one.

        Args:
            rules: What the run was told.
            say: Is told each violation; it may raise.

        """
        self.rules = rules
        self.say = say
        self.position = 0
        self.groups: dict[str, Group] = {}
        self.counts = dict.fromkeys((*LIVE, TRAINED, DROPPED), 0)
        self.lineages: list[tuple[str, int]] = []
        self.cursor = 0
        self.total_steps = 0
        self.ordinal_count = 0
        self.committed = 0
        self.trained: dict[int, list[str]] = {}
        """By step: what the ledger says was trained."""
        self.parts: list[list[str]] | None = None
        self.weights: dict[tuple[str, int], str] = {}
        self.latest: tuple[str, int] | None = None
        self.store = ""
        self.ended = ""
        self.resume_phase = OPEN
        self.resume_step = 0
        self.resume_id = ""
        self.snapshot_id = ""
        self.trainer_incarnation = 0
        self.circuit_open = False

    def check(self, holds: bool, text: str) -> None:
        """Tell what does not hold."""
        if not holds:
            self.say(f"{text} (position {self.position})")

    @property
    def lineage(self) -> str:
        """The current time line."""
        return self.lineages[-1][0] if self.lineages else ""

    @property
    def open_count(self) -> int:
        """What the open step still has to sample."""
        return (
            self.rules.batch - sum(len(part) for part in self.parts)
            if self.parts is not None
            else 0
        )

    @property
    def target(self) -> int:
        """Groups that should be live (design 2.4)."""
        remaining = (
            self.total_steps * self.rules.batch - self.counts[TRAINED] - self.counts[SAMPLED]
        )
        return max(0, min(self.rules.window + self.open_count, remaining))

    @property
    def occupancy(self) -> int:
        """Groups in the window."""
        return self.counts[PENDING] + self.counts[RUNNING] + self.counts[FINISHED]

    def is_on_line(self, lineage: str, version: int) -> bool:
        """Whether weights belong to the past of the current time line."""
        last = float("inf")
        for name, fork in reversed(self.lineages):
            if name == lineage:
                return version <= last
            last = min(last, fork)
        return False

    def base_of(self, group: Group) -> int:
        """The step that its span counts from."""
        if self.rules.basis == "fed":
            return group.base
        return min((s.min_version for s in group.sessions.values()), default=-1) + 1

    def _move(self, uid: str, state: str, *allowed: str) -> Group:
        group = self.groups.get(uid)
        if group is None:
            self.say(f"I1: {uid} was never fed (position {self.position})")
            group = self.groups[uid] = Group(uid, -1, allowed[0])
            self.counts[group.state] += 1
        self.check(group.state in allowed, f"I1: {uid} goes from {group.state} to {state}")
        self.counts[group.state] -= 1
        self.counts[state] += 1
        group.state = state
        if state not in (PENDING, RUNNING):
            group.drafts.clear()
        return group

    def _to_pending(self, group: Group) -> None:
        group.worker = ""
        if self.rules.basis != "fed":
            group.base = self.base_of(group)

    def _forget(self, group: Group) -> None:
        group.sessions.clear()
        if self.rules.basis != "fed":
            group.base = 0
