"""What happened, read back from the journal for people."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from headrace.errors import HeadraceError, InvalidFieldError, NotReadyError, WireError
from headrace.replay.events import to_ledger_event
from headrace.replay.group import Group
from headrace.replay.groups import GroupTable
from headrace.replay.journal.base import Journal
from headrace.replay.ledger import Ledger
from headrace.v1 import journal_pb2, prompt_pb2, replay_pb2

PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
EVENTS_PER_READ = 200
MESSAGE_BYTES = 2**20
"""About the most in one answer of events or prompts; one of either always fits."""
SCAN_LIMIT = 100_000
"""Groups looked at for one page, so that a rare state does not hold up the event loop."""
READ_S = 5.0
"""How long a read of the journal may take before who looks is told to ask again."""
READERS = 2
"""Reads at a time. A journal that is away holds them, and nobody who writes."""


def locate(ledger: Ledger, journal: Journal, uid: str) -> replay_pb2.LocatePromptResponse:
    """Give a prompt's place and its events, as far back as the journal goes. Blocks.

    Raises:
        PromptUnknownError: it was never fed.

    """
    group = ledger.groups.find(uid)
    return _located(group.to_proto(), journal.read(_positions(group, journal)))


def _positions(group: Group, journal: Journal) -> list[int]:
    first = journal.first_position
    return list(dict.fromkeys(position for position in group.history if position >= first))


def _located(
    seen: prompt_pb2.PromptGroup, records: Sequence[journal_pb2.JournalRecord]
) -> replay_pb2.LocatePromptResponse:
    return replay_pb2.LocatePromptResponse(
        group=seen, history=[to_ledger_event(record, only_uid=seen.uid) for record in records]
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


class HistoryReader:
    """Reads a journal that is being written: on threads of its own, and for so long.

    Every method raises NotReadyError where the journal does not answer within `READ_S`, or cannot
    be read: the message says why.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="history")

    async def locate(self, ledger: Ledger, uid: str) -> replay_pb2.LocatePromptResponse:
        """Do as the function `locate`, and hold nobody up."""
        group = ledger.groups.find(uid)
        seen = group.to_proto()
        return _located(seen, await self._read(_positions(group, self._journal)))

    async def watch(
        self, durable: Callable[[int], Awaitable[int]], after_position: int
    ) -> AsyncIterator[replay_pb2.WatchEventsResponse]:
        """Give the events after a position, and go on as they come.

        Args:
            durable: Waits until a position is durable; gives the last that is.
            after_position: 0 = as far back as there are.

        """
        position = after_position or self._journal.first_position - 1
        while True:
            last = min(await durable(position + 1), position + EVENTS_PER_READ)
            message = replay_pb2.WatchEventsResponse()
            size = 0
            for record in await self._read(range(position + 1, last + 1)):
                event = to_ledger_event(record)
                size += event.ByteSize()
                if size > MESSAGE_BYTES and message.events:
                    yield message
                    message = replay_pb2.WatchEventsResponse()
                    size = event.ByteSize()
                message.events.append(event)
            yield message
            position = last

    async def _read(self, positions: Sequence[int]) -> list[journal_pb2.JournalRecord]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(READ_S):
                return await loop.run_in_executor(
                    self._threads, self._journal.read, list(positions)
                )
        except TimeoutError as error:
            raise NotReadyError(f"the journal was not read within {READ_S:g} s") from error
        except WireError:
            raise
        except (OSError, HeadraceError) as error:
            raise NotReadyError(f"the journal cannot be read: {error}") from error
