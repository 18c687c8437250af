"""What a rollout worker wants of an engine.

Knows nothing of leases, rewards and the wire: an engine takes sequences to sample and
gives each back through a future of its own, in any order.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.trajectory import spans
from headrace.v1 import prompt_pb2, trajectory_pb2


class EngineError(HeadraceError):
    """A sequence could not be generated, or weights not be loaded. Never a reward of zero.

    Attributes:
        weights_lost: After `load`: whether the old weights are gone, too, so that nothing may be
            generated until others are loaded.

    """

    weights_lost: bool = False


class EngineLostError(EngineError):
    """The engine died under what it was doing. Nobody's fault: the work is handed back."""

    weights_lost = True


@dataclass(slots=True)
class Response:
    """What there is of a response. It grows while it is sampled."""

    token_ids: list[int] = field(default_factory=list)
    """The tokens, the stop token included."""
    logprobs: list[float] = field(default_factory=list)
    """Per token, its log-probability under the distribution it was drawn from."""
    weight_spans: list[trajectory_pb2.WeightSpan] = field(default_factory=list)
    """Which weights made which tokens; contiguous, in order, no two neighbours of one version."""

    def extend(
        self, token_ids: Sequence[int], logprobs: Sequence[float], weights: prompt_pb2.WeightsId
    ) -> None:
        """Add tokens that one version of the weights made."""
        if not token_ids:
            return
        begin = len(self.token_ids)
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)
        spans.extend(self.weight_spans, weights, begin, len(self.token_ids))

    def attribute(self, begin: int, shares: Iterable[tuple[prompt_pb2.WeightsId, int]]) -> None:
        """Say anew what made the tokens from a place on: weights, each with a number of tokens."""
        token_ids, logprobs = self.token_ids[begin:], self.logprobs[begin:]
        self.cut(begin)
        place = 0
        for weights, count in shares:
            share = slice(place, place + count)
            self.extend(token_ids[share], logprobs[share], weights)
            place += count

    @classmethod
    def of(cls, draft: prompt_pb2.Draft) -> Response:
        """Go on with what another worker has made."""
        own = prompt_pb2.Draft()
        own.CopyFrom(draft)
        return cls(list(own.token_ids), list(own.logprobs), list(own.weight_spans))

    def stretch(self, session: int, begin: int, end: int) -> prompt_pb2.Draft:
        """Give the tokens between two places to others."""
        return prompt_pb2.Draft(
            session=session,
            offset=begin,
            token_ids=self.token_ids[begin:end],
            logprobs=self.logprobs[begin:end],
            weight_spans=spans.clipped(self.weight_spans, begin, end),
        )

    def cut(self, length: int) -> None:
        """Forget what is behind the first `length` tokens."""
        del self.token_ids[length:], self.logprobs[length:]
        self.weight_spans = [span for span in self.weight_spans if span.begin < length]
        if self.weight_spans:
            self.weight_spans[-1].end = length


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One sequence to sample."""

    uid: str
    """The prompt group."""
    session: int
    """Which of the group's n sessions."""
    attempt: int
    """The lease's number: another attempt samples other tokens."""
    prompt_token_ids: Sequence[int]
    """The prompt; at least one token."""
    temperature: float
    """Softmax temperature; nothing else changes the distribution."""
    max_response_length: int
    """The most response tokens, the stop token and what `response` begins with included."""
    response: Response = field(default_factory=Response)
    """Where the tokens go, on the loop's thread. The engine goes on behind those that are there
    already. The last ones and the future's end come in one turn of the loop, so that who looks
    in between sees a response that is not done."""

    def seed(self, base: int) -> int:
        """Return 64 bits that depend on nothing but `base` and who this sequence is."""
        name = f"{base}:{self.uid}:{self.session}:{self.attempt}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence that was sampled to its end."""

    response: Response
    """All of it; the request's own."""
    finish_reason: trajectory_pb2.FinishReason.ValueType
    """STOP or LENGTH."""


@dataclass(slots=True)
class EngineLoad:
    """How busy an engine is that schedules by itself."""

    running: int = 0
    """Sequences that are in its batch."""
    waiting: int = 0
    """Sequences that it has no place for yet."""
    kv_use: float = 0.0
    """Share of its memory for keys and values that is in use."""
    preemption_count: int = 0
    """How often a sequence had to give up its place, and is begun again with what it has."""
    prefix_query_token_count: int = 0
    """Prompt tokens of the sequences begun."""
    prefix_hit_token_count: int = 0
    """Those of them whose keys and values were there."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What an engine has done so far."""

    generated_token_count: int
    """Tokens sampled, those of aborted sequences included."""
    aborted_token_count: int
    """Tokens sampled for sequences that were aborted."""
    probe_gap: float | None = None
    """Mean absolute gap of log-probabilities to the trainer's, in nats, of the weights that were
    tried last; None before, or if the trainer gave no probe."""
    held_back_s: float = 0.0
    """Seconds in which no sequence was begun, as weights were being taken."""
    room: int | None = None
    """How many sequences it makes good use of at a time; None if there is no telling."""
    load: EngineLoad | None = None
    """Of an engine that schedules by itself."""


class Engine(Protocol):
    """Samples sequences with the weights it has loaded.

    All methods are called on the event loop's thread.
    """

    @property
    def kind(self) -> str:
        """The name it has in the configuration."""
        ...

    async def start(self) -> None:
        """Get ready to load weights."""
        ...

    async def close(self) -> None:
        """Give up what is under way, and all resources."""
        ...

    async def load(self, weights: prompt_pb2.PublishedWeights) -> None:
        """Confirm published weights by their checksum, and take them.

        Sequences under way are finished by the weights they began with. If `partial_rollout` is
        configured they go on with the new ones instead, from the next token on.

        Raises:
            EngineError: The weights are not what was published, do not fit, or the engine finds
                other log-probabilities with them than the trainer. The old ones stay, unless the
                error says `weights_lost`.

        """
        ...

    def generate(self, requests: Sequence[SampleRequest]) -> list[asyncio.Future[Sample]]:
        """Begin to sample; weights must have been loaded.

        A future gives the sample or raises `EngineError`. Cancelling it aborts its sequence:
        between two tokens it leaves the batch, and what it had so far is in its `response`.
        """
        ...

    def status(self) -> EngineStatus:
        """Say what was done so far."""
        ...

    def when_lost(self, tell: Callable[[], None]) -> None:
        """Have `tell` called whenever the engine has lost its weights by itself.

        Until others are loaded, what is asked of it ends with `EngineLostError`.
        """
        ...
