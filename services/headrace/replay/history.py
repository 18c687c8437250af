"""What happened, read back from the journal for people."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from headrace.errors import InvalidFieldError, PromptUnknownError
from headrace.replay.events import to_ledger_event
from headrace.replay.groups import GroupTable
from headrace.replay.journal.base import Journal
from headrace.replay.journal.committer import Committer
from headrace.replay.ledger import Ledger
from headrace.v1 import prompt_pb2, replay_pb2

PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
EVENTS_PER_READ = 200
MESSAGE_BYTES = 2**20
"""About the most in one answer of events or prompts; one of either always fits."""
SCAN_LIMIT = 100_000
"""Groups looked at for one page, so that a rare state does not hold up the event loop."""


def locate(ledger: Ledger, journal: Journal, uid: str) -> replay_pb2.LocatePromptResponse:
    """Give a prompt's place and its events, as far back as the journal goes.

    Raises:
        PromptUnknownError: it was never fed.

    """
    group = ledger.groups.get(uid)
    if group is None:
        raise PromptUnknownError(
            f"no prompt {uid!r} was fed, or it settled so long ago that it was forgotten "
            "(journal.keep_settled)",
            uid=uid,
        )
    kept = [position for position in group.history if position >= journal.first_position]
    records = journal.read(list(dict.fromkeys(kept)))
    return replay_pb2.LocatePromptResponse(
        group=group.to_proto(),
        history=[to_ledger_event(record, only_uid=uid) for record in records],
    )


def list_prompts(
    groups: GroupTable, request: replay_pb2.ListPromptsRequest
) -> replay_pb2.ListPromptsResponse:
    """Give a page of prompts by ordinal.

    Raises:
        InvalidFieldError: a page token that is none of ours, or a bad page size.

    """
    size = request.page_size or PAGE_SIZE
    if not 1 <= size <= MAX_PAGE_SIZE:
        raise InvalidFieldError("page_size", f"must be 1 to {MAX_PAGE_SIZE}")
    if request.page_token and not request.page_token.isdecimal():
        raise InvalidFieldError("page_token", "is not one that this service gave")
    found: list[prompt_pb2.PromptGroup] = []
    room, looked_at = MESSAGE_BYTES, 0
    for ordinal in groups.by_ordinal.irange(minimum=int(request.page_token or 0)):
        if len(found) == size or room <= 0 or looked_at == SCAN_LIMIT:
            return replay_pb2.ListPromptsResponse(groups=found, next_page_token=str(ordinal))
        looked_at += 1
        group = groups.by_ordinal[ordinal]
        if request.state and group.state != request.state:
            continue
        if request.drop_reason and group.drop_reason != request.drop_reason:
            continue
        found.append(group.to_proto())
        room -= found[-1].ByteSize()
    return replay_pb2.ListPromptsResponse(groups=found)


async def watch(
    journal: Journal, committer: Committer, after_position: int
) -> AsyncIterator[replay_pb2.WatchEventsResponse]:
    """Give the events after a position, and go on as they come. 0 = as far back as there are."""
    position = after_position or journal.first_position - 1
    while True:
        await committer.durable(position + 1)
        last = min(committer.position, position + EVENTS_PER_READ)
        wanted = list(range(position + 1, last + 1))
        records = await asyncio.to_thread(journal.read, wanted)
        message = replay_pb2.WatchEventsResponse()
        size = 0
        for record in records:
            event = to_ledger_event(record)
            size += event.ByteSize()
            if size > MESSAGE_BYTES and message.events:
                yield message
                message = replay_pb2.WatchEventsResponse()
                size = event.ByteSize()
            message.events.append(event)
        yield message
        position = last
