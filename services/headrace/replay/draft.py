"""A session's response as far as it is known while it is not done.

It is kept as the message that a lease gives it to a worker in: 8 bytes a token in memory.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from headrace.trajectory import spans
from headrace.v1 import prompt_pb2

BYTES_PER_TOKEN: Final = 8
"""An id and a log-probability."""


def length(draft: prompt_pb2.Draft | None) -> int:
    """Count its tokens."""
    return len(draft.token_ids) if draft is not None else 0


def oldest(draft: prompt_pb2.Draft) -> int:
    """Name the oldest weights that made a token of it."""
    return min(span.version for span in draft.weight_spans)


def is_whole(piece: prompt_pb2.Draft) -> bool:
    """Whether each token has its log-probability and its weights."""
    count, end = len(piece.token_ids), piece.offset
    for span in piece.weight_spans:
        if span.begin != end or span.end <= end:
            return False
        end = span.end
    return piece.offset >= 0 and len(piece.logprobs) == count and end == piece.offset + count


def stretch(piece: prompt_pb2.Draft, begin: int, end: int) -> prompt_pb2.Draft:
    """Give the part of a piece that lies between two places of the response."""
    tokens = slice(max(0, begin - piece.offset), max(0, end - piece.offset))
    return prompt_pb2.Draft(
        session=piece.session,
        offset=begin,
        token_ids=piece.token_ids[tokens],
        logprobs=piece.logprobs[tokens],
        weight_spans=spans.clipped(piece.weight_spans, begin, end),
    )


def known_until(
    piece: prompt_pb2.Draft, known: Collection[tuple[str, int]], *, from_version: int
) -> int:
    """Give the place of the first token by weights that are not known, or before a version."""
    for span in piece.weight_spans:
        if (span.lineage, span.version) not in known or span.version < from_version:
            return span.begin
    return piece.offset + len(piece.token_ids)


def grow(draft: prompt_pb2.Draft, piece: prompt_pb2.Draft) -> None:
    """Add a piece that begins where the draft ends."""
    assert piece.offset == length(draft)
    draft.token_ids.extend(piece.token_ids)
    draft.logprobs.extend(piece.logprobs)
    for span in piece.weight_spans:
        spans.extend(draft.weight_spans, span, span.begin, span.end)


def cut(draft: prompt_pb2.Draft, newest: int) -> prompt_pb2.Draft:
    """Give the draft up to the first token by weights after `newest`."""
    later = (span.begin for span in draft.weight_spans if span.version > newest)
    return stretch(draft, 0, next(later, length(draft)))
