"""The address by which others reach a process, as opposed to the one it is bound to."""

from __future__ import annotations

import socket
from typing import Final

EVERYWHERE: Final = ("0.0.0.0", "[::]")  # noqa: S104 - recognised here, not bound
"""Hosts that mean all interfaces; nobody can connect to them from another machine."""


def advertised(address: str, host: str | None) -> str:
    """Give the `host:port` that others may use for what is bound to `address`.

    Args:
        address: `host:port`, as bound.
        host: What the configuration says others call it; None = the bound host, or, bound to all
            interfaces, the name of this machine.

    """
    bound, _, port = address.rpartition(":")
    if host is None:
        host = socket.gethostname() if bound in EVERYWHERE else bound
    elif ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{host}:{port}"
