"""One call's answer: what comes of it goes into the response, and is accounted for at the end.

Two things have to be certain before a token can be seen. That it came from the life of the server
that this worker has looked at, which a look after the beginning of the answer shows, and from
weights that this worker has tried (`trust`); what comes before is kept back. And that an answer is
whole (`check`, `finish`): its last piece is kept back until then. What can be seen once is never
taken back.

While they come, tokens are put down to the weights that the worker knew the server to have when it
began with them: when those before had come. It learns of others a little later than the server has
them, so that no token passes for newer than it is. With its end an answer says which weights made
which tokens.
"""

from __future__ import annotations

from headrace.rollout.engines.base import EngineLostError, Sample, SampleRequest
from headrace.rollout.engines.vllm_server.calls import ServerAwayError
from headrace.rollout.engines.vllm_server.tag import Tag
from headrace.rollout.engines.vllm_server.wire import MalformedError, Piece, Span
from headrace.v1 import prompt_pb2, trajectory_pb2


class OtherWeightsError(EngineLostError):
    """What made the tokens is no version of ours: the server was started again, most likely."""


class Answer:
    """One call's share of a response.

    Args:
        request: What it was made for.
        weights: What the server has, as far as is known, when it is asked.
        eos_id: The token that stops it.

    """

    def __init__(
        self, request: SampleRequest, *, weights: prompt_pb2.WeightsId, eos_id: int
    ) -> None:
        self._request = request
        self._response = request.response
        self._eos_id = eos_id
        self._weights = weights
        self._begin = len(request.response.token_ids)
        self._kept: list[tuple[Piece, prompt_pb2.WeightsId]] = []
        self._last: Piece | None = None
        self._is_trusted = False

    @property
    def token_count(self) -> int:
        """Tokens that have come."""
        kept = sum(len(piece.token_ids) for piece, _ in self._kept)
        return len(self._response.token_ids) - self._begin + kept

    def add(self, piece: Piece, weights: prompt_pb2.WeightsId) -> None:
        """Take what has come, and what the server has by now."""
        if self._last is not None:
            raise MalformedError("tokens behind the end of an answer")
        self._kept.append((piece, self._weights))
        self._weights = weights
        if piece.finish_reason is not None:
            self._last = piece
        elif self._is_trusted:
            self._show()

    def trust(self, is_trusted: bool) -> None:
        """Be certain, or not, of the server's life and of the weights it has."""
        self._is_trusted = is_trusted
        if is_trusted and self._last is None:
            self._show()

    def _show(self) -> None:
        for piece, weights in self._kept:
            self._response.extend(piece.token_ids, piece.logprobs, weights)
        self._kept.clear()

    def check(self) -> Tag:
        """See whether it is whole; return the last weights that had a part in it.

        Raises:
            ServerAwayError: It broke off.
            MalformedError: It is too short, or is not what was asked for.
            OtherWeightsError: Other weights than ours made it.

        """
        self._reason()
        return self._parts()[-1][0]

    def finish(self) -> Sample:
        """Complete the response of an answer that was checked, each token with what made it."""
        parts, reason = self._parts(), self._reason()
        self._show()
        shares = [(tag.weights, span.end - span.begin) for tag, span in parts]
        self._response.attribute(self._begin, shares)
        return Sample(self._response, reason)

    def _parts(self) -> list[tuple[Tag, Span]]:
        """Say which weights made which tokens of this answer."""
        assert self._last is not None, "it has an end"
        spans = self._last.spans
        ends = [0, *(span.end for span in spans)]
        if [span.begin for span in spans] != ends[:-1] or ends[-1] != self.token_count:
            raise MalformedError(f"{self.token_count} tokens, and weights of {spans}")
        found = []
        for span in spans:
            tag = Tag.parse(span.label)
            if tag is None:
                raise OtherWeightsError(f"tokens were made by weights called {span.label!r}")
            found.append((tag, span))
        return found

    def _reason(self) -> trajectory_pb2.FinishReason.ValueType:
        """Say why it ended, if that is the case."""
        last = self._last
        if last is None or last.finish_reason == "abort":
            raise ServerAwayError(f"an answer broke off after {self.token_count} tokens")
        count, limit = self._begin + self.token_count, self._request.max_response_length
        last_ids = [each for piece, _ in self._kept for each in piece.token_ids][-1:]
        if self.token_count and count <= limit:
            if last.finish_reason == "stop" and last_ids == [self._eos_id]:
                return trajectory_pb2.FINISH_REASON_STOP
            if last.finish_reason == "length" and count == limit:
                return trajectory_pb2.FINISH_REASON_LENGTH
        raise MalformedError(
            f"an answer ended by {last.finish_reason!r} with {count} tokens of at most {limit}, the "
            f"last {last_ids}; the stop token is {self._eos_id}"
        )
