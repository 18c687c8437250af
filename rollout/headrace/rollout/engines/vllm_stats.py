"""What vLLM says of itself after each of its steps, as the worker's metrics want it."""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger

from headrace.rollout.engines.base import EngineLoad


def kept_in(load: EngineLoad) -> type[PrometheusStatLogger]:
    """Make the class that keeps the last figures, and sums up those that are differences.

    It counts as vLLM's own keeper of Prometheus' metrics, which are made else, with each token, for
    nobody to ask for them. vLLM takes no object for one.
    """

    class StatKeeper(PrometheusStatLogger):
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def record(
            self,
            scheduler_stats: Any,
            iteration_stats: Any,
            mm_cache_stats: Any = None,
            engine_idx: int = 0,
        ) -> None:
            """Take the figures of a step."""
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

        def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
            """Do nothing: nobody lets it sleep."""

        def record_admission_rejection(self, reason: str) -> None:
            """Do nothing: whoever asked is told."""

    return StatKeeper
