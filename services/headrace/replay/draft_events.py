"""What the events of responses under way change.

    TokensReported … ─► [DraftsDropped] ─► PromptsLeased, with what there is

Decisions are in `headrace.replay.drafts`. Reports are not in a prompt's history: there would be
hundreds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.replay import draft
from headrace.v1 import journal_pb2 as journal

if TYPE_CHECKING:
    from headrace.replay.ledger import Ledger


def _on_tokens_reported(ledger: Ledger, event: journal.TokensReported) -> None:
    for progress in event.progress:
        group = ledger.groups[progress.lease.uid]
        for piece in progress.drafts:
            ledger.groups.grow_draft(group, piece)


def _on_drafts_dropped(ledger: Ledger, event: journal.DraftsDropped) -> None:
    for uid, session in zip(event.uids, event.sessions, strict=True):
        with ledger.groups.changing(ledger.groups[uid]) as group:
            del group.drafts[session]
        ledger.touch(group)


def cut_drafts(ledger: Ledger, newest: int | None) -> None:
    """Leave of every draft what weights up to `newest` have made; None = nothing."""
    for drafted in [group for group in ledger.groups.live() if group.drafts]:
        with ledger.groups.changing(drafted) as group:
            kept = {} if newest is None else {
                session: draft.cut(each, newest) for session, each in group.drafts.items()
            }  # fmt: skip
            group.drafts = {session: each for session, each in kept.items() if each.token_ids}


HANDLERS: Mapping[str, Callable[[Ledger, Any], None]] = {
    "tokens_reported": _on_tokens_reported,
    "drafts_dropped": _on_drafts_dropped,
}
"""By the event's name."""
