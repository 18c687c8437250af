"""Which weights made which tokens of a response: a list of spans, contiguous and in order.

No two neighbours are of one version. Knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence

from headrace.v1 import trajectory_pb2


def append(
    spans: MutableSequence[trajectory_pb2.WeightSpan], span: trajectory_pb2.WeightSpan
) -> None:
    """Add a span that begins where the last one ends; one of the same version grows instead."""
    last = spans[-1] if spans else None
    if last is not None and (last.lineage, last.version) == (span.lineage, span.version):
        last.end = span.end
    else:
        spans.append(span)


def clipped(
    spans: Sequence[trajectory_pb2.WeightSpan], begin: int, end: int
) -> Iterator[trajectory_pb2.WeightSpan]:
    """Give what of them lies between two places of the response."""
    for span in spans:
        first, last = max(span.begin, begin), min(span.end, end)
        if first < last:
            yield trajectory_pb2.WeightSpan(
                lineage=span.lineage, version=span.version, begin=first, end=last
            )
