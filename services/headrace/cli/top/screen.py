"""The screen of `headrace top`. Asks nobody: everything is in the view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.cli.display import checkpoint_in_words, progress_in_words
from headrace.cli.top.dialog import Dialog, Mode
from headrace.cli.view import View
from headrace.client.history import history_table
from headrace.client.resumes import (
    is_open,
    resume_in_words,
    saved_in_words,
    timeline_in_words,
)
from headrace.client.steps import REWARD, STALENESS, sparkline
from headrace.client.words import (
    circuit_in_words,
    counts_in_words,
    duration,
    mean_span,
    size,
    weights_name,
    window_in_words,
)
from headrace.v1 import replay_pb2, status_pb2

Where = replay_pb2.LocatePromptResponse | str
"""A prompt's place and history, or why there is none."""

STATES: Final = (
    ("sampled", "█", "magenta"),
    ("finished", "▓", "green"),
    ("running", "▒", "yellow"),
    ("pending", "░", "blue"),
    ("failed", "x", "red"),
)
"""States in the window's bar: those nearest to the trainer first."""
BAR_WIDTH: Final = 40
OTHER_LINES: Final = 21
"""Lines that are neither workers nor waits."""
FEWEST_ROWS: Final = 3
SPARKS: Final = 50


@dataclass(frozen=True)
class Shown:
    """What is to be drawn."""

    view: View
    dialog: Dialog
    where: Where | None
    """About the prompt that is looked at; None while it is asked for."""


def screen(shown: Shown, console: Console) -> RenderableType:
    """Fill the terminal."""
    layout = Layout()
    layout.split_column(Layout(name="body", ratio=1), Layout(name="foot", size=1))
    if shown.dialog.mode is Mode.WHERE:
        layout["body"].update(_where(shown, console))
    else:
        layout["body"].update(table(shown.view, rows=max(0, console.height - OTHER_LINES)))
    layout["foot"].update(_foot(shown))
    return layout


