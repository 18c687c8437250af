"""What was asked of a run, and what it answered: the record that its judge is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One call and what came of it."""

    at: float
    """Monotonic seconds of the answer."""
    call: str
    request: Any
    answer: Any
    """None if none came; the trajectories, for a read."""
    error: str = ""
