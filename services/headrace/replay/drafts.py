"""Responses under way: what is kept of them, and which are gone on with.

    a worker reports ─► kept with its group ─► given with the group's next lease

A draft lives as long as its session may be gone on with: until it is recorded, its group leaves
PENDING and RUNNING, or its lease fails, for it may be what fails. It outlives the worker, the lease
and, in the journal, everybody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from headrace.errors import InvalidFieldError
from headrace.replay import draft
from headrace.replay.group import Group
from headrace.replay.ledger import Ledger
from headrace.replay.settings import LedgerSettings
from headrace.replay.staleness import oldest_usable_version
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import prompt_pb2, replay_pb2

STALE = "stale"
TOO_LARGE = "too_large"


def check(ledger: Ledger, progress: Sequence[replay_pb2.LeaseProgress]) -> None:
    """Accept only drafts that say of each token what is needed to train on it.

    Raises:
        InvalidFieldError: otherwise.

    """
    for lease in progress:
        for piece in lease.drafts:
            if not 0 <= piece.session < ledger.n or not draft.is_whole(piece):
                raise InvalidFieldError("progress.drafts", f"of {lease.lease.uid} is malformed")


def keep(
    ledger: Ledger,
    settings: LedgerSettings,
    progress: Sequence[tuple[replay_pb2.LeaseProgress, Group | None]],
    *,
    worker_id: str,
) -> list[int]:
    """Keep what is new of sessions under way; say per draft how many tokens are kept now.

    Args:
        ledger: Is changed.
        settings: How much there is room for.
        progress: What was reported, each with its group, if the worker holds that lease.
        worker_id: Who reports.

    """
    room = settings.max_draft_bytes // draft.BYTES_PER_TOKEN - ledger.groups.draft_token_count
    event = journal.TokensReported(worker_id=worker_id)
    counts: list[int] = []
    for reported, group in progress:
        if group is None or reported.lineage != ledger.lineage:
            counts += [0] * len(reported.drafts)
            continue
        kept = {session: len(each.token_ids) for session, each in group.drafts.items()}
        news = []
        for piece in reported.drafts:
            begin = kept.get(piece.session, 0)
            end = min(_usable_until(ledger, settings, group, piece), begin + room)
            if piece.offset <= begin < end:
                news.append(draft.stretch(piece, begin, end))
                room -= end - begin
                kept[piece.session] = end
            counts.append(kept.get(piece.session, 0))
        if news:
            event.progress.add(lease=reported.lease, lineage=reported.lineage, drafts=news)
    if event.progress:
        ledger.emit(event)
    return counts


def _usable_until(
    ledger: Ledger, settings: LedgerSettings, group: Group, piece: prompt_pb2.Draft
) -> int:
    """Say up to which place the session may be gone on with behind it.

    A response that is done is none; neither is one by weights that the time line does not know.
    """
    if piece.session in group.sessions:
        return 0
    from_version = group.base - 1 if ledger.basis != "fed" else 0
    known = draft.known_until(piece, ledger.weights.keys(), from_version=from_version)
    return min(known, settings.max_response_length - 1)


def size(group: Group) -> int:
    """Bytes of its drafts in a lease."""
    return sum(each.ByteSize() for each in group.drafts.values())


def drop_unusable(
    ledger: Ledger, settings: LedgerSettings, groups: Sequence[Group], *, lease_bytes: int
) -> None:
    """Drop the drafts of groups about to be leased that cannot be gone on with.

    What is past the threshold at the current step would take its group along; what does not fit
    into a lease, `lease_bytes` with the prompt, is begun anew.
    """
    oldest_version = oldest_usable_version(ledger.current_step, settings)
    dropped: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for group in groups:
        left = lease_bytes - (group.payload.ByteSize() if group.payload else 0)
        for session, each in group.drafts.items():
            left -= each.ByteSize()
            if draft.oldest(each) < oldest_version:
                dropped[STALE].append((group.uid, session))
            elif left < 0 or draft.length(each) >= settings.max_response_length:
                dropped[TOO_LARGE].append((group.uid, session))
    for reason, found in dropped.items():
        ledger.emit(
            journal.DraftsDropped(
                reason=reason,
                uids=[uid for uid, _ in found],
                sessions=[session for _, session in found],
                step=ledger.current_step,
            )
        )
