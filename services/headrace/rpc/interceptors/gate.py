"""Lets nobody in who has no business here: a wrong token, an old protocol, another run or process.

Health checks need nothing, as those who make them know no secrets. Must stand inside the
`ErrorInterceptor`, which turns the refusal into a status. Nothing of the call is read but its
metadata, and no handler is reached.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH

from headrace.errors import (
    ProtocolMismatchError,
    TokenRefusedError,
    WireError,
    WrongProcessError,
    WrongRunError,
)
from headrace.log import get_logger
from headrace.rpc.interceptors.around import around
from headrace.rpc.metadata import AUTHORIZATION, PROTOCOL, PROTOCOL_VERSION, RUN, value_of
from headrace.rpc.methods import PATHS

if TYPE_CHECKING:
    from headrace.rpc.interceptors.around import Context

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

LONGEST_QUOTE: Final = 64
"""Characters of a caller's own words that are repeated."""

log = get_logger()


class GateInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls by their metadata.

    Args:
        process: The server's name, for the messages.
        run_id: Its run; empty = calls of any run are welcome.
        token: What calls have to carry; empty = nothing.

    """

    def __init__(self, *, process: str, run_id: str, token: str) -> None:
        self._process = process
        self._run_id = run_id
        self._wanted = f"Bearer {token}".encode() if token else b""

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_Request, _Response] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        """Give the method's handler, or one that refuses."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if method.startswith(f"/{HEALTH}/") or (handler is None and method not in PATHS):
            return handler
        refusal = self._refusal(handler_call_details)
        if handler is None:
            refusal = refusal or self._other_process(method)
            return around(method, NOWHERE, partial(_refused, refusal))
        if refusal is None:
            return handler
        return around(method, handler, partial(_refused, refusal))

    def _refusal(self, call: grpc.HandlerCallDetails) -> WireError | None:
        """Say what is wrong with a call; the token comes first, so that strangers learn nothing."""
        given = value_of(call.invocation_metadata, AUTHORIZATION)
        if self._wanted and not hmac.compare_digest(given.encode(), self._wanted):
            return self._no_token() if not given else self._other_token()
        protocol = value_of(call.invocation_metadata, PROTOCOL)
        if protocol not in ("", PROTOCOL_VERSION):
            return self._other_protocol(protocol[:LONGEST_QUOTE])
        run_id = value_of(call.invocation_metadata, RUN)
        if self._run_id and run_id not in ("", self._run_id):
            return self._other_run(run_id[:LONGEST_QUOTE])
        return None

    def _no_token(self) -> WireError:
        return TokenRefusedError(
            f"{self._process} takes no call without its token: set security.token_file, or "
            "--token-file, to a file with the same token"
        )

    def _other_token(self) -> WireError:
        return TokenRefusedError(
            f"{self._process} refuses this token, it has another one: give both the same "
            "security.token_file (files are read when a process starts)"
        )

    def _other_protocol(self, theirs: str) -> WireError:
        return ProtocolMismatchError(
            f"{self._process} speaks version {PROTOCOL_VERSION} of the protocol, and the "
            f"caller version {theirs}: install the same version of headrace on both sides",
            version=PROTOCOL_VERSION,
            callers_version=theirs,
        )

    def _other_run(self, theirs: str) -> WireError:
        return WrongRunError(
            f"{self._process} belongs to the run {self._run_id}, and the caller to "
            f"{theirs}: check endpoints, and run.run_id (by default the name of run.run_dir)",
            run_id=self._run_id,
            callers_run_id=theirs,
        )

    def _other_process(self, method: str) -> WireError:
        return WrongProcessError(
            f"{self._process} has no {method.rpartition('/')[2]}: what was called is the address of "
            "another process, or was until just now; check endpoints if it stays so"
        )


async def _never(_requests: object, _context: object) -> None:
    """Do what a method does that is not here."""


NOWHERE: Final[grpc.RpcMethodHandler[object, object]] = grpc.stream_stream_rpc_method_handler(
    _never
)
"""A handler for a method that is not here, of whatever kind."""


@asynccontextmanager
async def _refused(refusal: WireError, method: str, context: Context) -> AsyncIterator[None]:
    log.warning("caller_refused", method=method, peer=context.peer(), reason=refusal.reason)
    raise refusal
    yield  # a generator, as a context manager wants it; the handler is never run
