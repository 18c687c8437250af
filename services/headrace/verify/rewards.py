"""The rehearsal's reward: cheap, and a pure function of the response."""

from __future__ import annotations

import zlib


def by_content(response: str, **_: object) -> float:
    """Give one of five rewards, by the response alone, so that a group filter has something to do."""
    return zlib.crc32(response.encode()) % 5 / 4
