"""Work whose caller may go away runs to its end, and fails in silence then."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from headrace.rpc.lasting import lasting


class Work:
    """Something that ends, or fails, when it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.task = asyncio.ensure_future(self._work())

    async def _work(self) -> str:
        await self.go_on.wait()
        raise OSError("the disk is full")


@pytest.fixture
async def complaints() -> list[dict[str, Any]]:
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    return heard


async def test_a_failure_is_the_caller_s(complaints: list[dict[str, Any]]) -> None:
    work = Work()
    work.go_on.set()
    with pytest.raises(OSError, match="the disk is full"):
        await lasting(work.task)
    assert complaints == []


async def test_a_failure_after_the_caller_went_away_is_nobody_s(
    complaints: list[dict[str, Any]],
) -> None:
    work = Work()
    caller = asyncio.ensure_future(lasting(work.task))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not work.task.done()

    work.go_on.set()
    await asyncio.wait([work.task])
    await asyncio.sleep(0)
    del work, caller
    gc.collect()
    assert complaints == []
