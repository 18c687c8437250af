"""Long polls: questions that wait for an answer, asked again whenever something changed.

All waiting questions are asked in one turn of the event loop, oldest first, and however often
something changed before that turn. Those that would get the same answer are asked once: with a
thousand idle workers, a change costs one look and not a thousand.
Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

_T = TypeVar("_T")

Look: TypeAlias = Callable[[], _T | None]
"""Gives an answer, or None as long as there is none. May change what others look at."""
Alike: TypeAlias = Callable[[], Hashable | None]
"""Says, now, which questions have no answer if this one has none; None = only itself."""


_NO_ANSWER = object()
"""Found by a question when its time is up."""


def unlike_others() -> None:
    """Say that a question stands for itself alone."""


@dataclass(eq=False)
class _Poll:
    look: Look[Any]
    alike: Alike
    answer: asyncio.Future[Any]

    def give_up(self) -> None:
        if not self.answer.done():
            self.answer.set_result(_NO_ANSWER)


class LongPolls:
    """The questions that wait. `asked` is called after every turn in which some were asked."""

    def __init__(self, *, asked: Callable[[], None], stopping: asyncio.Event) -> None:
        self._asked = asked
        self._stopping = stopping
        self._waiting: dict[_Poll, None] = {}
        self._turn: asyncio.Handle | None = None

    async def until(self, look: Look[_T], wait_s: float, alike: Alike = unlike_others) -> _T | None:
        """Look, and look again after changes, until there is an answer or time is up.

        An answer is never lost to the time limit. If the caller is cancelled, nobody looks for it
        any more.
        """
        answer = self._look(look)
        if answer is not None or self._stopping.is_set() or not wait_s:
            return answer
        loop = asyncio.get_running_loop()
        poll = _Poll(look, alike, loop.create_future())
        self._waiting[poll] = None
        time_is_up = loop.call_later(wait_s, poll.give_up)
        try:
            found = await poll.answer
        finally:
            del self._waiting[poll]
            time_is_up.cancel()
        return self._look(look) if found is _NO_ANSWER else found

    def _look(self, look: Look[_T]) -> _T | None:
        try:
            return look()
        finally:
            self._asked()

    def wake(self) -> None:
        """Ask all again, soon."""
        if self._waiting and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._ask_all)

    def _ask_all(self) -> None:
        self._turn = None
        unanswered: set[Hashable] = set()
        for poll in list(self._waiting):
            kind = poll.alike()
            if poll.answer.done() or kind in unanswered:
                continue
            try:
                answer = poll.look()
            except Exception as error:
                # Whatever it is, it belongs to the one who asked.
                poll.answer.set_exception(error)
                continue
            if answer is not None or self._stopping.is_set():
                poll.answer.set_result(answer)
            elif kind is not None:
                unanswered.add(kind)
        self._asked()
