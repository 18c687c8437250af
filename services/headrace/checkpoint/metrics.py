"""Snapshots and the last resume as metrics, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from prometheus_client import Metric

from headrace.checkpoint.resumes import Resumes
from headrace.checkpoint.snapshots import Snapshots
from headrace.rpc.mirror import counters, gauge, gauges
from headrace.v1 import resume_pb2

_STATES: Final = ("pending", "running", "finished", "failed", "sampled", "trained")


class CheckpointMetrics:
    """Reads the coordinator. Used on the event loop."""

    def __init__(self, snapshots: Snapshots, resumes: Resumes) -> None:
        self._snapshots = snapshots
        self._resumes = resumes

    def read(self) -> Iterator[Metric]:
        """Give all there is."""
        yield from self._read_snapshots()
        yield from _read_resume(self._resumes.state or resume_pb2.ResumeState())

    def _read_snapshots(self) -> Iterator[Metric]:
        snapshots, last = self._snapshots, self._snapshots.last
        yield gauge(
            "headrace_checkpoint_step",
            "The step of the newest checkpoint; 0 if there is none.",
            snapshots.saved_step,
        )
        yield counters(
            "headrace_snapshots",
            "Snapshots that came to their end.",
            "outcome",
            {"complete": snapshots.complete_count, "failed": snapshots.failed_count},
        )
        under_way = last is not None and last.under_way
        yield gauge("headrace_snapshot_under_way", "Whether one is being made.", under_way)
        whole = snapshots.whole
        yield gauge(
            "headrace_snapshot_seconds",
            "Seconds that the last snapshot took.",
            whole.seconds if whole else 0,
        )
        yield gauge("headrace_snapshot_bytes", "Its bytes.", whole.size_bytes if whole else 0)
        yield gauge(
            "headrace_snapshot_longest_put_wait_seconds",
            "The longest that a put of a trajectory waited for it.",
            whole.longest_put_wait_s if whole else 0,
        )


def _read_resume(state: resume_pb2.ResumeState) -> Iterator[Metric]:
    yield gauges(
        "headrace_resume_restored",
        "Groups by state as the last resume took them over.",
        "state",
        {name: getattr(state.counts, name) for name in _STATES}
        | {"dropped": sum(state.counts.dropped.values())},
    )
    label = {state.lineage: 1.0} if state.lineage else {}
    yield gauges(
        "headrace_resume_lineage", "Always 1: the time line that it opened.", "lineage", label
    )
    for name, help_, value in (
        ("reissued", "Groups that it had generated again.", state.reissued_count),
        ("sessions_kept", "Finished sessions of those that it kept.", state.sessions_kept_count),
        ("untrained", "Groups trained after its step, to be trained again.", state.untrained_count),
        ("dropped_at_restore", "Groups dropped as stale_at_restore.", state.dropped_count),
        ("topped_up", "Groups fed to fill the window up.", state.topped_up_count),
    ):
        yield gauge(f"headrace_resume_{name}", f"{help_} Of the last resume.", value)
    yield gauge("headrace_resume_step", "The step that the last resume went back to.", state.step)
    yield gauges(
        "headrace_resume_phase_seconds",
        "Seconds that each phase of the last resume took.",
        "phase",
        phase_seconds(state.phase_times),
    )


def phase_seconds(times: Mapping[str, float]) -> dict[str, float]:
    """Give the seconds from the beginning of each phase to the next one that is known."""
    begun = sorted(times.items(), key=lambda item: item[1])
    return {name: after - time for (name, time), (_, after) in pairwise(begun)}
