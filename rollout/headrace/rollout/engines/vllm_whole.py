"""Whether what vLLM made of a sequence is whole, and which weights made it, as vLLM says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.rollout.engines.base import EngineError, Response, SampleRequest
from headrace.v1 import prompt_pb2, trajectory_pb2

if TYPE_CHECKING:
    from headrace.rollout.engines.vllm_life import Piece

_REASONS: Final = {
    "stop": trajectory_pb2.FINISH_REASON_STOP,
    "length": trajectory_pb2.FINISH_REASON_LENGTH,
}


def label_of(weights: prompt_pb2.WeightsId) -> str:
    """Give the name by which vLLM knows a version."""
    return f"{weights.lineage}/{weights.version}"


def weights_of(label: str) -> prompt_pb2.WeightsId:
    """Give the version that vLLM knows by a name."""
    lineage, _, version = label.rpartition("/")
    return prompt_pb2.WeightsId(lineage=lineage, version=int(version))


def check_whole(
    request: SampleRequest, begun: int, last: Piece | None, *, stop_id: int
) -> trajectory_pb2.FinishReason.ValueType:
    """Say how a response ended, if it is whole, and have vLLM's account of its weights in it.

    Args:
        request: Has the response.
        begun: How many tokens it had before.
        last: What vLLM gave last.
        stop_id: The token that ends a response.

    Raises:
        EngineError: It is not whole, or not all of it has log-probabilities and weights.

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
    _take_account(response, begun, last.labels)
    return _REASONS[last.end]


def _take_account(response: Response, begun: int, labels: Sequence[tuple[str, int]]) -> None:
    """Replace what was thought while it grew: vLLM's core notes the weights with each step."""
    told, made = sum(count for _, count in labels), len(response.token_ids) - begun
    if told != made:
        raise EngineError(f"vLLM says of {told} tokens which weights made them, of {made}")
    response.attribute(begun, [(weights_of(label), count) for label, count in labels])
