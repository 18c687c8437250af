"""A run as a view that is drawn again and again, for terminals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.cli.display import checkpoint_in_words, progress_in_words
from headrace.cli.view import View
from headrace.client.resumes import resume_in_words
from headrace.client.steps import REWARD, STALENESS, sparkline
from headrace.client.tables import Fact, wait_text
from headrace.client.words import (
    circuit_in_words,
    duration,
    mean_span,
    weights_name,
    window_in_words,
)

SHOWN_WAITS: Final = 4
"""Waits that are shown, the longest ones."""
BRIEF_S: Final = 1.0
"""Shorter waits are the normal course of things and not shown."""


class LiveDisplay:
    """Draws the view in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Drawn by `update` only: the view must not change under a thread that draws.
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def start(self) -> None:
        """Take over the bottom of the terminal."""
        self._live.start()

    def stop(self) -> None:
        """Remove the view."""
        self._live.stop()

    def say(self, line: str) -> None:
        """Print a line above the view."""
        self._console.print(Text(line))

    def update(self, view: View) -> None:
        """Draw."""
        self._live.update(panel(view), refresh=True)


def panel(view: View) -> RenderableType:
    """Lay out the view."""
    pairs: list[Fact] = [("reward", _reward(view))]
    if view.replay is not None:
        pairs.append(("window", Text(window_in_words(view.replay))))
    pairs += [("staleness", Text(_staleness(view))), ("tokens", Text(_tokens(view)))]
    pairs += [("workers", Text(_workers(view)))]
    pairs += _checkpoints(view)
    if view.replay is not None and view.replay.circuit:
        pairs.append(("circuit", Text(circuit_in_words(view.replay), style="bold red")))
    if view.replay is not None and view.replay.paused:
        paused = "nothing is fed or leased until `headrace resume`"
        pairs.append(("paused", Text(paused, style="bold yellow")))
    waits = [(n, w) for n, w in view.waits() if w.elapsed_s > BRIEF_S or w.stalled]
    pairs += [("waits", wait_text(name, wait)) for name, wait in waits[:SHOWN_WAITS]]
    pairs += [("restarts", Text(words, style="yellow")) for words in view.restarts_in_words]
    pairs += [("log", Text(warning, style="yellow")) for warning in view.warnings]
    title = Text.assemble((view.name, "bold"), f"  {duration(view.now - view.begun)}")
    return Panel(Group(_progress(view), _facts(pairs)), title=title, title_align="left")


def _checkpoints(view: View) -> Iterator[Fact]:
    if words := checkpoint_in_words(view):
        yield "checkpoint", Text(words)
    if view.snapshot_error:
        yield "not saved", Text(view.snapshot_error, style="bold red")
    if view.replay is not None and view.replay.HasField("resume"):
        yield "resume", Text(resume_in_words(view.replay.resume))


def _facts(pairs: Iterable[Fact]) -> RenderableType:
    """Lay out names and values; long values wrap within their column."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    return table


def _progress(view: View) -> RenderableType:
    left = view.steps.remaining_s(view.total_steps, view.now)
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True, justify="right")
    bar = ProgressBar(total=max(1, view.total_steps), completed=view.steps.last)
    ends = f"{duration(left)} left" if left is not None and not view.stopping else ""
    table.add_row(Text(progress_in_words(view), style="bold"), bar, ends)
    return table


def _reward(view: View) -> Text:
    rewards = view.steps.series(REWARD)
    if not rewards:
        return Text("-")
    return Text.assemble(f"{rewards[-1]:.3f}  ", (sparkline(rewards, 50), "green"))


def _staleness(view: View) -> str:
    trained = view.steps.value(STALENESS)
    parts = [f"trained on {trained:.2f} versions old" if trained is not None else "-"]
    if view.replay is not None:
        waiting = mean_span(view.replay.finished_spans.items())
        if waiting is not None:
            parts.append(f"span of finished groups {waiting:.2f} (1 = on-policy)")
    return ", ".join(parts)


def _tokens(view: View) -> str:
    speed = view.tokens.per_second()
    now = f"{speed:,.0f} per second, " if speed is not None else ""
    wasted = f", {view.tokens.wasted:,} wasted" if view.tokens.wasted else ""
    return f"{now}{view.tokens.generated:,} in all{wasted}"


def _workers(view: View) -> str:
    shown = [
        f"{name} {weights_name(worker.weight_version)} {worker.groups_in_flight} groups"
        + (" draining" if worker.draining else "")
        for name, worker in sorted(view.workers.items())
        if name in view.kept or not worker.draining  # else it is at home
    ]
    return ", ".join(shown) or "-"
