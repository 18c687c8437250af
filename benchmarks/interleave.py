"""Ways to do the same, measured in turn, A B B A, so that both meet the same machine.

Another process may take half of a shared machine for a while. A round of all ways is short
against that, so the ratio of one round is meaningful where the figures themselves are not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TypeAlias

Way: TypeAlias = Callable[[], Awaitable[float]]
"""Does its work once and gives a figure: seconds, or items per second."""


async def interleaved(ways: Mapping[str, Way], *, rounds: int) -> dict[str, list[float]]:
    """Run all ways, in turn forwards and backwards, and collect their figures by round.

    A first round, in which caches fill and connections open, is not counted.
    """
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        await way()
    for number in range(rounds):
        order = list(ways) if number % 2 == 0 else list(ways)[::-1]
        for name in order:
            figures[name].append(await ways[name]())
    return figures


@dataclass(frozen=True)
class Ratio:
    """How two figures compare, round by round."""

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
        digits = 2 if self.median < 10 else 0
        return f"{self.median:.{digits}f}x ({self.low:.{digits}f}-{self.high:.{digits}f})"


def percentile(values: Sequence[float], percent: float) -> float:
    """Give the value that so many percent of all do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
