"""How a run is shown while it lives: what live view and plain lines have in common."""

from __future__ import annotations

from typing import Protocol

from headrace.cli.view import View
from headrace.client.steps import REWARD, STALENESS
from headrace.client.words import circuit_in_words, duration, window_in_words


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
        return "stopping"
    if view.starting:
        return f"starting {', '.join(view.starting)}"
    if not view.total_steps:
        return "opening the data set"
    return f"step {view.steps.last}/{view.total_steps}"


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
    if view.replay is not None and view.replay.circuit:
        parts.append(f"circuit {circuit_in_words(view.replay)}")
    return "  ".join(parts)
