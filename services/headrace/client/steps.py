"""The trainer's steps so far: what is shown and summed up of their metrics.

Knows the names of the few metrics that people look at. Times are seconds of one clock.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final

REWARD: Final = "critic/rewards/mean"
"""Mean reward of a step's trajectories."""
STALENESS: Final = "training/off_policy/trajectory_staleness_worst/mean"
"""Versions between the weights that were trained and the oldest that generated, mean."""
STALENESS_MAX: Final = "training/off_policy/trajectory_staleness_worst/max"
"""The same, the largest."""
TOKENS: Final = "perf/total_num_tokens"
"""Tokens of a step's trajectories, prompts included."""
STEP_S: Final = "timing_s/step"
"""Seconds that a step took."""
RECENT: Final = 20
"""Steps that speed and remaining time are estimated from."""


class Steps:
    """Metrics by step."""

    def __init__(self) -> None:
        self._metrics: dict[int, Mapping[str, float]] = {}
        self._times: deque[tuple[int, float]] = deque(maxlen=RECENT)

    def add(self, step: int, metrics: Mapping[str, float], now: float) -> None:
        """Take a step that was just committed."""
        self._metrics[step] = dict(metrics)
        self._times.append((step, now))

    def read(self, file: Path) -> None:
        """Take the steps that were missed, from the run directory's metrics."""
        for step, values in read_lines(file).items():
            metrics = {name: value for name, value in values.items() if value is not None}
            self._metrics.setdefault(step, metrics)

    def forget_after(self, step: int) -> None:
        """Forget what came after a step: the run went back to it."""
        self._metrics = {each: m for each, m in self._metrics.items() if each <= step}
        self._times.clear()

    @property
    def last(self) -> int:
        """The last committed step; 0 before the first."""
        return max(self._metrics, default=0)

    def value(self, name: str) -> float | None:
        """Give a metric of the last step."""
        return self._metrics[self.last].get(name) if self._metrics else None

    def series(self, name: str) -> list[float]:
        """Give a metric of all steps that have it, in order."""
        steps = sorted(self._metrics)
        return [self._metrics[step][name] for step in steps if name in self._metrics[step]]

    def seconds_per_step(self) -> float | None:
        """Estimate how long a step takes; by what the trainer says until two have been seen."""
        if len(self._times) < 2:
            return mean(self.series(STEP_S)[-RECENT:])
        (first, begun), (last, ended) = self._times[0], self._times[-1]
        return (ended - begun) / (last - first) if last > first else None

    def remaining_s(self, total: int, now: float) -> float | None:
        """Estimate how long the remaining steps take."""
        each = self.seconds_per_step()
        if each is None or not total:
            return None
        since = now - self._times[-1][1] if self._times else 0.0
        return max(0.0, (total - self.last) * each - since)


def read_lines(file: Path) -> dict[int, dict[str, float | None]]:
    """Read a run directory's `metrics.jsonl`: metrics by step; none if it is not there.

    A run that went back to a step has written its later steps again: the last lines count. A line
    that was cut short, as its writer was killed, is left out.
    """
    steps: dict[int, dict[str, float | None]] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        step = int(values.pop("step"))
        while steps and next(reversed(steps)) >= step:
            steps.popitem()
        steps[step] = values
    return steps


def mean(values: list[float]) -> float | None:
    """Give the mean; None of nothing."""
    return sum(values) / len(values) if values else None


def sparkline(values: list[float], width: int) -> str:
    """Draw a series in one line of text, the newest at the right."""
    if len(values) > width:  # means of equal pieces
        cuts = [round(index * len(values) / width) for index in range(width + 1)]
        pieces = itertools.pairwise(cuts)
        values = [sum(values[a:b]) / (b - a) for a, b in pieces]
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = 7 / (high - low) if high > low else 0.0
    return "".join("▁▂▃▄▅▆▇█"[round((value - low) * scale)] for value in values)
