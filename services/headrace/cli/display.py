"""How a run is shown while it lives: what live view and plain lines have in common."""

from __future__ import annotations

from typing import Final, Protocol

from headrace.cli.view import View
from headrace.client.resumes import is_open, resume_in_words
from headrace.client.steps import REWARD, STALENESS
from headrace.client.words import circuit_in_words, duration, size, window_in_words
from headrace.v1 import trainer_pb2

STEPPING: Final = (
    trainer_pb2.TRAINER_PHASE_SAMPLING,
    trainer_pb2.TRAINER_PHASE_UPDATING,
    trainer_pb2.TRAINER_PHASE_PUBLISHING,
)
"""Phases of a trainer that is within a step."""


class Display(Protocol):
    """Shows a view."""

    def start(self) -> None:
        """Begin to show."""

    def stop(self) -> None:
        """Leave the terminal as it should be."""

    def say(self, line: str) -> None:
        """Show a line that stays."""

    def update(self, view: View) -> None:
        """Show the view as it is now. Called a few times a second."""


def progress_in_words(view: View) -> str:
    """`step 20/250`, or what the run does before there are steps."""
    if view.stopping:
        return _leave_in_words(view)
    if view.starting:
        return f"starting {', '.join(view.starting)}"
    if view.replay is None or not view.total_steps:
        return "opening the data set"
    done = view.steps.last or view.replay.committed_step  # Elsewhere the metrics may be unknown.
    return f"step {done}/{view.total_steps}"


def _leave_in_words(view: View) -> str:
    """`saving step 12`, `stopping worker-0, worker-1`."""
    if "trainer" in view.leaving:
        if view.saving_step:
            return f"saving step {view.saving_step}"
        if view.trainer is not None and view.trainer.phase in STEPPING:
            return f"stopping: the trainer is at step {view.trainer.step}"
    there = (name for name in view.leaving if name in view.kept)  # else it is at home, or gone
    return f"stopping {', '.join(there)}".rstrip()


def checkpoint_in_words(view: View) -> str:
    """`step 20, 12.5 MiB in 3.1 s`, and what is wrong; empty in a run without checkpoints."""
    if view.coordinator is None and not view.saved_step:
        return ""
    parts = [f"step {view.saved_step}" if view.saved_step else "none yet"]
    told = view.coordinator
    if told is not None and view.saved_step and told.snapshot_bytes:
        parts.append(f"{size(told.snapshot_bytes)} in {duration(told.snapshot_seconds)}")
    if view.trainer is not None and view.trainer.snapshot_stall_s:
        parts.append(f"training stood still for {duration(view.trainer.snapshot_stall_s)}")
    if view.saving_step:
        parts.append(f"saving step {view.saving_step}")
    return ", ".join(parts)


def one_line(view: View) -> str:
    """Say all that matters in a line."""
    parts = [progress_in_words(view)]
    reward, staleness = view.steps.value(REWARD), view.steps.value(STALENESS)
    if reward is not None:
        parts.append(f"reward {reward:.3f}")
    if view.replay is not None and view.total_steps:
        parts.append(window_in_words(view.replay))
        if view.replay.paused:
            parts.append("paused")
    if staleness is not None:
        parts.append(f"staleness {staleness:.1f}")
    speed = view.tokens.per_second()
    if speed:
        parts.append(f"{speed:,.0f} tokens/s")
    left = view.steps.remaining_s(view.total_steps, view.now)
    if left is not None and not view.stopping:
        parts.append(f"{duration(left)} left")
    if view.saved_step:
        parts.append(f"saved {view.saved_step}")
    if view.snapshot_error:
        parts.append(f"NOT SAVED: {view.snapshot_error}")
    if view.replay is not None and view.replay.HasField("resume"):
        resume = view.replay.resume
        parts += [] if is_open(resume) else [resume_in_words(resume)]
    if view.replay is not None and view.replay.circuit:
        parts.append(f"circuit {circuit_in_words(view.replay)}")
    return "  ".join(parts)
