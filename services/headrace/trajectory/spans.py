"""Which weights made which tokens of a response: a list of spans, contiguous and in order.

No two neighbours are of one version. Knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence

from headrace.v1 import prompt_pb2, trajectory_pb2


def extend(
    spans: MutableSequence[trajectory_pb2.WeightSpan],
    weights: prompt_pb2.WeightsId | trajectory_pb2.WeightSpan,
    begin: int,
    end: int,
) -> None:
    """Have tokens that one version made follow where the last span ends; its own span grows."""
    last = spans[-1] if spans else None
    if last is not None and last.version == weights.version and last.lineage == weights.lineage:
        last.end = end
        return
    span = trajectory_pb2.WeightSpan(
        lineage=weights.lineage, version=weights.version, begin=begin, end=end
    )
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
