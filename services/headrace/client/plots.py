"""Plots of a run with matplotlib; each returns its Axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.client.frames import needs
from headrace.client.html import COLOURS
from headrace.client.steps import REWARD, STALENESS, STALENESS_MAX

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from headrace.client.run import Run

SMOOTHED: Final = 10
"""Steps that the smoothed curve is a mean over."""
MOST_POINTS: Final = 4000
"""More moments than these are thinned out: a plot has no more pixels."""


class Plots:
    """`run.plot`."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def reward(self, ax: Axes | None = None) -> Axes:
        """Draw the mean reward of each step, and its running mean."""
        ax = _axes(ax)
        metrics = self._run.metrics()
        if REWARD in metrics:
            rewards = metrics[REWARD]
            ax.plot(
                rewards.index, rewards, color=COLOURS["pending"], lw=1, label="mean of the step"
            )
            mean = rewards.rolling(SMOOTHED, min_periods=1).mean()
            ax.plot(mean.index, mean, color=COLOURS["sampled"], lw=2, label=f"of {SMOOTHED} steps")
            _legend(ax, *ax.get_legend_handles_labels())
        return _labelled(ax, "step", "reward")

    def staleness(self, ax: Axes | None = None) -> Axes:
        """Draw how many versions old the weights were that made what each step trained on."""
        ax = _axes(ax)
        metrics = self._run.metrics()
        for name, label, colour in (
            (STALENESS_MAX, "largest", COLOURS["running"]),
            (STALENESS, "mean", COLOURS["finished"]),
        ):
            if name in metrics:
                ax.plot(
                    metrics.index, metrics[name], color=colour, label=label, drawstyle="steps-mid"
                )
        if len(ax.lines):
            _legend(ax, *ax.get_legend_handles_labels())
            ax.set_ylim(bottom=0)
        return _labelled(ax, "step", "versions old")

    def window(self, ax: Axes | None = None, *, by: str = "time") -> Axes:
        """Draw how many prompts were in which state.

        Args:
            ax: Where; None = a new figure.
            by: `time`: over time, at each event. `step`: at each commit.

        """
        if by not in ("time", "step"):
            raise ValueError(f"by={by!r}: must be 'time' or 'step'")
        ax = _axes(ax)
        moments = self._run.window()
        if by == "step":
            moments = moments.groupby("step", as_index=False).last()
        moments = moments.iloc[:: max(1, len(moments) // MOST_POINTS)]
        if len(moments):
            states = [
                s
                for s in ("sampled", "finished", "running", "pending", "failed")
                if s != "failed" or moments[s].any()
            ]
            seconds = (moments["time"] - moments["time"].iloc[0]).dt.total_seconds()
            ax.stackplot(
                moments["step"] if by == "step" else seconds,
                [moments[state] for state in states],
                labels=states,
                colors=[COLOURS[state] for state in states],
                step="post",
                lw=0,
            )
            handles, labels = ax.get_legend_handles_labels()
            _legend(ax, handles[::-1], labels[::-1])
        return _labelled(ax, "committed step" if by == "step" else "seconds", "prompts")


def _axes(ax: Axes | None) -> Any:
    if ax is not None:
        return ax
    return needs("matplotlib.pyplot").subplots(figsize=(9, 3), layout="constrained")[1]


def _legend(ax: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Put the legend beside the plot, where it hides nothing."""
    ax.legend(handles, labels, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _labelled(ax: Axes, x: str, y: str) -> Axes:
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
