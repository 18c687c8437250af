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

    def status(self) -> EngineStatus:
        return EngineStatus(0, 0, held_back_s=min(0.3, time.monotonic() - self.begun))

    def generate(self, requests: Sequence[SampleRequest]) -> list[asyncio.Future[Sample]]:
        return [asyncio.get_running_loop().create_future() for _ in requests]


async def test_time_in_which_the_engine_begins_nothing_is_not_the_groups() -> None:
    engine = Busy()
    life = life_of(engine, [], max_generation_s=0.1)

    assert await life.run() is Outcome.FAILED

    assert life.errors == ["sessions [0, 1] not generated within 0.1 s"]
    assert time.monotonic() - engine.begun >= 0.4
