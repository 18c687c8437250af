"""Rewards from a service, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from headrace.config.rollout import RewardConfig
from headrace.rollout.rewards.base import RewardError
from headrace.rollout.rewards.functions import Score, Scoring
from headrace.rollout.rewards.remote import HttpRewards
from headrace.rpc.waits import Waits


class Clock:
    """Time that passes by sleeping only; what has a limit ends when `run_out` is called."""

    def __init__(self) -> None:
        self.time = 100.0
        self.slept: list[float] = []
        self._limits: list[asyncio.Timeout] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.time += seconds
        await asyncio.sleep(0)

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[None]:
        async with asyncio.timeout(None) as limit:
            self._limits.append(limit)
            try:
                yield
            finally:
                self._limits.remove(limit)

    def run_out(self) -> None:
        for limit in self._limits:
            limit.reschedule(0)


class Bench:
    """Rewards under test, their clock and their waits."""

    def __init__(self, url: str, clock: Clock, **settings: Any) -> None:
        self.clock = clock
        self.waits = Waits(now=clock.now, stall_after_s=60)
        self.rewards = HttpRewards(
            RewardConfig.model_validate({"kind": "http", "url": url, **settings}),
            waits=self.waits,
            now=clock.now,
            wall=lambda: 1_000_000_000.0,
            sleep=clock.sleep,
            limit=clock.limit,
            jitter=lambda: 1.0,
        )

    def score(self, *responses: str) -> asyncio.Task[list[Score | RewardError]]:
        scorings = [Scoring("p", text, "a", '{"k": 1}', "stop", "src") for text in responses]
        return asyncio.create_task(self.rewards.score(scorings))

    @property
    def wait(self) -> Any:
        [wait] = self.waits.snapshot()
        return wait


@asynccontextmanager
async def bench(url: str, **settings: Any) -> AsyncIterator[Bench]:
    made = Bench(url, Clock(), **settings)
    await made.rewards.start()
    try:
        yield made
    finally:
        await made.rewards.close()


def rewards_of(scores: list[Score | RewardError]) -> list[float | str]:
    return [each.reward if isinstance(each, Score) else str(each) for each in scores]
