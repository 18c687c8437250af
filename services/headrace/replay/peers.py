"""Where the other processes of the run listen: as configured, or as they last said.

In memory only. The checkpoint coordinator does not say it: it is known by configuration alone.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from headrace.config.services import EndpointsConfig

Peer: TypeAlias = Literal["feeder", "store", "trainer"]


class Peers:
    """Addresses for whoever asks the replay buffer for the run's state."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        """`host:port` by process name."""
        self.run_dir = ""
        """The run directory, as this process sees it."""

    def take(self, endpoints: EndpointsConfig) -> None:
        """Begin with what the configuration names: who calls says better where it listens."""
        for name in ("feeder", "store", "trainer", "checkpoint"):
            address: str | None = getattr(endpoints, name)
            if address is not None:
                self.addresses[name] = address

    def hear(self, name: Peer, address: str) -> None:
        """Note where a process listens; one that does not say so changes nothing."""
        if address:
            self.addresses[name] = address
