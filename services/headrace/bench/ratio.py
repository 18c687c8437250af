"""How two figures compare, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True)
class Ratio:
    """The median over rounds, and how far the rounds lie apart."""

    median: float
    low: float
    """The lower quartile."""
    high: float
    """The upper quartile."""

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """Compare figures of the same rounds."""
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        return cls(median(ratios), low, high)

    def __str__(self) -> str:
        return f"{short(self.median)}x ({short(self.low)}-{short(self.high)})"


def short(number: float) -> str:
    """Write two or three digits that count, without an exponent."""
    if number >= 10:
        return f"{number:,.0f}"
    return f"{number:.2f}" if number >= 0.1 else f"{number:.2g}"


def percentile(values: Sequence[float], percent: float) -> float:
    """Give the value that so many percent of all do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
