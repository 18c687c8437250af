"""The window: how many groups should be live. Level-triggered; there is no "add N".

    open      = what the open step still has to sample, else 0
    remaining = groups the run still has to train - SAMPLED
    target    = min(floor(W x B) + open, remaining)
    occupancy = groups in PENDING, RUNNING or FINISHED
    demand    = max(0, target - occupancy)
              + min(credit, max(0, remaining - max(target, occupancy)))

Under `drop` whatever is past T was dropped when the step moved on, so every group counted in
occupancy can still be used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """The window at one instant, in groups."""

    size: int
    """floor(W x B)."""
    open_count: int
    """What the open step still has to sample."""
    remaining: int
    """What the run still has to sample in all."""
    occupancy: int
    """PENDING + RUNNING + FINISHED."""
    credit: int = 0
    """Asked for by hand and not registered yet."""

    @property
    def target(self) -> int:
        """Groups that should be live."""
        return max(0, min(self.size + self.open_count, self.remaining))

    @property
    def own_demand(self) -> int:
        """What the window itself lacks."""
        return max(0, self.target - self.occupancy)

    @property
    def demand(self) -> int:
        """What it lacks, with what was asked for by hand."""
        beyond = max(0, self.remaining - max(self.target, self.occupancy))
        return self.own_demand + min(self.credit, beyond)
