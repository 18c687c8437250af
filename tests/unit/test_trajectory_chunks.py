from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ChecksumMismatchError, InvalidFieldError
from headrace.trajectory.chunks import MAX_MESSAGE_BYTES, Joiner, Value, split, verify
from headrace.v1 import store_pb2 as pb


def join(messages: Iterable[list[pb.TrajectoryChunk]]) -> list[Value]:
    joiner = Joiner()
    joined = [joiner.add(chunk) for message in messages for chunk in message]
    joiner.finish()
    return [value for value in joined if value is not None]


@given(
    st.lists(st.binary(max_size=300), max_size=20),
    st.integers(60, 400),
)
def test_values_of_any_sizes_come_back_whole_and_in_order(
    contents: list[bytes], max_message_bytes: int
) -> None:
    values = [Value.sealed(f"k{i}", data) for i, data in enumerate(contents)]

    joined = join(split(values, max_message_bytes=max_message_bytes))

    assert joined == values
    for value in joined:
        verify(value)


@given(st.lists(st.integers(0, 3000), max_size=20), st.integers(100, 2000))
def test_no_message_is_larger_than_the_limit(sizes: list[int], limit: int) -> None:
    values = [Value.sealed(f"key{i}", bytes(size)) for i, size in enumerate(sizes)]

    for chunks in split(values, max_message_bytes=limit):
        assert pb.PutTrajectoriesRequest(chunks=chunks).ByteSize() <= limit


def test_many_small_values_share_a_message_and_a_large_one_is_spread() -> None:
    small = [Value.sealed(f"s{i}", bytes(1000)) for i in range(512)]
    large = [Value.sealed("l", bytes(5 * MAX_MESSAGE_BYTES))]

    assert len(list(split(small))) == 1
    assert len(list(split(large))) == 6


def test_a_flipped_bit_is_found_and_the_key_is_named() -> None:
    good = Value.sealed("k0", b"abc")

    with pytest.raises(ChecksumMismatchError, match="k0") as failed:
        verify(Value(key="k0", data=b"abd", crc32c=good.crc32c))

    assert failed.value.metadata == {"key": "k0"}


def chunk(
    key: str = "k0", offset_bytes: int = 0, total_bytes: int = 4, data: bytes = b"ab", crc: int = 1
) -> pb.TrajectoryChunk:
    return pb.TrajectoryChunk(
        key=key, offset_bytes=offset_bytes, total_bytes=total_bytes, crc32c=crc, data=data
    )


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        ([chunk(key="")], "a key must have"),
        ([chunk(key="k" * 1025)], "a key must have"),
        ([chunk(total_bytes=-1)], "total_bytes must be"),
        ([chunk(total_bytes=2**40)], "total_bytes must be"),
        ([chunk(offset_bytes=1)], "goes on at byte 1, not at 0"),
        ([chunk(), chunk()], "goes on at byte 0, not at 2"),
        ([chunk(), chunk(key="k1")], "'k1' begins before 'k0' has ended"),
        ([chunk(), chunk(offset_bytes=2, crc=2)], "changes its size or checksum"),
        ([chunk(), chunk(offset_bytes=2, total_bytes=5)], "changes its size or checksum"),
        ([chunk(), chunk(offset_bytes=2, data=b"abc")], "longer than it said"),
        ([chunk(), chunk(offset_bytes=2, data=b"")], "chunk without data"),
        ([chunk()], "ends at byte 2 of 4"),
    ],
)
def test_a_malformed_stream_is_refused_with_what_is_wrong(
    chunks: list[pb.TrajectoryChunk], why: str
) -> None:
    with pytest.raises(InvalidFieldError, match=why):
        join([chunks])
