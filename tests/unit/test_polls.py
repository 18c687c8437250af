from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headrace.replay.polls import LongPolls


class Desk:
    """Long polls over one number of free things, and what was asked for."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.turns = 0
        self.polls = LongPolls(asked=self._count, stopping=self.stopping)
        self.free = 0
        self.looks = 0

    def _count(self) -> None:
        self.turns += 1

    def take(self) -> str | None:
        self.looks += 1
        if not self.free:
            return None
        self.free -= 1
        return "one"

    async def ask(self, count: int, look: Callable[[], str | None]) -> list[asyncio.Task[object]]:
        """Have so many ask, and wait until all of them wait."""
        asking: list[asyncio.Task[object]] = [
            asyncio.create_task(self.polls.until(look, 30, lambda: "alike")) for _ in range(count)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return asking

    def change(self, free: int) -> None:
        self.free += free
        self.polls.wake()


async def test_a_change_answers_as_many_as_it_can_oldest_first() -> None:
    desk = Desk()
    asking = await desk.ask(5, desk.take)

    desk.change(2)
    await asyncio.wait(asking[:2])

    assert [task.done() for task in asking] == [True, True, False, False, False]
    desk.change(3)
    assert await asyncio.gather(*asking) == ["one"] * 5


async def test_a_change_without_an_answer_costs_one_look_for_all_that_are_alike() -> None:
    desk = Desk()
    asking = await desk.ask(1000, desk.take)
    assert desk.looks == 1000

    for _ in range(3):  # within one turn
        desk.change(0)
    await asyncio.sleep(0)

    assert desk.looks == 1001
    desk.change(1000)
    await asyncio.gather(*asking)


async def test_one_that_stands_for_itself_is_asked_even_if_others_have_no_answer() -> None:
    desk = Desk()
    asking = await desk.ask(3, desk.take)
    special = asyncio.create_task(desk.polls.until(lambda: "mine" if desk.turns > 4 else None, 30))
    await asyncio.sleep(0)

    while not special.done():
        desk.change(0)
        await asyncio.sleep(0)

    assert await special == "mine"
    assert not any(task.done() for task in asking)
    desk.change(3)
    await asyncio.gather(*asking)


async def test_a_cancelled_caller_takes_nothing() -> None:
    desk = Desk()
    asking = await desk.ask(2, desk.take)

    asking[0].cancel()
    desk.change(1)

    assert await asking[1] == "one"
    with pytest.raises(asyncio.CancelledError):
        await asking[0]
    assert desk.free == 0


async def test_an_answer_found_as_time_runs_out_is_given() -> None:
    desk = Desk()
    assert await desk.polls.until(desk.take, 0.01) is None

    asking = asyncio.create_task(desk.polls.until(desk.take, 0.01))
    await asyncio.sleep(0)
    desk.free = 1  # and nobody wakes anybody

    assert await asking == "one"


async def test_an_error_belongs_to_the_one_who_asked() -> None:
    desk = Desk()
    broken = False

    def look() -> str | None:
        if broken:
            raise ValueError("mine")
        return None

    failing = asyncio.create_task(desk.polls.until(look, 30))
    asking = await desk.ask(1, desk.take)

    broken = True
    desk.change(1)

    with pytest.raises(ValueError, match="mine"):
        await failing
    assert await asking[0] == "one"


async def test_stopping_ends_every_wait() -> None:
    desk = Desk()
    asking = await desk.ask(3, desk.take)

    desk.stopping.set()
    desk.polls.wake()
    assert await asyncio.gather(*asking) == [None] * 3
    assert await desk.polls.until(desk.take, 30) is None
