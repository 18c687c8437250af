"""Answers as tables for a terminal. Asks nobody."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

from rich.text import Text

from headrace.client.resumes import resume_in_words, saved_in_words, timeline_in_words
from headrace.client.words import (
    circuit_name,
    counts_in_words,
    duration,
    reason_name,
    size,
    state_name,
    wait_in_words,
    window_in_words,
)
from headrace.v1 import prompt_pb2, replay_pb2, status_pb2

Fact = tuple[str, str | Text]
"""A name and what there is to say about it."""


def facts(pairs: Iterable[Fact]) -> Text:
    """Write names and values in two columns. Nothing is cut: the terminal wraps lines."""
    pairs = list(pairs)
    width = max(len(name) for name, _ in pairs)
    lines = [Text.assemble((name.ljust(width), "bold"), "  ", value) for name, value in pairs]
    return Text("\n").join(lines)


def columns(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Container[str]) -> Text:
    """Write rows in columns, those named by `right` flush right. Nothing is cut."""
    rows = list(rows)
    widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
    flush = ["rjust" if name in right else "ljust" for name in header]

    def line(cells: Sequence[str]) -> str:
        padded = (getattr(c, f)(w) for c, f, w in zip(cells, flush, widths, strict=True))
        return "  ".join(padded).rstrip()

    return Text("\n").join([Text(line(header), style="bold"), *(Text(line(row)) for row in rows)])


def status_table(
    name: str,
    status: replay_pb2.GetReplayStatusResponse,
    processes: Iterable[status_pb2.ProcessStatus],
) -> Text:
    """Show where the run of this name is. `processes` are those that answered."""
    latest = status.latest_weights.id
    weights = f"version {latest.version}, lineage {latest.lineage}"
    pairs: list[Fact] = [
        ("run", name),
        ("step", f"{status.committed_step} of {status.total_steps or '?'}" + _over(status)),
        ("prompts", counts_in_words(status.counts)),
        ("window", f"{window_in_words(status)} (demand {status.demand})"),
        ("weights", weights if status.HasField("latest_weights") else "none yet"),
        ("time line", timeline_in_words(status)),
        ("checkpoint", saved_in_words(status)),
        ("store", f"{size(status.store_reserved_bytes)} of {size(status.store_capacity_bytes)}"),
    ]
    if status.HasField("resume"):
        pairs.append(("resume", resume_in_words(status.resume)))
    if status.finished_spans:
        spans = ", ".join(f"{n} x {span}" for span, n in sorted(status.finished_spans.items()))
        pairs.append(("spans", f"{spans} (groups x span, finished)"))
    if status.regenerated:
        pairs.append(("regenerated", in_pairs(status.regenerated)))
    if status.paused:
        paused = "nothing is fed or leased until `headrace resume`"
        pairs.append(("paused", Text(paused, style="bold yellow")))
    if status.circuit:
        why = f"open: {circuit_name(status.circuit)}: {status.circuit_error}"
        pairs.append(("circuit", Text(why, style="red")))
    pairs += [(worker.worker_id, _worker(worker)) for worker in status.workers]
    waits = sorted(
        ((process.process, wait) for process in processes for wait in process.waits),
        key=lambda pair: -pair[1].elapsed_s,
    )
    pairs += [("waits", wait_text(name, wait)) for name, wait in waits]
    return facts(pairs)


def wait_text(process: str, wait: status_pb2.Wait) -> Text:
    """Show a wait; a stalled one in red."""
    text = wait_in_words(process, wait)
    return Text(f"STALLED {text}", style="bold red") if wait.stalled else Text(text)


def prompts_table(groups: Iterable[prompt_pb2.PromptGroup]) -> Text:
    """Show prompts, one a line."""
    header = ("ordinal", "uid", "state", "reason", "attempt", "sessions", "reward", "step")
    rows = []
    for group in groups:
        rewards = [session.reward for session in group.sessions]
        rows.append(
            (
                str(group.ordinal),
                group.uid,
                state_name(group.state),
                reason_name(group.drop_reason),
                str(group.attempt),
                str(len(rewards)),
                f"{sum(rewards) / len(rewards):.3f}" if rewards else "",
                str(group.step or ""),
            )
        )
    return columns(header, rows, right=set(header) - {"uid", "state", "reason"})


def audit_table(audit: replay_pb2.AuditResponse) -> Text:
    """Show what an audit found."""
    verdict = Text("everything holds", style="green")
    if not audit.ok:
        verdict = Text("\n".join(audit.violations) or "broken", style="bold red")
    return facts(
        [
            ("balance", counts_in_words(audit.counts)),
            ("journal", f"position {audit.position}"),
            ("audit", verdict),
        ]
    )


def in_pairs(values: Any) -> str:
    """`expired 3, failed 1`, the largest first."""
    pairs = sorted(dict(values).items(), key=lambda pair: -pair[1])
    return ", ".join(f"{name} {value}" for name, value in pairs)


def _over(status: replay_pb2.GetReplayStatusResponse) -> str:
    return ", over" if status.ended else ""


def _worker(worker: replay_pb2.WorkerSummary) -> Text:
    text = (
        f"holds {worker.lease_count} groups, weights {worker.weight_version}, "
        f"heard of {duration(worker.silent_s)} ago"
    )
    if worker.failure_streak:
        return Text(f"{text}, {worker.failure_streak} failures in a row", style="red")
    return Text(text)
