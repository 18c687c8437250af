"""What the events of a run as a whole change: its feed, its store, pauses and its end.

Decisions are in `headrace.replay.{feeding,rows,ending}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.replay.group import FINISHED, RUNNING
from headrace.replay.progress import Feed
from headrace.replay.timeline_events import give_up_snapshot
from headrace.v1 import journal_pb2 as journal

if TYPE_CHECKING:
    from headrace.replay.ledger import Ledger


def _on_run_opened(ledger: Ledger, event: journal.RunOpened) -> None:
    pass  # A ledger is made from it.


def _on_feed_opened(ledger: Ledger, event: journal.FeedOpened) -> None:
    ledger.feed = Feed(event.row_count, event.ordinal_count, event.total_steps, event.fingerprint)


def _on_credit_added(ledger: Ledger, event: journal.CreditAdded) -> None:
    ledger.credit += event.count
    ledger.credit_answers[event.request_id] = ledger.credit


def _on_store_registered(ledger: Ledger, event: journal.StoreRegistered) -> None:
    changed = event.store_incarnation != ledger.store_incarnation
    ledger.store_incarnation = event.store_incarnation
    ledger.store_capacity = event.capacity_bytes
    if not changed:
        return
    give_up_snapshot(ledger)
    for live in [group for group in ledger.groups.live() if group.sessions]:
        with ledger.groups.changing(live) as group:
            if group.state in (RUNNING, FINISHED):
                ledger.regenerated["store_lost"] += 1
                ledger.to_pending(group)
            ledger.forget_sessions(group)
            ledger.touch(group)


def _on_run_paused(ledger: Ledger, event: journal.RunPaused) -> None:
    ledger.paused = True


def _on_run_resumed(ledger: Ledger, event: journal.RunResumed) -> None:
    ledger.paused = False


def _on_run_ended(ledger: Ledger, event: journal.RunEnded) -> None:
    ledger.ended_by = event.cause


HANDLERS: Mapping[str, Callable[[Ledger, Any], None]] = {
    "run_opened": _on_run_opened,
    "feed_opened": _on_feed_opened,
    "credit_added": _on_credit_added,
    "store_registered": _on_store_registered,
    "run_paused": _on_run_paused,
    "run_resumed": _on_run_resumed,
    "run_ended": _on_run_ended,
}
"""By the event's name."""
