"""The address by which others reach a process, as opposed to the one it is bound to."""

from __future__ import annotations

import socket
from typing import Final

EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - recognised here, not bound
"""Hosts that mean all interfaces, which nobody can connect to from another machine and no
certificate names; and what they are on this one."""


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


def from_here(address: str) -> str:
    """Give the `host:port` by which processes of this machine reach what is bound to `address`."""
    bound, _, port = address.rpartition(":")
    return f"{EVERYWHERE.get(bound, bound)}:{port}"
