"""What the feed reads from: prompts in their order, each with its ordinal and its name.

    NumberedSupply   rows that can be read by number; an order says which stands where
    StreamSupply     rows that come as they come; a state says where to go on

Knows nothing of demand and of the replay buffer. What reads, blocks: it is run in a thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace.errors import UsageError
from headrace.feeder.order import RowOrder
from headrace.feeder.prompts import Packer, Prompts
from headrace.feeder.sources.stream import StreamRows
from headrace.v1 import feeder_pb2, prompt_pb2, replay_pb2


@dataclass(frozen=True)
class Offer:
    """A prompt that can be registered."""

    prompt: replay_pb2.NewPrompt
    """The prompt, or that it is too long."""
    state: str = ""
    """State of the stream after it; empty for what can seek."""

    @property
    def is_usable(self) -> bool:
        """Whether it serves demand."""
        return self.prompt.drop_reason == prompt_pb2.DROP_REASON_UNSPECIFIED

    @property
    def size(self) -> int:
        """Bytes in a message, with the fields' headers."""
        return self.prompt.ByteSize() + 8 + (len(self.state.encode()) + 8 if self.state else 0)


class Supply(Protocol):
    """Prompts in their order."""

    @property
    def name(self) -> str:
        """What messages call the data."""

    @property
    def row_count(self) -> int | None:
        """Rows in an epoch; None if nobody knows."""

    @property
    def read_count(self) -> int:
        """Rows read so far."""

    @property
    def is_slow(self) -> bool:
        """Whether rows may be long in coming, so that none should wait for the next."""

    @property
    def packer(self) -> Packer:
        """Makes the prompts."""

    def begin(self, ordinal: int, state: str) -> None:
        """Go to an ordinal.

        Args:
            ordinal: The next to be read.
            state: The state of a stream there; empty for its beginning.

        Raises:
            UsageError: the stream does not take the state.

        """

    def read(self, ordinals: range) -> list[Offer]:
        """Read what comes next; less only if the data ends there.

        Raises:
            UsageError: a row is not usable.

        """

    def uid(self, ordinal: int) -> str:
        """Name the prompt of an ordinal."""


class NumberedSupply:
    """Rows by number, in an order."""

    is_slow = False

    def __init__(self, prompts: Prompts, order: RowOrder) -> None:
        self._prompts = prompts
        self._order = order
        self.packer = prompts.packer

    @property
    def name(self) -> str:
        """The data set's name."""
        return self._prompts.source_name

    @property
    def row_count(self) -> int:
        """Rows in an epoch."""
        return self._order.row_count

    @property
    def read_count(self) -> int:
        """Rows read so far, for whatever purpose."""
        return self._prompts.read_count

    def begin(self, ordinal: int, state: str) -> None:
        """Do nothing: every ordinal is as near as any other."""

    def read(self, ordinals: range) -> list[Offer]:
        """Read rows by their places."""
        places = [self._order.place(ordinal) for ordinal in ordinals]
        payloads = self._prompts.read([place.row for place in places])
        return [
            Offer(_prompt(place.uid, payload, self.packer))
            for place, payload in zip(places, payloads, strict=True)
        ]

    def uid(self, ordinal: int) -> str:
        """Name it by its epoch and row."""
        return self._order.place(ordinal).uid


class StreamSupply:
    """Rows as they come."""

    is_slow = True
    row_count = None

    def __init__(self, stream: StreamRows, packer: Packer) -> None:
        self._stream = stream
        self._next = -1
        self._lost_at = 0
        self.packer = packer
        self.read_count = 0

    @property
    def name(self) -> str:
        """The function's name."""
        return self._stream.name

    def begin(self, ordinal: int, state: str) -> None:
        """Load the state.

        There is none after the last prompt of a run whose end left rows over; nothing is read
        then.
        """
        self._next = ordinal
        self._lost_at = ordinal if not state else 0
        if not self._lost_at:
            self._stream.begin(state)

    def read(self, ordinals: range) -> list[Offer]:
        """Take rows off the stream."""
        assert ordinals.start == self._next
        if self._lost_at:
            raise UsageError(
                f"data: {self.name} cannot go on at row {self._lost_at}: the run has no state of it"
            )
        offers = []
        for ordinal in ordinals:
            got = self._stream.next_row(ordinal)
            if got is None:
                break
            row, state = got
            payload = self.packer.pack(row, where=f"{self.name}, row {ordinal}")
            offers.append(Offer(_prompt(self.uid(ordinal), payload, self.packer), state))
            self._next += 1
            self.read_count += 1
        return offers

    def uid(self, ordinal: int) -> str:
        """Name it by its number: a stream is read once."""
        return f"e0r{ordinal}"


def _prompt(uid: str, payload: feeder_pb2.PromptPayload, packer: Packer) -> replay_pb2.NewPrompt:
    if packer.is_too_long(payload):
        return replay_pb2.NewPrompt(uid=uid, drop_reason=prompt_pb2.DROP_REASON_TOO_LONG)
    return replay_pb2.NewPrompt(uid=uid, payload=payload)
