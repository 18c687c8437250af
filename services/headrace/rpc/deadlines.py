"""Fills in the deadline of a call that names none.

A service configuration could say it, but its time-out fires too early
(https://github.com/grpc/grpc/issues/34547), so interceptors do.
"""

from __future__ import annotations

from typing import Any, Final

DEFAULT_TIMEOUT_S: Final = 10.0
"""The deadline of a call that names none."""


def with_deadline(details: Any) -> Any:
    """Return a call's details with a deadline, as `headrace.rpc.outgoing` wants it."""
    if details.timeout is not None:
        return details
    return details._replace(timeout=DEFAULT_TIMEOUT_S)
