"""The bare pipeline: the same stations in one process, and nothing is kept.

A feeder, workers and a trainer, with queues of asyncio between them. No wire, no disk, no rules:
what is left of a system when everything that it is for is taken away.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

WORKERS: Final = 16


async def run_pipeline(group_count: int, *, batch_size: int, n: int) -> None:
    """Move so many groups of n sessions from the feeder to the trainer, 64 at a time in flight."""
    fed: asyncio.Queue[int] = asyncio.Queue(batch_size)
    finished: asyncio.Queue[tuple[int, list[float]]] = asyncio.Queue(batch_size)

    async def feed() -> None:
        for group in range(group_count):
            await fed.put(group)

    async def work() -> None:
        while True:
            group = await fed.get()
            await finished.put((group, [0.5] * n))

    others = [asyncio.create_task(feed()), *(asyncio.create_task(work()) for _ in range(WORKERS))]
    try:
        for _ in range(group_count):
            await finished.get()
    finally:
        await _end(others)


async def hand_over() -> None:
    """Hand one thing to somebody who waits for it."""
    queue: asyncio.Queue[int] = asyncio.Queue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.put_nowait(1)
    await waiting


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
