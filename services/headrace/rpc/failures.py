"""What a failed call means for its caller: try again, a refusal, or a mistake of the user's.

A peer that cannot be reached, a refused token and a bad certificate look alike to gRPC's
users at first; here they are told apart. Knows nothing of what the calls are about.
"""

from __future__ import annotations

import re
from typing import Final

import grpc

from headrace.errors import (
    HeadraceError,
    ProtocolMismatchError,
    TokenRefusedError,
    UsageError,
    WriterFencedError,
    WrongRunError,
)
from headrace.rpc.status import error_from

REPEATED: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)
"""The peer is away, its answer was lost, or it stopped under the call. (A call of ours that we
cancel raises asyncio.CancelledError, and does not come here.)"""

UNWELCOME: Final = (TokenRefusedError, ProtocolMismatchError, WrongRunError)
"""The peer will not speak with this process as it was started: only the user can change that."""

LONGEST_DETAIL: Final = 300
"""Characters of a failure's detail that are shown."""

ENDED_WHILE_SENDING: Final = "Internal error from Core"
"""What gRPC says, as INTERNAL, of a stream that the server ended while the caller still sent: how it
ended is lost. Another try learns it."""

_LEAD: Final = re.compile(r"^.*\blast error: (?:[A-Z_]+: )?", re.DOTALL)
"""What gRPC puts before the cause."""

_HANDSHAKES: Final = (
    (
        "WRONG_VERSION_NUMBER",
        "it speaks no TLS, and this process does: set security.tls there, or leave it out (or "
        "--ca) here",
    ),
    (
        "certificate has expired",
        "its certificate has expired: `headrace certs init` makes new ones",
    ),
    (
        "Hostname Verification Check failed",
        "its certificate does not name it as it is called here: `headrace certs init --host NAME` "
        "makes one that does",
    ),
    (
        "TSI_PROTOCOL_FAILURE",
        "its certificate does not come from the authority in security.tls.ca (or --ca): give both "
        "sides the files of one `headrace certs init`",
    ),
)
"""What gRPC's words for a TLS handshake that cannot succeed mean, the most special first. A peer
that goes away in the midst of one has other words."""


def is_worth_repeating(call: grpc.RpcError) -> bool:
    """Whether the same call may be answered later, without anybody doing anything.

    A fenced replay buffer is on its way out, and the newer one will answer at its address.
    """
    if _code(call) in REPEATED:
        return _handshake(call) is None
    if _code(call) is grpc.StatusCode.INTERNAL and _details(call) == ENDED_WHILE_SENDING:
        return True
    return isinstance(error_from(call), WriterFencedError)


def failure_of(call: grpc.RpcError, peer: str) -> HeadraceError | grpc.RpcError:
    """Return what to raise for a call that failed for good.

    Args:
        call: What a stub raised.
        peer: Whom it was made to, in words.

    Returns:
        A `UsageError` where only the user can change something, a `WireError` for any other
        reason of ours, `call` itself where there is none.

    """
    error = error_from(call)
    if isinstance(error, UNWELCOME):
        return UsageError(str(error))
    if error is None and (meaning := _handshake(call)) is not None:
        cause = detail_of(call).rpartition("OPENSSL_internal:")[2].removesuffix(": OK")
        return UsageError(f"no secure connection to {peer}: {meaning} ({cause})")
    return error or call


def detail_of(call: grpc.RpcError) -> str:
    """Say in a line what went wrong last, as gRPC tells it."""
    words = " ".join(_LEAD.sub("", _details(call)).split())
    return words[:LONGEST_DETAIL] or _code(call).name


def _handshake(call: grpc.RpcError) -> str | None:
    """Return what makes a TLS handshake with the peer impossible; None if nothing is known to."""
    if _code(call) is not grpc.StatusCode.UNAVAILABLE:
        return None
    details = _details(call)
    return next((meaning for sign, meaning in _HANDSHAKES if sign in details), None)


def _code(call: grpc.RpcError) -> grpc.StatusCode:
    assert isinstance(call, (grpc.aio.AioRpcError, grpc.Call))
    return call.code()


def _details(call: grpc.RpcError) -> str:
    assert isinstance(call, (grpc.aio.AioRpcError, grpc.Call))
    return call.details() or ""
