"""What was promised, and what came out."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.bench.ratio import short


@dataclass(frozen=True)
class Goal:
    """A promise, and the figure of this run."""

    name: str
    limit: float
    """The least, or the most."""
    is_most: bool
    found: float
    unit: str

    @classmethod
    def at_least(cls, name: str, limit: float, found: float, unit: str) -> Goal:
        """Promise no less."""
        return cls(name, limit, False, found, unit)

    @classmethod
    def at_most(cls, name: str, limit: float, found: float, unit: str) -> Goal:
        """Promise no more."""
        return cls(name, limit, True, found, unit)

    @property
    def is_met(self) -> bool:
        """Whether the figure keeps the promise."""
        return self.found <= self.limit if self.is_most else self.found >= self.limit

    def __str__(self) -> str:
        verdict = "met   " if self.is_met else "MISSED"
        bound = "at most" if self.is_most else "at least"
        return (
            f"{verdict}  {self.name}: {short(self.found)}{self.unit}, wanted {bound} "
            f"{self.limit:g}{self.unit}"
        )
