"""How busy a vLLM server is, as its `/metrics` say.

Counters go on when the server is started again and begins anew. Knows nothing of connections.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from headrace.rollout.engines.base import EngineLoad
from headrace.rollout.engines.vllm_server.wire import MalformedError

METRICS: Final = "/metrics"
_RUNNING: Final = "vllm:num_requests_running"
_WAITING: Final = "vllm:num_requests_waiting"
_KV_USE: Final = "vllm:kv_cache_usage_perc"  # a share, whatever it is called
_PREEMPTIONS: Final = "vllm:num_preemptions_total"
_QUERIES: Final = "vllm:prefix_cache_queries_total"
_HITS: Final = "vllm:prefix_cache_hits_total"
_COUNTERS: Final = (_PREEMPTIONS, _QUERIES, _HITS)
_ALL: Final = frozenset({_RUNNING, _WAITING, _KV_USE, *_COUNTERS})


class Figures:
    """The figures of one server, over its lives."""

    def __init__(self) -> None:
        self.load: EngineLoad | None = None
        """What it said last; None if it says nothing of the kind."""
        self._last: dict[str, int] = dict.fromkeys(_COUNTERS, 0)
        self._sums: dict[str, int] = dict.fromkeys(_COUNTERS, 0)

    def take(self, text: str) -> None:
        """Take what it says now.

        Raises:
            MalformedError: That cannot be read.

        """
        found = _read(text)
        if not found.keys() >= _ALL:  # it keeps none: `--disable-log-stats`
            self.load = None
            return
        for name in _COUNTERS:
            now = int(sum(found[name]))
            self._sums[name] += now - self._last[name] if now >= self._last[name] else now
            self._last[name] = now
        self.load = EngineLoad(
            running=int(sum(found[_RUNNING])),
            waiting=int(sum(found[_WAITING])),
            kv_use=_mean(found[_KV_USE]),
            preemption_count=self._sums[_PREEMPTIONS],
            prefix_query_token_count=self._sums[_QUERIES],
            prefix_hit_token_count=self._sums[_HITS],
        )

    def nothing_runs(self) -> None:
        """Note that nothing is under way there as far as is known: it is out."""
        if self.load is not None:
            self.load = replace(self.load, running=0, waiting=0, kv_use=0.0)


def together(loads: Sequence[EngineLoad]) -> EngineLoad | None:
    """Make one of those of all servers; None of none. Their memories count as equally large."""
    if not loads:
        return None
    return EngineLoad(
        running=sum(load.running for load in loads),
        waiting=sum(load.waiting for load in loads),
        kv_use=_mean([load.kv_use for load in loads]),
        preemption_count=sum(load.preemption_count for load in loads),
        prefix_query_token_count=sum(load.prefix_query_token_count for load in loads),
        prefix_hit_token_count=sum(load.prefix_hit_token_count for load in loads),
    )


def _read(text: str) -> Mapping[str, Sequence[float]]:
    """Find the samples that are wanted; a server with several engines has one of each for each."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in _ALL:
                    found[sample.name].append(_finite(sample.value))
    except (ValueError, IndexError) as error:  # the parser raises both
        raise MalformedError(f"metrics that cannot be read ({error}): {text[:200]}") from error
    return found


def _finite(value: float) -> float:
    if not math.isfinite(value):
        msg = f"{value} is no figure"
        raise ValueError(msg)
    return value


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
