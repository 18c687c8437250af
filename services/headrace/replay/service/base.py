"""What all of the replay buffer's calls share: one turn, then the answer when it is durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import grpc

from headrace.errors import InvalidFieldError, NotReadyError
from headrace.replay.buffer import ReplayBuffer
from headrace.replay.history import HistoryReader
from headrace.replay.journal.base import Journal
from headrace.replay.ledger import Ledger
from headrace.replay.settings import LedgerSettings
from headrace.v1 import status_pb2
from headrace.v1.replay_pb2_grpc import ReplayBufferServiceServicer

MAX_WAIT_S = 60.0

_T = TypeVar("_T")
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Calls(ReplayBufferServiceServicer):
    """Answers for one replay buffer.

    A handler's part before its first `await` is one turn of the event loop, so no two calls ever
    decide on the same state; each answer waits until all it depends on is durable.
    """

    def __init__(self, process_status: Callable[[], status_pb2.ProcessStatus]) -> None:
        self._process_status = process_status
        self._opened: tuple[ReplayBuffer, Journal] | None = None
        self._history: HistoryReader

    def open(self, buffer: ReplayBuffer, journal: Journal) -> None:
        """Answer calls from now on; until then they are told to try again."""
        self._history = HistoryReader(journal)
        self._opened = (buffer, journal)

    @property
    def _buffer(self) -> ReplayBuffer:
        if self._opened is None:
            raise NotReadyError("the replay buffer is loading its journal")
        return self._opened[0]

    @property
    def _journal(self) -> Journal:
        if self._opened is None:
            raise NotReadyError("the replay buffer is loading its journal")
        return self._opened[1]

    @property
    def _ledger(self) -> Ledger:
        return self._buffer.ledger

    @property
    def _settings(self) -> LedgerSettings:
        return self._buffer.settings

    async def _turn(self, change: Callable[[], _T]) -> _T:
        """Change the ledger in one turn, and answer when that is durable."""
        try:
            answer = change()
        finally:
            self._buffer.commit()
        await self._buffer.settled()
        return answer


def checked_wait(seconds: float) -> float:
    """Accept a request's `wait_s`.

    Raises:
        InvalidFieldError: it is negative, or longer than a long poll may be.

    """
    if not 0 <= seconds <= MAX_WAIT_S:
        raise InvalidFieldError("wait_s", f"must be 0 to {MAX_WAIT_S:g}")
    return seconds
