"""What an engine and the trainer want of each other where weights come without a file of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headrace.v1 import prompt_pb2


@dataclass(frozen=True, slots=True)
class Invitation:
    """How the processes of an engine join a group that the trainer sends weights to."""

    nccl_unique_id: bytes
    """NCCL's own name of the group."""
    packed_buffer_bytes: int
    packed_buffer_count: int
    """How the trainer packs what it sends."""


class Sender(Protocol):
    """The trainer, as one that sends weights straight to the processes of an engine."""

    timeout_s: float
    """How long joining may take, and receiving a version."""

    @property
    def is_open(self) -> bool:
        """Whether there is a group, as far as is known here."""
        ...

    async def open(self, receiver_count: int) -> Invitation:
        """Open a group with so many processes; it has to be joined now.

        Raises:
            EngineError: The trainer cannot.

        """
        ...

    async def send(self, weights: prompt_pb2.WeightsId) -> None:
        """Have it begin to send a version, which has to be received now.

        Raises:
            EngineError: It does not.

        """
        ...

    async def close(self) -> None:
        """End the group, whatever state it is in. Safe to repeat."""
        ...


@runtime_checkable
class Receiver(Protocol):
    """An engine that can take weights without a file of them."""

    async def receive(self, weights: prompt_pb2.PublishedWeights, sender: Sender) -> None:
        """Take weights as `load` does, of which all files but the largest are there.

        What arrives is checked by the digests in one of those files.

        Raises:
            EngineError: As `load` does.

        """
        ...
