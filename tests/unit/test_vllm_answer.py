"""What is seen of an answer while it comes."""

from __future__ import annotations

from headrace.rollout.engines.base import SampleRequest
from headrace.rollout.engines.vllm_server.answer import Answer
from headrace.rollout.engines.vllm_server.wire import Piece
from headrace.v1 import prompt_pb2


def weights(version: int) -> prompt_pb2.WeightsId:
    return prompt_pb2.WeightsId(lineage="l0", version=version)


def piece(count: int) -> Piece:
    return Piece([7] * count, [-0.5] * count, None, [])


def test_no_token_passes_for_newer_than_it_is() -> None:
    request = SampleRequest("e0r0", 0, 1, [2, 3], 1.0, 64)
    answer = Answer(request, weights=weights(0), eos_id=1)
    answer.trust(True)
    answer.add(piece(1), weights(0))
    # The server was given others while some of these waited there for the rest of their piece.
    answer.add(piece(16), weights(1))
    answer.add(piece(16), weights(1))

    spans = [(span.version, span.begin, span.end) for span in request.response.weight_spans]
    assert spans == [(0, 0, 17), (1, 17, 33)]
