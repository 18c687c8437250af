"""Takes the time of a lap, and the CPU time that several processes used in it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.bench.laps import Lap

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Stopwatch:
    """Measures this process and others.

    Args:
        others: Each gives CPU seconds used so far.

    """

    def __init__(self, *others: Callable[[], float]) -> None:
        self._others = others

    @contextmanager
    def lap(self, items: float) -> Iterator[Taking]:
        """Take a lap in which so many items are done."""
        taking = Taking(items)
        cpu, begun = self._cpu_s(), time.perf_counter()
        yield taking
        taking.lap = Lap(items, time.perf_counter() - begun, self._cpu_s() - cpu)

    def _cpu_s(self) -> float:
        return time.process_time() + sum(other() for other in self._others)


class Taking:
    """A lap that is being taken."""

    def __init__(self, items: float) -> None:
        self.items = items
        self.lap = Lap(items, 0.0, 0.0)
        """Whole once the lap is over."""


def cpu_of(pid: int) -> Callable[[], float]:
    """Give what another process of this machine has used. Raises FileNotFoundError once it ended."""
    stat = Path(f"/proc/{pid}/stat")

    def used() -> float:
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    return used
