"""What a worker does, as metrics: state that is read at each scrape, and times as they pass."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric

from headrace.rollout.engines.base import EngineLoad
from headrace.rollout.rewards.base import RewardError, Rewards
from headrace.rollout.rewards.functions import Score, Scoring
from headrace.rollout.worker import Worker
from headrace.rpc.mirror import counter, gauge

BATCH_BUCKETS_S: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""From a toy model on a CPU to long answers of a large one."""
REWARD_BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""From a comparison of strings to code that is run."""


class Timings:
    """Times of engine and rewards.

    Args:
        registry: Where they are registered.

    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._batch_s = Histogram(
            "headrace_worker_engine_batch_seconds",
            "Time of a batch of the engine, from its first token to its last.",
            registry=registry,
            buckets=BATCH_BUCKETS_S,
        )
        self._reward_s = Histogram(
            "headrace_worker_reward_seconds",
            "Time in which sessions that were done together were scored.",
            registry=registry,
            buckets=REWARD_BUCKETS_S,
        )
        self._reward_errors = Counter(
            "headrace_worker_reward_errors",
            "Sessions that could not be scored.",
            registry=registry,
        )

    def batch_ended(self, seconds: float) -> None:
        """Take a batch of the engine."""
        self._batch_s.observe(seconds)

    def scored(self, seconds: float, error_count: int) -> None:
        """Take sessions that were scored together."""
        self._reward_s.observe(seconds)
        self._reward_errors.inc(error_count)


class TimedRewards:
    """Rewards that are measured.

    Args:
        rewards: What scores.
        timings: Told of it.
        now: Seconds of a monotonic clock.

    """

    def __init__(
        self, rewards: Rewards, timings: Timings, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._rewards = rewards
        self._timings = timings
        self._now = now

    async def start(self) -> None:
        """Get ready."""
        await self._rewards.start()

    async def close(self) -> None:
        """Give up what is under way."""
        await self._rewards.close()

    async def score(self, scorings: Sequence[Scoring]) -> list[Score | RewardError]:
        """Score, in order."""
        begun = self._now()
        scores = await self._rewards.score(scorings)
        errors = sum(isinstance(score, RewardError) for score in scores)
        self._timings.scored(self._now() - begun, errors)
        return scores


class WorkerMetrics:
    """Reads one worker. Used on the event loop.

    Args:
        worker: Who is looked at.
        stopping: Whether it was told to go home.

    """

    def __init__(self, worker: Worker, *, stopping: Callable[[], bool]) -> None:
        self._worker = worker
        self._stopping = stopping

    def read(self) -> Iterator[Metric]:
        """Give all there is."""
        worker = self._worker
        current = worker.weights.current
        version = current.id.version if current is not None else -1
        engine = worker.engine.status()
        yield gauge(
            "headrace_worker_weight_version", "Weights loaded; -1 before the first.", version
        )
        yield gauge("headrace_worker_groups_in_flight", "Groups leased.", worker.group_count)
        yield counter(
            "headrace_worker_sessions", "Sessions recorded.", worker.completed_session_count
        )
        yield counter(
            "headrace_worker_tokens_generated", "Tokens sampled.", engine.generated_token_count
        )
        yield counter(
            "headrace_worker_tokens_wasted",
            "Those of sessions that were lost, cancelled or failed.",
            worker.wasted_token_count,
        )
        yield counter(
            "headrace_worker_tokens_continued",
            "Tokens that other workers had made and that were gone on with.",
            worker.continued_token_count,
        )
        yield gauge(
            "headrace_worker_probe_gap",
            "Mean gap of log-probabilities to the trainer's, of the weights tried last.",
            math.nan if engine.probe_gap is None else engine.probe_gap,
        )
        yield gauge("headrace_worker_draining", "Whether it is going home.", self._stopping())
        if engine.load is not None:
            yield from _load(engine.load)


def _load(load: EngineLoad) -> Iterator[Metric]:
    """Say how busy an engine is that schedules by itself."""
    name = "headrace_worker_engine"
    yield gauge(f"{name}_running", "Sequences in the engine's batch.", load.running)
    yield gauge(f"{name}_waiting", "Sequences that it has no place for yet.", load.waiting)
    yield gauge(f"{name}_kv_use_ratio", "Share of its KV memory in use.", load.kv_use)
    yield counter(
        f"{name}_preemptions", "Sequences that had to give up their place.", load.preemption_count
    )
    yield counter(
        f"{name}_prompt_tokens", "Tokens of prompts begun.", load.prefix_query_token_count
    )
    yield counter(
        f"{name}_prompt_tokens_shared",
        "Those of them that had been computed for another sequence.",
        load.prefix_hit_token_count,
    )
