"""What vLLM says of itself after each of its steps, as the worker's metrics want it."""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from headrace.rollout.engines.base import EngineLoad


class StatKeeper(StatLoggerBase):
    """Keeps the last figures, and sums up those that are differences.

    One is made for each life of vLLM, and told of the engine's only load.
    """

    def __init__(self, load: EngineLoad) -> None:
        self._load = load

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Take the figures of a step."""
        load = self._load
        if scheduler_stats is not None:
            load.running = scheduler_stats.num_running_reqs
            load.waiting = (
                scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            )
            load.kv_use = scheduler_stats.kv_cache_usage
            load.prefix_query_token_count += scheduler_stats.prefix_cache_stats.queries
            load.prefix_hit_token_count += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None:
            load.preemption_count += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None:
        """Do nothing."""
