"""Answers as tables for a terminal. Asks nobody."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.words import (
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


def facts(pairs: Iterable[tuple[str, RenderableType]]) -> Table:
    """Lay out names and values in two columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    return table


def status_table(
    status: replay_pb2.GetReplayStatusResponse, processes: Iterable[status_pb2.ProcessStatus]
) -> RenderableType:
    """Show where a run is. `processes` are the others that answered."""
    latest = status.latest_weights.id
    weights = f"version {latest.version}, lineage {latest.lineage}"
    pairs: list[tuple[str, RenderableType]] = [
        ("run", status.process.run_id),
        ("step", f"{status.committed_step} of {status.total_steps or '?'}" + _over(status)),
        ("prompts", counts_in_words(status.counts)),
        ("window", f"{window_in_words(status)} (demand {status.demand})"),
        ("weights", weights if status.HasField("latest_weights") else "none yet"),
        ("store", f"{size(status.store_reserved_bytes)} of {size(status.store_capacity_bytes)}"),
    ]
    if status.finished_spans:
        spans = ", ".join(f"{n} x {span}" for span, n in sorted(status.finished_spans.items()))
        pairs.append(("spans", f"{spans} (groups x span, finished)"))
    if status.regenerated:
        pairs.append(("regenerated", in_pairs(status.regenerated)))
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


def history_table(found: replay_pb2.LocatePromptResponse) -> RenderableType:
    """Show a prompt's place and its history."""
    group = found.group
    state = state_name(group.state)
    if group.drop_reason:
        state += f" ({reason_name(group.drop_reason)})"
    pairs: list[tuple[str, RenderableType]] = [
        ("uid", f"{group.uid}, ordinal {group.ordinal}"),
        ("state", state),
        (
            "attempt",
            f"{group.attempt} (failures {group.failure_count}, expiries {group.expiry_count})",
        ),
    ]
    if group.worker_id:
        pairs.append(("worker", group.worker_id))
    if group.step:
        pairs.append(("step", str(group.step)))
    if group.sessions:
        rewards = ", ".join(f"{session.reward:g}" for session in group.sessions)
        pairs.append(("sessions", f"{len(group.sessions)} in the store; rewards {rewards}"))
    if group.last_error:
        pairs.append(("last error", Text(group.last_error, style="red")))
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for column in ("position", "time", "event", "detail"):
        table.add_column(column, justify="right" if column == "position" else "left")
    for event in found.history:
        time = datetime.fromtimestamp(event.unix_time_s).astimezone()
        detail = _detail(event.detail_json, group.uid)
        table.add_row(str(event.position), f"{time:%H:%M:%S.%f}"[:-3], event.name, Text(detail))
    return Group(facts(pairs), "", table)


def prompts_table(groups: Iterable[prompt_pb2.PromptGroup]) -> RenderableType:
    """Show prompts, one a line."""
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for column in ("ordinal", "uid", "state", "reason", "attempt", "sessions", "reward", "step"):
        left = column in {"uid", "state", "reason"}
        table.add_column(column, justify="left" if left else "right")
    for group in groups:
        rewards = [session.reward for session in group.sessions]
        table.add_row(
            str(group.ordinal),
            group.uid,
            state_name(group.state),
            reason_name(group.drop_reason),
            str(group.attempt),
            str(len(rewards)),
            f"{sum(rewards) / len(rewards):.3f}" if rewards else "",
            str(group.step or ""),
        )
    return table


def audit_table(audit: replay_pb2.AuditResponse) -> RenderableType:
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


def _detail(detail_json: str, uid: str) -> str:
    """Show of an event what concerns this prompt, in one line."""
    try:
        detail = json.loads(detail_json) if detail_json else {}
    except ValueError:
        return detail_json
    return ", ".join(f"{key} {_value(value, uid)}" for key, value in detail.items())


def _value(value: Any, uid: str) -> str:
    if isinstance(value, list):
        own = [item for item in value if uid in json.dumps(item)]
        shown = own or value
        text = "; ".join(_value(item, uid) for item in shown[:3])
        return text + (f" (of {len(value)})" if len(value) > len(shown[:3]) else "")
    if isinstance(value, dict):
        inner = (f"{k} {_value(v, uid)}" for k, v in value.items() if v != uid)
        return " ".join(inner)
    return str(value)
