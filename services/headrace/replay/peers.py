"""Where the other processes of the run listen, as they last said. In memory only."""

from __future__ import annotations

from typing import Literal, TypeAlias

Peer: TypeAlias = Literal["feeder", "store", "trainer"]


class Peers:
    """Addresses for whoever asks the replay buffer for the run's state."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        """`host:port` by process name."""
        self.run_dir = ""
        """The run directory, as this process sees it."""

    def hear(self, name: Peer, address: str) -> None:
        """Note where a process listens; one that does not say so changes nothing."""
        if address:
            self.addresses[name] = address
