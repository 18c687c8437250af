"""What is read out of a vLLM server's metrics."""

from __future__ import annotations

import pytest

from headrace.rollout.engines.base import EngineLoad
from headrace.rollout.engines.vllm_server.figures import Figures, together
from headrace.rollout.engines.vllm_server.wire import MalformedError

LABELS = 'engine="{engine}",model_name="a model, with {braces}"'


def metrics(
    *engines: tuple[float, float, float, float, float, float],
) -> str:
    """As vLLM writes them, an engine each: running, waiting, KV use, preemptions, queries, hits."""
    names = (
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total", "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
    )  # fmt: skip
    lines = ["# TYPE python_gc_objects_collected_total counter", "process_open_fds 9.0"]
    for number, name in enumerate(names):
        lines.append(f"# TYPE {name} gauge")
        for index, engine in enumerate(engines):
            label = LABELS.replace("{engine}", str(index))
            lines.append(f"{name}{{{label}}} {engine[number]}")
            lines.append(f"{name.removesuffix('_total')}_created{{{label}}} 1.7e+09")
    return "\n".join(lines)


def test_figures_are_those_of_all_engines_of_a_server() -> None:
    figures = Figures()

    figures.take(metrics((3, 1, 0.5, 2, 100, 40), (4, 0, 0.25, 1, 1.0e3, 60)))

    assert figures.load == EngineLoad(7, 1, 0.375, 3, 1100, 100)


def test_counters_go_on_when_a_server_is_started_again() -> None:
    figures = Figures()
    figures.take(metrics((3, 0, 0.5, 2, 100, 40)))
    figures.take(metrics((3, 0, 0.5, 3, 150, 40)))
    figures.nothing_runs()
    assert figures.load == EngineLoad(0, 0, 0.0, 3, 150, 40)

    figures.take(metrics((1, 0, 0.1, 0, 20, 10)))

    assert figures.load == EngineLoad(1, 0, 0.1, 3, 170, 50)


def test_a_server_that_keeps_no_figures_has_none() -> None:
    figures = Figures()
    figures.take("# TYPE process_open_fds gauge\nprocess_open_fds 9.0\n")
    assert figures.load is None
    figures.nothing_runs()
    assert figures.load is None


@pytest.mark.parametrize(
    "text",
    [
        "vllm:num_requests_running{} many",
        "vllm:num_requests_running{, =1}",
        metrics((1, 0, 0.1, float("nan"), 20, 10)),
        metrics((1, 0, 0.1, 0, float("inf"), 10)),
    ],
)
def test_what_cannot_be_read_is_an_error_and_changes_nothing(text: str) -> None:
    figures = Figures()
    figures.take(metrics((1, 0, 0.1, 0, 20, 10)))
    before = figures.load

    with pytest.raises(MalformedError, match="metrics that cannot be read"):
        figures.take(text)

    assert figures.load == before


def test_servers_are_taken_together() -> None:
    assert together([]) is None
    assert together([EngineLoad(1, 2, 0.25, 3, 4, 5), EngineLoad(10, 20, 0.5, 30, 40, 50)]) == (
        EngineLoad(11, 22, 0.375, 33, 44, 55)
    )
