"""A process's metrics over HTTP, for Prometheus: `GET /metrics`.

Served by threads of its own, so that it answers while the event loop is busy. Protected as the
process's calls are: `Authorization: Bearer TOKEN`, and TLS. Knows nothing of what is measured.
"""

from __future__ import annotations

import errno
import hmac
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import ThreadingWSGIServer

from headrace.errors import UsageError
from headrace.rpc.security import Security

PATH: Final = "/metrics"

_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

REQUEST_S: Final = 10.0
"""How long a client may take to send its request."""
_LOOK_EVERY_S: Final = 0.1
"""How soon the server notices that it is to end."""


class MetricsServer:
    """Serves a registry until closed.

    Args:
        registry: The metrics.
        host: Where to listen.
        port: 0 = a free one.
        security: What a scrape has to carry, and the certificate that is shown.

    Attributes:
        address: `host:port`.

    Raises:
        UsageError: The port is taken, or the host is no address of this machine.

    """

    def __init__(
        self, registry: CollectorRegistry, host: str, port: int, security: Security
    ) -> None:
        # Else each counter has a second series with the time of its birth.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        try:
            self._server = _server(host, port)
        except OSError as error:
            why = "the port is in use" if error.errno == errno.EADDRINUSE else str(error)
            raise UsageError(
                f"cannot serve metrics on {host}:{port}: {why}; choose another --metrics-port, or "
                "0 for any free one"
            ) from error
        if security.pair is not None:
            context = _context(*security.pair)
            # The handshake is left to the request's own thread: a slow client holds up nobody.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._server.set_app(_gate(prometheus_client.make_wsgi_app(registry), security.token))
        bracketed = f"[{host}]" if ":" in host else host
        self.address = f"{bracketed}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_EVERY_S,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving. Blocks for a moment."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _gate(application: _Application, token: str) -> _Application:
    """Answer at `PATH` only, and only those who know the token, if there is one."""
    wanted = f"Bearer {token}".encode() if token else b""

    def gated(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        given = str(environ.get("HTTP_AUTHORIZATION", "")).encode()
        if wanted and not hmac.compare_digest(given, wanted):
            start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
            return [b"metrics are given to those who know the token\n"]
        if environ.get("PATH_INFO") != PATH:
            start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"metrics are at {PATH}\n".encode()]
        return application(environ, start_response)

    return gated


def _context(key: bytes, certificate: bytes) -> ssl.SSLContext:
    """Make what TLS needs of key and certificate, in PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:  # readable by this user only
        files = Path(folder) / "cert.pem", Path(folder) / "key.pem"
        files[0].write_bytes(certificate)
        files[1].write_bytes(key)
        context.load_cert_chain(*files)
    return context


def _server(host: str, port: int) -> ThreadingWSGIServer:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]

    class Server(ThreadingWSGIServer):
        address_family = family

        def server_bind(self) -> None:
            TCPServer.server_bind(self)  # HTTPServer's own asks the name service who we are
            self.server_name, self.server_port = host, self.server_address[1]
            self.setup_environ()

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing: a client that goes away is no error of ours."""

    return Server((str(address[0]), port), _Quiet)


class _Quiet(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, *args: object) -> None:
        """Log nothing: a scrape every few seconds is not news."""
