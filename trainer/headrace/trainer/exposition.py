"""How far the training is, as metrics of the process, read at each scrape.

Knows a few metrics of a step by name; all of them are in the run directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from headrace.rpc.mirror import counter, counters, gauge, gauges
from headrace.trainer.progress import Progress
from headrace.v1.trainer_pb2 import TrainerPhase

REWARD: Final = "critic/rewards/mean"
TOKENS: Final = "perf/total_num_tokens"
TIMES: Final = "timing_s/"
"""Begins the names of times."""
OUTCOMES: Final = ("saved", "failed", "skipped")
"""What may become of a snapshot."""
PHASES: Final = {
    value: name.removeprefix("TRAINER_PHASE_").lower()
    for name, value in TrainerPhase.items()
    if value
}


class ProgressMetrics:
    """Reads one trainer's progress. Used on the event loop."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def read(self) -> Iterator[Metric]:
        """Give all there is."""
        progress = self._progress
        yield gauge("headrace_trainer_step", "The step it is in.", progress.step)
        yield gauge("headrace_trainer_steps", "Steps in the run.", progress.total_steps)
        yield gauge(
            "headrace_trainer_weight_version",
            "The newest weights published; -1 before the first.",
            progress.weight_version,
        )
        phases = {name: progress.phase == value for value, name in PHASES.items()}
        yield gauges("headrace_trainer_phase", "1 for what it does now.", "phase", phases)
        reward = GaugeMetricFamily(
            "headrace_trainer_reward_mean", "Mean reward of the last step's trajectories."
        )
        if progress.last is not None and REWARD in progress.last:
            reward.add_metric([], progress.last[REWARD])
        yield reward
        yield gauge(
            "headrace_trainer_saved_step",
            "The last step that is in a checkpoint; 0 if none.",
            progress.saved_step,
        )
        yield gauge(
            "headrace_trainer_snapshot_stall_seconds",
            "For how long training stood still for the last snapshot.",
            progress.snapshot_stall_s,
        )
        snapshots = {outcome: progress.snapshots[outcome] for outcome in OUTCOMES}
        yield counters(
            "headrace_trainer_snapshots", "Snapshots, by what became of them.", "outcome", snapshots
        )
        yield counter("headrace_trainer_tokens", "Tokens trained on.", progress.totals[TOKENS])
        seconds = {
            name.removeprefix(TIMES): total
            for name, total in progress.totals.items()
            if name.startswith(TIMES)
        }
        yield counters("headrace_trainer_seconds", "Time of steps, by phase.", "phase", seconds)
