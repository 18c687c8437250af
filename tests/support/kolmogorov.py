"""How unlike two samples are: the two-sample test of Kolmogorov and Smirnov."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

TERMS = 100


def distance(first: Sequence[int], second: Sequence[int]) -> float:
    """Give the statistic: how far the shares below a value are apart, at most."""
    one, two = sorted(first), sorted(second)
    return max(
        abs(bisect_right(one, x) / len(one) - bisect_right(two, x) / len(two)) for x in {*one, *two}
    )


def p_value(first: Sequence[int], second: Sequence[int]) -> float:
    """How often samples of one distribution are at least so far apart, for some hundred values.

    Where values are equal, or the samples are not independent of each other, less often than that.
    """
    apart = distance(first, second)
    square = apart * apart * len(first) * len(second) / (len(first) + len(second))
    if square < 0.04:  # the series hardly converges; the sum is 1 to six places
        return 1.0
    return 2 * sum(math.pow(-1, k - 1) * math.exp(-2 * k * k * square) for k in range(1, TERMS))
