"""What a call says about its caller, beside its message.

| key                 | value                | without it                              |
|---------------------|----------------------|-----------------------------------------|
| `authorization`     | `Bearer {token}`     | refused, if the server has a token      |
| `headrace-run`      | the caller's run     | a tool without a run, such as `status`  |
| `headrace-protocol` | `PROTOCOL_VERSION`   | a tool that is not ours, such as grpcurl |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

AUTHORIZATION: Final = "authorization"
RUN: Final = "headrace-run"
PROTOCOL: Final = "headrace-protocol"

PROTOCOL_VERSION: Final = "1"
"""Of `proto/headrace/v1` and the rules in its comments. Raised when a peer with the old rules
would do harm."""

Metadata = tuple[tuple[str, str], ...]


def caller_metadata(*, token: str, run_id: str) -> Metadata:
    """Return what a caller adds to each of its calls.

    Args:
        token: Empty = none.
        run_id: Empty = a tool without a run.

    """
    items = ((AUTHORIZATION, f"Bearer {token}" if token else ""), (RUN, run_id))
    return ((PROTOCOL, PROTOCOL_VERSION), *((key, value) for key, value in items if value))


def value_of(metadata: Iterable[tuple[str, str | bytes]] | None, key: str) -> str:
    """Return a value of a call's metadata; empty if it is not there, the last if it is repeated."""
    found = ""
    for name, value in metadata or ():
        if name == key and isinstance(value, str):
            found = value
    return found
