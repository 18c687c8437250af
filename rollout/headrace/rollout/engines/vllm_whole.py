"""Whether what vLLM made of a sequence is whole, and made by the weights it is thought to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from headrace.rollout.engines.base import EngineError, Response, SampleRequest
from headrace.rollout.engines.vllm_life import Piece
from headrace.v1 import prompt_pb2, trajectory_pb2

_REASONS: Final = {
    "stop": trajectory_pb2.FINISH_REASON_STOP,
    "length": trajectory_pb2.FINISH_REASON_LENGTH,
}


def label_of(weights: prompt_pb2.WeightsId | trajectory_pb2.WeightSpan) -> str:
    """Give the name by which vLLM knows a version."""
    return f"{weights.lineage}/{weights.version}"


def check_whole(
    request: SampleRequest, begun: int, last: Piece | None, *, stop_id: int
) -> trajectory_pb2.FinishReason.ValueType:
    """Say how a response ended, if it is whole.

    Args:
        request: Has the response.
        begun: How many tokens it had before.
        last: What vLLM gave last.
        stop_id: The token that ends a response.

    Raises:
        EngineError: It is not whole, has no log-probabilities, or vLLM says that other weights
            made a token.

    """
    if last is None:
        raise EngineError("vLLM gave nothing")
    response, limit = request.response, request.max_response_length
    stopped = last.end == "stop" and response.token_ids[-1:] == [stop_id]
    full = last.end == "length" and len(response.token_ids) == limit
    if last.end is None or not (stopped or full):
        raise EngineError(
            f"vLLM ended a response after {len(response.token_ids)} of {limit} tokens: {last.end}"
        )
    if not all(map(math.isfinite, response.logprobs)):
        raise EngineError("vLLM gave a log-probability that is not a number")
    _confirm_spans(response, begun, last.labels)
    return _REASONS[last.end]


def _confirm_spans(response: Response, begun: int, labels: Sequence[tuple[str, int]]) -> None:
    end = begun
    for label, count in labels:
        begin, end = end, end + count
        for span in response.weight_spans:
            if span.begin < end and span.end > begin and label_of(span) != label:
                raise EngineError(
                    f"tokens {begin} to {end} of a response were made by {label} as vLLM says, and "
                    f"by {label_of(span)} as it was understood"
                )
    if end != len(response.token_ids):
        raise EngineError(
            f"vLLM says of {end} tokens which weights made them, of {len(response.token_ids)}"
        )
