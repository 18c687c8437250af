"""What is done to a run, by a seed: who is killed when, and which named points kill.

A process is armed for one life at a time: when it reaches its point it dies, and its next life is
armed with the next one. Beside that, processes are killed at random moments. Pure, but for whose
turn it is.
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
    """Named points that are still to be reached, by process, the next first."""
    armed: dict[str, str] = field(default_factory=dict)
    """The point that a process's present life dies at."""
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
        for names in points.values():
            draw.shuffle(names)
        struck = [Kill(draw.choice(list(processes)), draw.uniform(0.3, 2.5)) for _ in range(kills)]
        return cls(struck, points)

    @classmethod
    def none(cls) -> Strikes:
        """Leave the run alone."""
        return cls((), {})

    def environment(self, process: str) -> dict[str, str]:
        """Arm the next life of a process."""
        names = self.points.get(process)
        if not names:
            self.armed.pop(process, None)
            return {}
        self.armed[process] = names[0]
        return {VARIABLE: names[0]}

    def died_armed(self, process: str) -> None:
        """Note that an armed process was killed by its own point: the next life gets another."""
        point = self.armed.pop(process, None)
        if point is not None and point in self.points.get(process, []):
            self.points[process].remove(point)
            self.reached.append(point)

    def postpone(self, process: str) -> None:
        """Have another point first in the next life: this one was not reached before a kill."""
        names = self.points.get(process)
        if names:
            names.append(names.pop(0))

    @property
    def unreached(self) -> list[str]:
        """Points that nobody came to."""
        return [name for names in self.points.values() for name in names]
