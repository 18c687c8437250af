"""How long a worker holds back after failures: longer each time, never in step with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_FIRST_S: Final = 0.1
_LONGEST_S: Final = 5.0


class Pause:
    """0.1 s to 5 s if nothing else is said, doubling, half of it random. A success resets it.

    Args:
        now: Seconds of a monotonic clock.
        jitter: Uniform in [0, 1).
        first_s: The first one.
        longest_s: The longest.

    """

    def __init__(
        self,
        *,
        now: Callable[[], float],
        jitter: Callable[[], float],
        first_s: float = _FIRST_S,
        longest_s: float = _LONGEST_S,
    ) -> None:
        self._now = now
        self._jitter = jitter
        self._first_s = first_s
        self._longest_s = longest_s
        self._bound_s = first_s
        self._until = 0.0

    @property
    def left_s(self) -> float:
        """Seconds still to hold back; 0 if none."""
        return max(0.0, self._until - self._now())

    def fail(self) -> None:
        """Note a failure. Those that come during a pause belong to the one that caused it."""
        if self.left_s > 0:
            return
        self._until = self._now() + self._bound_s * (0.5 + 0.5 * self._jitter())
        self._bound_s = min(2 * self._bound_s, self._longest_s)

    def succeed(self) -> None:
        """Note a success."""
        self._bound_s = self._first_s
