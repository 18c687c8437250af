"""What is done to a run, by a seed: who is killed when, and which named points kill.

Each life of a process is armed with some of the points that it was not killed at yet, and dies at
the first of them that it comes to. Beside that, processes are killed at random moments. Pure, but
for what has been reached.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.failpoints import FAILPOINTS, VARIABLE


@dataclass(frozen=True)
class Kill:
    """A SIGKILL at a moment of no importance."""

    process: str
    after_s: float
    """Seconds after the strike before it."""


@dataclass
class Strikes:
    """A seed's plan, and how far it is carried out."""

    kills: Sequence[Kill]
    points: Mapping[str, list[str]]
    """Named points that are still to be reached, by process."""
    draw: random.Random
    """Which of them a life is armed with."""
    reached: list[str] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    """Random kills, by process."""

    @classmethod
    def planned(cls, *, kills: int, seed: int, processes: Sequence[str]) -> Strikes:
        """Plan them."""
        draw = random.Random(seed)
        points: dict[str, list[str]] = {}
        for name, process in FAILPOINTS.items():
            points.setdefault(process, []).append(name)
        struck = [Kill(draw.choice(list(processes)), draw.uniform(0.3, 2.5)) for _ in range(kills)]
        return cls(struck, points, draw)

    @classmethod
    def none(cls) -> Strikes:
        """Leave the run alone."""
        return cls((), {}, random.Random(0))

    def again(self) -> Strikes:
        """Plan another play, for the points that were not reached in this one."""
        return Strikes((), self.points, self.draw)

    def environment(self, process: str) -> dict[str, str]:
        """Arm the next life of a process: with about half of its points, so that some life lives."""
        names = self.points.get(process)
        if not names:
            return {}
        armed = self.draw.sample(names, -(-len(names) // 2))
        return {VARIABLE: ",".join(armed)}

    def died_at(self, process: str, point: str) -> None:
        """Note that a process was killed at a point: no later life is armed with it."""
        if point in self.points.get(process, []):
            self.points[process].remove(point)
            self.reached.append(point)

    @property
    def unreached(self) -> list[str]:
        """Points that nobody came to."""
        return [name for names in self.points.values() for name in names]
