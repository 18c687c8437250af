"""The HTTP header `Retry-After` (RFC 9110, section 10.2.3)."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Final

LONGEST_S: Final = 300.0
"""A service that wants more is asked again after this long."""


def retry_after_s(given: str | None, *, wall: float) -> float:
    """Return the seconds to wait; 0 if the header is not there or says nothing.

    Args:
        given: Its value: seconds, or a date.
        wall: Seconds since 1970.

    """
    if given is None:
        return 0.0
    if given.strip().isdecimal():
        wish_s = float(given)
    else:
        try:
            wish_s = parsedate_to_datetime(given).timestamp() - wall
        except ValueError:
            return 0.0
    return min(max(0.0, wish_s), LONGEST_S)
