"""Ways to do the same, measured in turn, A B B A, so that both meet the same machine.

Another process may take half of a shared machine for a while. A round of all ways is short
against that, so the ratio of one round is meaningful where the figures themselves are not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from headrace.bench.ratio import Ratio


@dataclass(frozen=True)
class Lap:
    """One round of one way."""

    items: float
    seconds: float
    cpu_s: float
    """CPU seconds of all processes that take part."""


@dataclass(frozen=True)
class Laps:
    """All rounds of one way."""

    counted: Sequence[Lap]

    @property
    def rates(self) -> list[float]:
        """Items per second."""
        return [lap.items / lap.seconds for lap in self.counted]

    @property
    def cpu_per_item_s(self) -> float:
        """CPU seconds, the median of the rounds."""
        return median(lap.cpu_s / lap.items for lap in self.counted)

    def over(self, other: Laps) -> Ratio:
        """Compare the rates."""
        return Ratio.of(self.rates, other.rates)


Way: TypeAlias = Callable[[], Awaitable[Lap]]
"""Does its work once."""


async def interleaved(ways: Mapping[str, Way], *, rounds: int) -> dict[str, Laps]:
    """Run all ways, in turn forwards and backwards, and collect their rounds.

    A first round, in which caches fill and connections open, is not counted.
    """
    laps: dict[str, list[Lap]] = {name: [] for name in ways}
    for way in ways.values():
        await way()
    for number in range(rounds):
        order = list(ways) if number % 2 == 0 else list(ways)[::-1]
        for name in order:
            laps[name].append(await ways[name]())
    return {name: Laps(done) for name, done in laps.items()}
