"""Whose turn it is: a cycle of turns in which everybody has exactly his share, at every moment.

Pure arithmetic. The shares are w_i = q_i / D with whole q_i, and the cycle has D turns. After any
number t of turns, counted on over the cycles, |turns of i - t w_i| < 1 for every i: nobody is ever
a whole turn ahead of his share, or behind it. Drawing by weight is off by about sqrt(t) turns.

The rule is Tijdeman's (R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32
(1980), 323-330): of those who would be far enough behind at turn t, it is the turn of who would
have to wait longest before the bound is reached. Its bound is 1 - 1 / (2K - 2) for K shares.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from fractions import Fraction

LONGEST_CYCLE = 100_000
"""Turns; the table has 5 bytes for each. Weights as people write them need a few hundred."""


class Schedule:
    """The turns of one cycle, as a table: any turn costs the same."""

    def __init__(self, weights: Sequence[float]) -> None:
        """Make the table.

        Args:
            weights: At least one, each above 0. Taken as the decimal numbers that they print as.

        Raises:
            ValueError: the cycle would have more than `LONGEST_CYCLE` turns.

        """
        self.quotas = whole_shares(weights)
        self.cycle = sum(self.quotas)
        if self.cycle > LONGEST_CYCLE:
            raise ValueError(
                f"the weights {', '.join(map(str, weights))} come out even only after {self.cycle} "
                f"rows; at most {LONGEST_CYCLE}: round them"
            )
        self._who = array("H" if len(weights) > 256 else "B", _turns(self.quotas))
        self._nth = array("I", _count(self._who, len(weights)))

    def turn(self, number: int) -> tuple[int, int]:
        """Say whose turn `number` is, from 0, and how many he had before."""
        cycles, place = divmod(number, self.cycle)
        who = self._who[place]
        return who, cycles * self.quotas[who] + self._nth[place]


def whole_shares(weights: Sequence[float]) -> list[int]:
    """Give the smallest whole numbers in the proportion of the weights."""
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(share.denominator for share in exact))
    whole = [int(share * scale) for share in exact]
    common = math.gcd(*whole)
    return [share // common for share in whole]


def _turns(quotas: Sequence[int]) -> list[int]:
    """Go through one cycle. Everything is multiplied by D (2K - 2), so that it stays whole."""
    if len(quotas) == 1:
        return [0] * quotas[0]
    cycle, slack = sum(quotas), 2 * len(quotas) - 2
    turns: list[int] = []
    behind = [0] * len(quotas)  # t q_i - D (turns of i)
    for _ in range(cycle):
        for i, quota in enumerate(quotas):
            behind[i] += quota
        chosen, room = -1, 0
        for i, quota in enumerate(quotas):
            left = cycle * (slack - 1) - slack * behind[i]  # left / quota = turns that he can wait
            if slack * behind[i] >= cycle and (chosen < 0 or left * quotas[chosen] < room * quota):
                chosen, room = i, left
        behind[chosen] -= cycle
        turns.append(chosen)
    return turns


def _count(who: Sequence[int], size: int) -> list[int]:
    had = [0] * size
    counted = []
    for chosen in who:
        counted.append(had[chosen])
        had[chosen] += 1
    return counted
