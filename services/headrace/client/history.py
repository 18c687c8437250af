"""One prompt's place and history as text. Asks nobody."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from rich.text import Text

from headrace.client.tables import Fact, columns, facts
from headrace.client.words import reason_name, state_name
from headrace.v1 import replay_pb2

LONGEST_ID: Final = 8
"""Characters of a random id that are shown."""


def history_table(found: replay_pb2.LocatePromptResponse) -> Text:
    """Show a prompt's place and its history."""
    group = found.group
    state = state_name(group.state)
    if group.drop_reason:
        state += f" ({reason_name(group.drop_reason)})"
    pairs: list[Fact] = [
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
        pairs.append(("sessions", f"{len(group.sessions)} completed; rewards {rewards}"))
    if group.last_error:
        pairs.append(("last error", Text(group.last_error, style="red")))
    rows = []
    for event in found.history:
        time = datetime.fromtimestamp(event.unix_time_s).astimezone()
        detail = detail_in_words(event.detail_json)
        rows.append((str(event.position), f"{time:%H:%M:%S.%f}"[:-3], event.name, detail))
    table = columns(("position", "time", "event", "detail"), rows, right={"position"})
    return Text("\n\n").join([facts(pairs), table])


def detail_in_words(detail_json: str) -> str:
    """Say in a line what an event says about the prompt.

    The event is JSON in protobuf's mapping, cut down to the one prompt.
    """
    try:
        detail = json.loads(detail_json) if detail_json else {}
    except ValueError:
        return detail_json
    return ", ".join(text for key, value in detail.items() if (text := _field(key, value)))


def _field(key: str, value: Any) -> str:
    if key == "sessions" and isinstance(value, list):
        return _sessions(value)
    if key == "leases" and isinstance(value, list):
        return "; ".join(_words(lease) for lease in value)
    if key == "prompts" and isinstance(value, list):
        return "; ".join(filter(None, (_words(prompt) for prompt in value)))
    if key == "uids":
        return ""
    if key == "store_incarnation":
        return f"store {str(value)[:LONGEST_ID]}"
    return f"{key} {_words(value)}"


def _sessions(sessions: list[Any]) -> str:
    """`sessions 0, 3 (attempt 1, rewards 0.5, 1)`; by number only where that is all there is."""
    if not all(isinstance(session, dict) for session in sessions):
        return f"sessions {_words(sessions)}"
    records = [session.get("record", session) for session in sessions]
    numbers = ", ".join(str(record.get("session", 0)) for record in records)
    rewards = ", ".join(f"{float(record.get('reward', 0)):g}" for record in records)
    attempts = {session.get("lease", session).get("attempt", 0) for session in sessions}
    attempt = ", ".join(str(attempt) for attempt in sorted(attempts))
    return f"sessions {numbers} (attempt {attempt}, rewards {rewards})"


def _words(value: Any) -> str:
    if isinstance(value, dict):
        shown = {key: inner for key, inner in value.items() if key not in {"uid", "payload"}}
        return " ".join(filter(None, (_field(key, inner) for key, inner in shown.items())))
    if isinstance(value, list):
        return ", ".join(_words(item) for item in value)
    return str(value)
