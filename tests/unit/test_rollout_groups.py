"""What a worker makes of a group whose time line was left while it worked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.rollout.engines.base import Sample, SampleRequest
from headrace.rollout.groups import GroupLife, Outcome, Tools
from headrace.rollout.rewards.functions import Score
from headrace.v1 import feeder_pb2, prompt_pb2, replay_pb2, trajectory_pb2


class Engine:
    """Answers at once, with the weights that it happens to have."""

    def __init__(self, weights: prompt_pb2.WeightsId) -> None:
        self._weights = weights

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

    async def score(scorings: Sequence[Any]) -> list[Any]:
        return [Score(1.0, {}) for _ in scorings]

    async def deliver(ref: replay_pb2.LeaseRef, made: Sequence[Any]) -> Any:
        delivered.extend(each.record.session for each in made)
        return replay_pb2.LEASE_STATUS_DONE

    engine: Any = Engine(prompt_pb2.WeightsId(lineage=lineage, version=version))
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
        max_generation_s=10,
    )

    life = GroupLife(lease, prompt_pb2.WeightsId(lineage="l0", version=4), tools)

    assert await life.run() is outcome
    assert delivered == ([0, 1] if outcome is Outcome.DONE else [])