def table(view: View, *, rows: int | None = None) -> RenderableType:
    """Lay a run out.

    Args:
        view: the run.
        rows: about how many workers and waits there is room for; None = for all.

    """
    workers, waits = _worker_rows(view), view.waits()
    worker_count = len(workers)
    if rows is not None:
        worker_count = min(len(workers), max(FEWEST_ROWS, rows // 2, rows - len(waits)))
    wait_count = None if rows is None else max(FEWEST_ROWS, rows - worker_count)
    return Group(
        _head(view),
        _facts(view),
        Text(),
        _workers(workers, worker_count),
        Text(),
        _waits(waits, wait_count),
    )


def _head(view: View) -> RenderableType:
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    left = view.steps.remaining_s(view.total_steps, view.now)
    over = view.replay is not None and view.replay.ended
    ends = "over" if over else f"{duration(left)} left" if left is not None else ""
    done = view.replay.committed_step if view.replay is not None else view.steps.last
    bar = ProgressBar(total=max(1, view.total_steps), completed=done)
    grid.add_row(Text(view.name, style="bold"), Text(progress_in_words(view)), bar, ends)
    return grid


def _facts(view: View) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    rewards = view.steps.series(REWARD)
    if rewards:
        sparks = (sparkline(rewards, SPARKS), "green")
        grid.add_row("reward", Text.assemble(f"{rewards[-1]:.3f}  ", sparks))
    replay = view.replay
    if replay is not None:
        grid.add_row("window", window_bar(replay, BAR_WIDTH))
        grid.add_row("", window_in_words(replay))
        grid.add_row("prompts", counts_in_words(replay.counts))
        grid.add_row("spans", _spans(view, replay))
        room = f"{size(replay.store_reserved_bytes)} of {size(replay.store_capacity_bytes)}"
        grid.add_row("store", room)
        grid.add_row("time line", timeline_in_words(replay))
        grid.add_row("checkpoint", _saved(view, replay))
        if replay.HasField("resume"):
            style = "" if is_open(replay.resume) else "bold yellow"
            grid.add_row("resume", Text(resume_in_words(replay.resume), style=style))
        grid.add_row("circuit", _circuit(replay))
        if replay.paused:
            paused = "feeding and leasing are stopped; `headrace resume` lets them go on"
            grid.add_row("paused", Text(paused, style="bold yellow"))
    return grid


def window_bar(status: replay_pb2.GetReplayStatusResponse, width: int) -> Text:
    """Draw the groups of the window by state, and what is still wanted of it as dots."""
    counts = {name: getattr(status.counts, name) for name, _, _ in STATES}
    wanted = max(status.target, status.occupancy)
    total = max(1, counts["sampled"] + counts["failed"] + wanted)
    bar, below, begun = Text(), 0, 0
    for name, mark, style in STATES:
        below += counts[name]
        ends = round(below * width / total)
        bar.append(mark * (ends - begun), style)
        begun = ends
    bar.append("·" * (width - begun), "dim")
    for name, mark, style in STATES:
        if counts[name]:
            bar.append(f"  {mark}", style).append(f" {name}")
    return bar


def _spans(view: View, replay: replay_pb2.GetReplayStatusResponse) -> str:
    waiting = mean_span(replay.finished_spans.items())
    finished = f"finished groups {waiting:.2f} (1 = on-policy)" if waiting is not None else "-"
    trained = view.steps.value(STALENESS)
    return finished + (f", trained {trained:.2f} versions old" if trained is not None else "")


def _saved(view: View, replay: replay_pb2.GetReplayStatusResponse) -> Text:
    text = Text(checkpoint_in_words(view) or saved_in_words(replay))
    return text.append(f"; {view.snapshot_error}", "bold red") if view.snapshot_error else text


def _circuit(replay: replay_pb2.GetReplayStatusResponse) -> Text:
    if not replay.circuit:
        return Text("closed", style="dim")
    return Text(circuit_in_words(replay), style="bold red")


def _worker_rows(view: View) -> list[tuple[Text | str, ...]]:
    """Join what the ledger knows of the workers with what they say themselves."""
    names = {worker.worker_id: name for name, worker in view.workers.items()}
    summaries = view.replay.workers if view.replay is not None else ()
    rows: list[tuple[Text | str, ...]] = []
    for summary in summaries:
        name = names.get(summary.worker_id, summary.worker_id)
        own = view.workers.get(name)
        speed = view.worker_tokens[name].per_second() if name in view.worker_tokens else None
        streak = Text(str(summary.failure_streak), style="red" if summary.failure_streak else "dim")
        rows.append(
            (
                f"{name} (draining)" if own is not None and own.draining else name,
                str(summary.lease_count),
                weights_name((own if own is not None else summary).weight_version),
                streak,
                f"{speed:,.0f}" if speed is not None else "-",
                f"{own.wasted_token_count:,}" if own is not None else "-",
                f"{duration(summary.silent_s)} ago",
            )
        )
    return rows


def _workers(rows: Sequence[tuple[Text | str, ...]], count: int) -> RenderableType:
    grid = _columns(
        ("worker", "left"),
        ("leases", "right"),
        ("weights", "right"),
        ("failures", "right"),
        ("tokens/s", "right"),
        ("wasted", "right"),
        ("heard of", "right"),
    )
    for row in rows[:count]:
        grid.add_row(*row)
    if len(rows) > count:
        grid.add_row(Text(f"and {len(rows) - count} more", style="dim"))
    if not rows:
        grid.add_row(Text("no workers", style="dim"))
    return grid


def _waits(waits: Sequence[tuple[str, status_pb2.Wait]], count: int | None) -> RenderableType:
    """Show the longest first; the stalled ones in red."""
    grid = _columns(("wait", "left"), ("who", "left"), ("owner", "left"), ("for", "right"))
    grid.expand = True  # what is too long for the line is cut from the last column
    grid.add_column("ends when", no_wrap=True, overflow="ellipsis", ratio=1)
    shown = waits if count is None else waits[:count]
    for who, wait in shown:
        lasts = duration(wait.elapsed_s)
        cells = (f"{wait.name}", who, wait.owner, f"STALLED {lasts}" if wait.stalled else lasts)
        grid.add_row(*cells, wait.ends_when, style="bold red" if wait.stalled else "")
    if len(waits) > len(shown):
        grid.add_row(Text(f"and {len(waits) - len(shown)} shorter ones", style="dim"))
    if not waits:
        grid.add_row(Text("nobody waits", style="dim"))
    return grid


def _columns(*columns: tuple[str, str]) -> Table:
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name, justify in columns:
        grid.add_column(name, justify="right" if justify == "right" else "left", no_wrap=True)
    return grid


def _where(shown: Shown, console: Console) -> RenderableType:
    if shown.where is None:
        return Text(f"{shown.dialog.uid}: asking …")
    if isinstance(shown.where, str):
        return Text(shown.where, style="red")
    lines = history_table(shown.where).wrap(console, console.width)
    room = max(1, console.height - 1)
    # The last line never leaves the screen.
    shown.dialog.scroll = min(shown.dialog.scroll, max(0, len(lines) - room))
    return Text("\n").join(lines[shown.dialog.scroll : shown.dialog.scroll + room])


def _foot(shown: Shown) -> Text:
    mode = shown.dialog.mode
    if mode is Mode.ASKING:
        return Text.assemble(
            ("where is prompt: ", "bold"), shown.dialog.typed, ("█", "blink"), "   Enter, Esc"
        )
    if mode is Mode.WHERE:
        return Text("Esc back   w another prompt   j k move   q quit", style="reverse")
    return Text("w where a prompt is   q quit", style="reverse")
