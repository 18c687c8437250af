"""Which steps are part of a time line's past.

A run's lines are a chain: each begins where a resume forked it from the one before. Step 7 of the
first line and step 7 of the second are not the same step. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.v1.resume_pb2 import Lineage


def last_steps(lineages: Sequence[Lineage]) -> dict[str, float]:
    """Give, by line, the last of its steps that belongs to the chain's newest line.

    Worked: the second line forked after step 5 of the first, the third after step 3 of the second
    one's numbering: of the first up to 3, of the second up to 3, of the third all.

    Args:
        lineages: The chain, oldest first.

    """
    last, limits = float("inf"), {}
    for line in reversed(lineages):
        limits[line.id] = last
        last = min(last, line.fork_step)
    return limits


def is_on_line(lineage: str, step: int, lineages: Sequence[Lineage]) -> bool:
    """Whether a step of a line is part of the past of the chain's newest line."""
    return step <= last_steps(lineages).get(lineage, -1)
