"""Channels to other processes: every call has a deadline, and a short outage is bridged.

A call that names no deadline gets `DEFAULT_TIMEOUT_S`; that holds for streams, too, so
whoever watches one names its own. A unary call that fails with UNAVAILABLE is tried again a
few times within its deadline: all our unary methods are safe to repeat. A longer outage is
the business of `headrace.rpc.calls.persist`. Every call carries what `Security` says of its
caller.
"""

from __future__ import annotations

import json
from typing import Any, Final

import grpc

from headrace.rpc.deadlines import with_deadline
from headrace.rpc.methods import FILES
from headrace.rpc.outgoing import Fill, SyncInterceptor, aio_interceptors
from headrace.rpc.security import Security

KEEPALIVE_MS: Final = 30_000
"""How often a connection with a call under way is checked. Servers allow no less than 20 s."""

KEEPALIVE_TIMEOUT_MS: Final = 10_000
"""How long the answer to such a check may take."""

RECONNECT_MS: Final = (100, 2_000)
"""First and longest pause before connecting again. gRPC's own longest is two minutes, which
a peer that was restarted within a second should not have to wait for."""

_RETRY: Final = {
    "maxAttempts": 5,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def open_channel(target: str, security: Security | None = None) -> grpc.aio.Channel:
    """Return a channel to `host:port`. It connects with its first call.

    Args:
        target: The address.
        security: What the process presents; None = plaintext, no token, no run.

    Raises:
        UsageError: A token would go over a network in the clear.

    """
    security = security or Security()
    security.check_target(target)
    credentials, interceptors = security.channel_credentials(), aio_interceptors(_fill(security))
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=_options(), interceptors=interceptors)
    return grpc.aio.secure_channel(
        target, credentials, options=_options(), interceptors=interceptors
    )


def open_sync_channel(target: str, security: Security | None = None) -> grpc.Channel:
    """Return a channel for code without an event loop. Do not mix both in one process.

    Arguments and errors are those of `open_channel`.
    """
    security = security or Security()
    security.check_target(target)
    credentials = security.channel_credentials()
    if credentials is None:
        channel = grpc.insecure_channel(target, options=_options())
    else:
        channel = grpc.secure_channel(target, credentials, options=_options())
    return grpc.intercept_channel(channel, SyncInterceptor(_fill(security)))


def _fill(security: Security) -> Fill:
    """Complete a call's details with a deadline, and with what is said of its caller."""
    metadata = security.metadata

    def fill(details: Any) -> Any:
        return with_deadline(details._replace(metadata=(*(details.metadata or ()), *metadata)))

    return fill


def _options() -> list[tuple[str, int | str]]:
    first_ms, longest_ms = RECONNECT_MS
    return [
        ("grpc.service_config", _service_config()),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        # A long poll is silent for longer than the two pings that are allowed by default.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", first_ms),
        ("grpc.max_reconnect_backoff_ms", longest_ms),
    ]


def _service_config() -> str:
    """Return the retry policy of all our unary methods.

    It has no time-out: see `headrace.rpc.deadlines`.
    """
    names = [
        {"service": service.full_name, "method": method.name}
        for file in FILES
        for service in file.services_by_name.values()
        for method in service.methods
        if not (method.client_streaming or method.server_streaming)
    ]
    return json.dumps({"methodConfig": [{"name": names, "retryPolicy": _RETRY}]})
