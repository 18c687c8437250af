"""What a worker makes of a group whose time line was left, or whose engine was lost or busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.rollout.engines.base import EngineLostError, EngineStatus, Sample, SampleRequest
from headrace.rollout.groups import GroupLife, Outcome, Tools
from headrace.rollout.rewards.functions import Score
from headrace.v1 import feeder_pb2, prompt_pb2, replay_pb2, trajectory_pb2


class Engine:
    """Answers at once, with the weights that it happens to have."""

    def __init__(self, weights: prompt_pb2.WeightsId) -> None:
        self._weights = weights

    def status(self) -> EngineStatus:
        return EngineStatus(0, 0)

    def generate(self, requests: Sequence[SampleRequest]) -> list[asyncio.Future[Sample]]:
        futures = []
        for request in requests:
            future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
            request.response.extend([1], [0.0], self._weights)
            future.set_result(Sample(request.response, trajectory_pb2.FINISH_REASON_STOP))
            futures.append(future)
        return futures


@pytest.mark.parametrize(
    ("lineage", "version", "outcome"),
    [
        ("l0", 4, Outcome.DONE),  # what the lease was asked for with
        ("l1", 4, Outcome.DONE),  # of the line that granted it
        ("l1", 5, Outcome.DONE),
        ("l0", 5, Outcome.RETURNED),  # later ones of the line that was left
    ],
)
async def test_sessions_of_weights_of_a_line_that_was_left_are_handed_back(
    lineage: str, version: int, outcome: Outcome
) -> None:
    delivered: list[int] = []
    engine = Engine(prompt_pb2.WeightsId(lineage=lineage, version=version))

    assert await life_of(engine, delivered).run() is outcome
    assert delivered == ([0, 1] if outcome is Outcome.DONE else [])


def life_of(engine: Any, delivered: list[int], *, max_generation_s: float = 10) -> GroupLife:
    """Give a group of two sessions that delivers to a list."""

    async def score(scorings: Sequence[Any]) -> list[Any]:
        return [Score(1.0, {}) for _ in scorings]

    async def deliver(ref: replay_pb2.LeaseRef, made: Sequence[Any]) -> Any:
        delivered.extend(each.record.session for each in made)
        whole = len(delivered) == 2
        return replay_pb2.LEASE_STATUS_DONE if whole else replay_pb2.LEASE_STATUS_HELD

    lease = prompt_pb2.Lease(
        uid="e0r0",
        attempt=2,
        lineage="l1",
        payload=feeder_pb2.PromptPayload(text="a", token_ids=[1]),
        missing_sessions=[0, 1],
        sampling=prompt_pb2.SamplingParams(temperature=1.0, max_response_length=4),
    )
    tools = Tools(
        engine=engine,
        score=score,
        deliver=deliver,
        decode=lambda _: "a",
        now=time.monotonic,
        max_generation_s=max_generation_s,
    )
    return GroupLife(lease, prompt_pb2.WeightsId(lineage="l0", version=4), tools)


class Renewed(Engine):
    """Takes newer weights between the first and the second token of each sequence."""

    def __init__(self, weights: prompt_pb2.WeightsId, newer: prompt_pb2.WeightsId) -> None:
        super().__init__(weights)
        self._newer = newer

    def generate(self, requests: Sequence[SampleRequest]) -> list[asyncio.Future[Sample]]:
        futures = super().generate(requests)
        for request in requests:
            request.response.extend([1], [0.0], self._newer)
        return futures


@pytest.mark.parametrize(
    ("newer", "outcome"),
    [(("l1", 5), Outcome.DONE), (("l0", 5), Outcome.RETURNED)],
)
async def test_every_span_of_a_session_is_looked_at(
    newer: tuple[str, int], outcome: Outcome
) -> None:
    delivered: list[int] = []
    weights, later = (
        prompt_pb2.WeightsId(lineage=line, version=version) for line, version in (("l0", 4), newer)
    )

    assert await life_of(Renewed(weights, later), delivered).run() is outcome
    assert delivered == ([0, 1] if outcome is Outcome.DONE else [])


async def test_what_the_ledger_gives_is_gone_on_with_whatever_line_it_is_of() -> None:
    delivered: list[int] = []
    life = life_of(Engine(prompt_pb2.WeightsId(lineage="l1", version=4)), delivered)
    span = trajectory_pb2.WeightSpan(lineage="before", version=2, begin=0, end=3)
    life.lease.drafts.add(session=1, token_ids=[5, 6, 7], logprobs=[-1] * 3, weight_spans=[span])

    assert await life.run() is Outcome.DONE
    assert delivered == [0, 1]
    assert (life.continued_token_count, life.generated_token_count) == (3, 2)
    assert life.recorded_token_count == 2


class Dying(Engine):
    """Makes the first session, and is lost with the others."""

    def generate(self, requests: Sequence[SampleRequest]) -> list[asyncio.Future[Sample]]:
        done = super().generate(requests[:1])
        lost: list[asyncio.Future[Sample]] = [
            asyncio.get_running_loop().create_future() for _ in requests[1:]
        ]
        for future in lost:
            future.set_exception(EngineLostError("killed"))
        return done + lost


async def test_what_an_engine_was_lost_with_is_handed_back_and_no_fault_of_the_prompt() -> None:
    delivered: list[int] = []
    life = life_of(Dying(prompt_pb2.WeightsId(lineage="l1", version=4)), delivered)

    assert await life.run() is Outcome.RETURNED
    assert (delivered, life.errors) == ([0], [])


class Busy(Engine):
    """Takes weights for 0.3 s, and never ends anything by itself."""

    def __init__(self) -> None:
        super().__init__(prompt_pb2.WeightsId(lineage="l1", version=4))
        self.begun = time.monotonic()
        self.requests: Sequence[SampleRequest] = ()

    def status(self) -> EngineStatus:
        return EngineStatus(0, 0, held_back_s=min(0.3, time.monotonic() - self.begun))

    def generate(self, requests: Sequence[SampleRequest]) -> list[asyncio.Future[Sample]]:
        self.requests = requests
        return [asyncio.get_running_loop().create_future() for _ in requests]


async def test_time_in_which_the_engine_begins_nothing_is_not_the_groups() -> None:
    engine = Busy()
    life = life_of(engine, [], max_generation_s=0.1)

    assert await life.run() is Outcome.FAILED

    assert life.errors == ["sessions [0, 1] not generated within 0.1 s"]
    assert time.monotonic() - engine.begun >= 0.4


async def test_the_last_token_of_a_response_under_way_is_held_back() -> None:
    engine = Busy()
    life = life_of(engine, [])
    running = asyncio.create_task(life.run())
    await asyncio.sleep(0)
    reported = []
    for tokens in ([], [1], [2, 3], [4]):
        for request in engine.requests:
            request.response.extend(tokens, [0.0 for _ in tokens], life.weights)
        reported.append([list(draft.token_ids) for draft in life.news(most=3, resend=True)])
        for request in engine.requests:
            life.note_kept(request.session, max(0, len(request.response.token_ids) - 1))

    assert reported == [[], [], [[1, 2], [1]], [[3], [3]]]
    life.hand_back()
    assert await running is Outcome.RETURNED
