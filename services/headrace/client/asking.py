"""Calls without an event loop that outlive the other side's outages.

Knows which failures are worth another try, not what the calls are about.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import grpc

from headrace.errors import NotReadyError, UsageError, WireError, WrongProcessError
from headrace.rpc.failures import detail_of, failure_of, is_worth_repeating
from headrace.rpc.status import error_from

Response = TypeVar("Response")

TIMEOUT_S: Final = 10.0
"""How long an answer may take."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0


class AwayError(UsageError):
    """Nobody answered within the time that the caller would wait."""


def ask(
    method: Callable[..., Response],
    request: object,
    *,
    who: str,
    patience_s: float = 0.0,
    timeout_s: float = TIMEOUT_S,
) -> Response:
    """Call a method that is safe to repeat, again and again while the other side is away.

    Args:
        method: A method of a stub.
        request: Sent again unchanged each time.
        who: The other side, for messages: `127.0.0.1:7001, the replay buffer,`.
        patience_s: How long an outage may last; 0 = one call.
        timeout_s: Deadline of each call.

    Raises:
        WireError: the answer was a refusal.
        AwayError: there was none.

    """
    pauses = Pauses(patience_s)
    while True:
        try:
            return method(request, timeout=timeout_s)
        except grpc.RpcError as failed:
            if not is_outage(failed) or not pauses.wait():
                raise refusal(failed, who) from None


def is_outage(failed: grpc.RpcError) -> bool:
    """Whether another try may help."""
    return is_worth_repeating(failed)


def refusal(failed: grpc.RpcError, who: str) -> WireError | UsageError:
    """Say what a failed call means: the error of its reason, or that nobody is there."""
    known = error_from(failed)
    if known is not None and not isinstance(known, (NotReadyError, WrongProcessError)):
        return known
    failure = failure_of(failed, who.rstrip(","))
    if isinstance(failure, UsageError):  # its certificate is not what it has to be
        return failure
    assert isinstance(failed, grpc.Call)
    why, kind = failed.code().name.lower().replace("_", " "), UsageError
    if is_outage(failed):
        why, kind = f"{why}: {known or detail_of(failed)}", AwayError
    return kind(
        f"{who} does not answer ({why}); is the run over, the address another process's, or TLS on "
        "one side only?"
    )


class Pauses:
    """The pauses between tries, each longer than the one before, until patience is over."""

    def __init__(self, patience_s: float) -> None:
        self._ends = time.monotonic() + patience_s
        self._lengths = _lengths()

    def wait(self) -> bool:
        """Pause, and say whether to try again."""
        left_s = self._ends - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(left_s, next(self._lengths)))
        return True


def _lengths() -> Iterator[float]:
    length_s = FIRST_PAUSE_S
    while True:
        yield length_s
        length_s = min(2 * length_s, LONGEST_PAUSE_S)
