"""What every part of the benchmark is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.bench.peer import Peer


@dataclass(frozen=True)
class Setting:
    """Where, how long, and beside whom."""

    scratch: Path
    """A folder that is empty, the part's own, and removed afterwards."""
    is_quick: bool
    """Fewer rounds, smaller sizes."""
    peer: Peer | None
    """TransferQueue; None for a part that does not need it."""
    redis_url: str | None
    """The user's Redis; None = one of the benchmark's own, if it can be."""
