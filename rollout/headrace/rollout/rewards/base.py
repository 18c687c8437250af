"""What a worker wants of whatever scores.

Knows nothing of how it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.rollout.rewards.functions import Score, Scoring


class RewardError(HeadraceError):
    """A response could not be scored. Never a reward of zero."""


class Rewards(Protocol):
    """Scores responses."""

    async def start(self) -> None:
        """Get ready.

        Raises:
            UsageError: What is configured cannot be used.

        """
        ...

    async def close(self) -> None:
        """Give up what is under way, and all resources."""
        ...

    async def score(self, scorings: Sequence[Scoring]) -> list[Score | RewardError]:
        """Score, in order. One that fails does not hurt the others."""
        ...
