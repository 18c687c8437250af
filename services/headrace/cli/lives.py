"""How often a process that died may be started again.

Knows nothing of processes. Times are seconds of one clock.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.cli.standing import Standing
from headrace.config.services import LauncherConfig

FIRST_PAUSE_S: Final = 0.1
"""How long a process that died for the first time stays away."""
LONGEST_PAUSE_S: Final = 5.0
"""How long it stays away at most; each death doubles it."""
MOST_CRASHES: Final = 3
"""Crashes of a trainer in a row, without a step committed in between, that end the run."""


class RestartBudget:
    """How often a process may still be started again within a span of time."""

    def __init__(self, settings: LauncherConfig) -> None:
        self._most = settings.max_restarts
        self._window_s = settings.restart_window_s
        self._times: deque[float] = deque()

    def spend(self, now: float) -> float | None:
        """Take one restart; give the pause before it in seconds, None if none is left."""
        while self._times and now - self._times[0] > self._window_s:
            self._times.popleft()
        if len(self._times) >= self._most:
            return None
        self._times.append(now)
        return _pause_s(len(self._times))

    def in_words(self) -> str:
        """Say why none is left."""
        return f"launcher.max_restarts = {self._most} within {self._window_s:g} s are used up"


class Attempts:
    """Whether a trainer that dies and resumes still gets anywhere.

    A life that commits a step was not for nothing; lives that never come beyond the step where
    an earlier one was are, in the end. A crash speaks against the trainer sooner than a signal,
    which somebody else has sent.
    """

    def __init__(self, settings: LauncherConfig) -> None:
        self._most = settings.max_restarts
        self._crashes = 0
        self._deaths = 0
        self._highest = 0

    def spend(self, standing: Standing | None, *, crashed: bool) -> float | None:
        """Take one death; give the pause before the next life in seconds, None if it is enough.

        Args:
            standing: Where the run was when it died; None if nobody could say.
            crashed: Whether it ended by itself.

        """
        if standing is not None and standing.gained:
            self._crashes = 0
        if standing is not None and standing.committed_step > self._highest:
            self._highest = standing.committed_step
            self._deaths = 0
        self._crashes += crashed
        self._deaths += 1
        enough = self._crashes >= MOST_CRASHES or self._deaths > self._most
        return None if enough else _pause_s(self._deaths)

    def in_words(self) -> str:
        """Say why it was enough."""
        if self._crashes >= MOST_CRASHES:
            return f"{self._crashes} crashes in a row without a step committed in between"
        return (
            f"{self._deaths} deaths in a row without coming beyond step {self._highest}, and "
            f"launcher.max_restarts = {self._most}"
        )


def _pause_s(deaths: int) -> float:
    return min(LONGEST_PAUSE_S, float(FIRST_PAUSE_S * 2 ** (deaths - 1)))
