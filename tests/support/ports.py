"""Ports chosen now and listened on later, also again after a death.

They lie below those that the system gives to whoever connects somewhere: one of these is soon
somebody else's.
"""

from __future__ import annotations

import itertools
import random
import socket
from pathlib import Path

LOWEST = 10000
_NEXT = itertools.count(random.SystemRandom().randrange(2**16))
"""Where this process goes on: it chooses none twice, and another one hardly begins here."""


def free_port() -> int:
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    ports = range(LOWEST, int(given.split()[0]))
    for number in itertools.islice(_NEXT, len(ports)):
        port = ports[number % len(ports)]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no port of {ports} is free")
