"""Serialized trajectories as a stream of chunks, and back.

Knows sizes and checksums; not what the bytes mean, and nothing of gRPC.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import crc32c

from headrace.errors import ChecksumMismatchError, InvalidFieldError
from headrace.v1 import store_pb2 as pb

MAX_MESSAGE_BYTES = 2**20
"""Most bytes of chunks in one message."""
MAX_KEY_BYTES = 1024
"""Longest key."""
MAX_CALL_BYTES = 256 * 2**20
"""Most bytes of values in one put, and the size of the largest value: a call is held in memory."""
_CHUNK_OVERHEAD_BYTES = 48
"""Most bytes a chunk takes on the wire beside its key and its data."""


@dataclass(frozen=True, slots=True)
class Value:
    """One serialized trajectory, whole."""

    key: str
    """Its key."""
    data: bytes
    """The bytes."""
    crc32c: int
    """CRC32C of the bytes."""

    @classmethod
    def sealed(cls, key: str, data: bytes) -> Value:
        """Take bytes as they are now and compute their checksum."""
        return cls(key=key, data=data, crc32c=crc32c.crc32c(data))


def split(
    values: Iterable[Value], *, max_message_bytes: int = MAX_MESSAGE_BYTES
) -> Iterator[list[pb.TrajectoryChunk]]:
    """Cut values into chunks and pack them, in order, into messages.

    Yields the chunks of one message at a time. Many small values share a message, a large one is
    spread over several. No value, no message.
    """
    message: list[pb.TrajectoryChunk] = []
    room = max_message_bytes
    for value in values:
        overhead = len(value.key.encode()) + _CHUNK_OVERHEAD_BYTES
        offset, total = 0, len(value.data)
        while True:
            if room <= overhead and message:
                yield message
                message, room = [], max_message_bytes
            data = value.data[offset : offset + max(1, room - overhead)]
            message.append(
                pb.TrajectoryChunk(
                    key=value.key,
                    offset_bytes=offset,
                    total_bytes=total,
                    crc32c=value.crc32c,
                    data=data,
                )
            )
            offset += len(data)
            room -= overhead + len(data)
            if offset == total:
                break
    if message:
        yield message


class Joiner:
    """Puts chunks together again.

    A value's chunks follow each other, in order. Whether the bytes of a whole value are those that
    were sealed is for the caller to check, by `verify`: a reader may want to go on without it.
    """

    def __init__(self) -> None:
        self._first: pb.TrajectoryChunk | None = None
        self._pieces: list[bytes] = []
        self._size_bytes = 0

    def add(self, chunk: pb.TrajectoryChunk) -> Value | None:
        """Take the next chunk; return the value that it completes, if it does.

        Raises:
            InvalidFieldError: the chunk is malformed or out of order.

        """
        first = self._first
        if first is None:
            first = self._begin(chunk)
        elif chunk.key != first.key:
            raise InvalidFieldError(
                "chunks", f"{chunk.key!r} begins before {first.key!r} has ended"
            )
        elif (chunk.total_bytes, chunk.crc32c) != (first.total_bytes, first.crc32c):
            raise InvalidFieldError("chunks", f"{chunk.key!r} changes its size or checksum midway")
        if chunk.offset_bytes != self._size_bytes:
            raise InvalidFieldError(
                "chunks",
                f"{chunk.key!r} goes on at byte {chunk.offset_bytes}, not at {self._size_bytes}",
            )
        if not chunk.data and first.total_bytes > 0:
            raise InvalidFieldError("chunks", f"{chunk.key!r} has a chunk without data")
        self._pieces.append(chunk.data)
        self._size_bytes += len(chunk.data)
        if self._size_bytes > first.total_bytes:
            raise InvalidFieldError("chunks", f"{chunk.key!r} is longer than it said")
        if self._size_bytes < first.total_bytes:
            return None
        value = Value(key=first.key, data=b"".join(self._pieces), crc32c=first.crc32c)
        self._first, self._pieces, self._size_bytes = None, [], 0
        return value

    def finish(self) -> None:
        """Say that no more chunks come.

        Raises:
            InvalidFieldError: a value is incomplete.

        """
        if self._first is not None:
            raise InvalidFieldError(
                "chunks",
                f"{self._first.key!r} ends at byte {self._size_bytes} of {self._first.total_bytes}",
            )

    def _begin(self, chunk: pb.TrajectoryChunk) -> pb.TrajectoryChunk:
        if not 0 < len(chunk.key.encode()) <= MAX_KEY_BYTES:
            raise InvalidFieldError("chunks", f"a key must have 1 to {MAX_KEY_BYTES} bytes")
        if not 0 <= chunk.total_bytes <= MAX_CALL_BYTES:
            raise InvalidFieldError(
                "chunks", f"{chunk.key!r}: total_bytes must be 0 to {MAX_CALL_BYTES}"
            )
        self._first = chunk
        return chunk


def verify(value: Value) -> None:
    """Compare a value with its checksum.

    Raises:
        ChecksumMismatchError: the bytes are not those that were sealed.

    """
    found = crc32c.crc32c(value.data)
    if found != value.crc32c:
        raise ChecksumMismatchError(
            f"{value.key}: CRC32C is {found:08x}, not {value.crc32c:08x}", key=value.key
        )
