"""One prompt: where it is, and everything that ever happened to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.client import html
from headrace.client.history import detail_in_words, history_table
from headrace.client.words import reason_name, state_name
from headrace.v1 import prompt_pb2
from headrace.v1 import replay_pb2 as pb

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Event:
    """One entry of the journal."""

    position: int
    """Its place in the journal, from 1."""
    time: datetime
    """When it was written, UTC, by the replay buffer's clock."""
    name: str
    """`prompts_leased`, `step_committed`, …"""
    uids: tuple[str, ...]
    """The prompts it concerns."""
    detail: Mapping[str, Any]
    """The event itself, without the prompts' content."""
    words: str
    """The same in a line."""

    @classmethod
    def from_proto(cls, event: prompt_pb2.LedgerEvent) -> Event:
        """Take an event as it came over the wire."""
        return cls(
            position=event.position,
            time=datetime.fromtimestamp(event.unix_time_s, UTC),
            name=event.name,
            uids=tuple(event.uids),
            detail=json.loads(event.detail_json) if event.detail_json else {},
            words=detail_in_words(event.detail_json),
        )

    def __str__(self) -> str:
        return f"{self.position} {self.time:%H:%M:%S} {self.name} {self.words}".rstrip()


class Place:
    """Where a prompt is and how it came there."""

    def __init__(self, found: pb.LocatePromptResponse) -> None:
        self._found = found
        self.group = found.group
        """Its place now."""
        self.events = [Event.from_proto(event) for event in found.history]
        """What happened to it, oldest first, as far back as the journal goes."""

    @property
    def state(self) -> str:
        """Its name: `pending`, `running`, …."""
        return state_name(self.group.state)

    @property
    def reason(self) -> str:
        """Why it was dropped; empty if it was not."""
        return reason_name(self.group.drop_reason)

    @property
    def history(self) -> pd.DataFrame:
        """Its events: position, time, event, detail."""
        import pandas as pd

        rows = [(e.position, e.time, e.name, e.words) for e in self.events]
        return pd.DataFrame(rows, columns=["position", "time", "event", "detail"])

    def __str__(self) -> str:
        return history_table(self._found).plain

    __repr__ = __str__

    def _repr_html_(self) -> str:
        group = self.group
        state = f"{self.state} ({self.reason})" if self.reason else self.state
        rewards = ", ".join(f"{session.reward:g}" for session in group.sessions)
        pairs: list[tuple[str, object]] = [
            ("ordinal", group.ordinal),
            (
                "attempt",
                f"{group.attempt} (failures {group.failure_count}, expiries {group.expiry_count})",
            ),
        ]
        if group.worker_id:
            pairs.append(("worker", group.worker_id))
        if group.step:
            pairs.append(("step", group.step))
        if group.sessions:
            pairs.append(("rewards", f"{rewards} ({len(group.sessions)} sessions)"))
        if group.last_error:
            pairs.append(("last error", html.alarm(group.last_error)))
        rows = [
            (e.position, f"{e.time.astimezone():%H:%M:%S.%f}"[:-3], e.name, e.words)
            for e in self.events
        ]
        return "".join(
            [
                html.title(group.uid, state),
                html.facts(pairs),
                html.table(("position", "time", "event", "detail"), rows),
            ]
        )
