"""Rows of several data sets, one after the other.

Knows which row belongs to which part, and whose name it bears. In which order they are fed is
told by `headrace.feeder.mixing`.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from headrace.errors import UsageError
from headrace.feeder.schedule import Schedule
from headrace.feeder.sources.source import Row, Source


@dataclass(frozen=True)
class Part:
    """One of the data sets."""

    name: str
    """The `data_source` of its rows."""
    source: Source
    """Its rows."""
    weight: float
    """Its share, in proportion to the other weights."""


class MixtureRows:
    """The rows of all parts, counted through in the order of the parts.

    Attributes:
        sizes: Rows of each part.
        schedule: Whose turn it is.

    """

    def __init__(self, parts: Sequence[Part]) -> None:
        """Work out the schedule.

        Raises:
            UsageError: a part is empty, or the weights are too fine.

        """
        self._parts = list(parts)
        self.sizes = [len(part.source) for part in parts]
        for part, size in zip(parts, self.sizes, strict=True):
            if not size:
                raise UsageError(
                    f"data.source.parts.{part.name}: {part.source.name} has no rows; leave it out"
                )
        try:
            self.schedule = Schedule([part.weight for part in parts])
        except ValueError as error:
            raise UsageError(f"data.source.parts: {error}") from None
        self._starts = list(accumulate(self.sizes, initial=0))

    @property
    def name(self) -> str:
        """All parts' names."""
        return "mixture of " + ", ".join(part.name for part in self._parts)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Row:
        """Read one row of one part.

        Raises:
            UsageError: the part cannot give it.

        """
        number = bisect_right(self._starts, index) - 1
        part = self._parts[number]
        row = part.source[index - self._starts[number]]
        return replace(row, data_source=part.name)

    def fingerprint(self) -> str:
        """Digest of the parts, their names and their shares."""
        told = [
            [part.name, quota, part.source.fingerprint()]
            for part, quota in zip(self._parts, self.schedule.quotas, strict=True)
        ]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()
