"""A gRPC server as all our processes have it.

Knows the options and the interceptors, not the services.
"""

from __future__ import annotations

import errno
import socket
from typing import Final

import grpc
from prometheus_client import CollectorRegistry

from headrace.errors import UsageError
from headrace.rpc.interceptors.calls import CallInterceptor
from headrace.rpc.interceptors.errors import ErrorInterceptor
from headrace.rpc.interceptors.gate import GateInterceptor
from headrace.rpc.security import Security

MAX_MESSAGE_BYTES: Final = 4 * 2**20
"""gRPC's own limit, kept on purpose: a bigger control message is a mistake."""

MAX_PENDING_CALLS: Final = 20_000
"""By default a burst of more than 3,000 calls is answered with CANCELLED, in part."""

MIN_PING_INTERVAL_MS: Final = 20_000
"""Clients ping every 30 s; a server that does not allow it ends their connection."""

CONNECTION_AGE_MS: Final = 60_000
"""After this long a connection takes no new calls, and its client makes another one: it may lead to
a process that was given the address of the one that is meant."""

OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    # Otherwise two servers may share a port, and an occupied one looks free.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
)


def create_server(
    registry: CollectorRegistry,
    *,
    process: str = "server",
    run_id: str = "",
    security: Security | None = None,
) -> grpc.aio.Server:
    """Return a server without services and ports.

    Args:
        registry: Where its metrics are registered.
        process: Its name, for those that it refuses.
        run_id: Calls made for other runs are refused; empty = none is.
        security: Whose token calls have to carry; None = none.

    """
    token = security.token if security is not None else ""
    gate = GateInterceptor(process=process, run_id=run_id, token=token)
    return grpc.aio.server(
        interceptors=[CallInterceptor(registry), ErrorInterceptor(), gate], options=OPTIONS
    )


def bind(server: grpc.aio.Server, host: str, port: int, security: Security | None = None) -> str:
    """Listen on `host:port`; port 0 takes a free one.

    Returns:
        The address, `host:port`.

    Raises:
        UsageError: The host is not a loopback address and there is no token or no TLS, or the
            port is taken.

    """
    security = security or Security()
    security.check_host(host)
    return listen(server, host, port, security.server_credentials())


def listen(
    server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None
) -> str:
    """Listen on `host:port`, whoever may reach that; None = in plaintext.

    Returns:
        The address, `host:port`.

    Raises:
        UsageError: The port is taken.

    """
    bracketed = f"[{host}]" if ":" in host else host
    _check_free(host, port)
    try:
        if credentials is None:
            bound = server.add_insecure_port(f"{bracketed}:{port}")
        else:
            bound = server.add_secure_port(f"{bracketed}:{port}", credentials)
    except RuntimeError as error:  # taken since the check; gRPC does not say why
        raise UsageError(_refused(host, port, str(error))) from error
    return f"{bracketed}:{bound}"


def _check_free(host: str, port: int) -> None:
    """Bind once without gRPC, which hides the cause and writes to stderr."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        why = "the port is in use" if error.errno == errno.EADDRINUSE else str(error)
        raise UsageError(_refused(host, port, why)) from error


def _refused(host: str, port: int, why: str) -> str:
    return (
        f"cannot listen on {host}:{port}: {why}; stop what uses the port, choose another one, or "
        "port 0 for any free one"
    )
