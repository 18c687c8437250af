"""The control cycle of prompt groups, durable: fed, leased, completed, sampled, committed.

A feeder, sixteen workers and a trainer, as coroutines of this process, through the real replay
buffer: at most 8 groups per call, 8 sessions a group, a step of 64 groups in 8 parts.
The peer's cycle is what verl does with tags for the same group, one put each: pending, running,
finished; a poll and a clear per batch. It keeps nothing on disk.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench_ledger import BATCH_SIZE, TRANSITIONS_PER_GROUP, ledger_rate
from bench_table import Row, microseconds, per_second
from interleave import Ratio, interleaved
from peer_process import PARTITION, finished, put_prompts, put_status
from replay_process import Client, running_replay

GROUPS_PER_CALL = 8
WORKERS = 16
N = 8


async def _feed(client: Client) -> None:
    while True:
        wanted = await client.demand(wait_s=5.0)
        while wanted:
            count = min(wanted, GROUPS_PER_CALL)
            await client.feed(count)
            wanted -= count


async def _work(client: Client, name: str) -> None:
    while True:
        leases = await client.lease(name, GROUPS_PER_CALL, wait_s=5.0)
        if leases:
            await client.complete(name, leases)


async def _train(client: Client, steps: int) -> None:
    part_count = BATCH_SIZE // GROUPS_PER_CALL
    for _ in range(steps):
        for part in range(part_count):
            await client.sample(part, part_count)
        await client.commit()


@asynccontextmanager
async def _others(client: Client) -> AsyncIterator[None]:
    """Keep the feeder and the workers going."""
    names = [f"worker-{i}" for i in range(WORKERS)]
    tasks = [
        asyncio.create_task(coroutine)
        for coroutine in (_feed(client), *(_work(client, name) for name in names))
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _peer_cycle(tq: Any, keys: list[str]) -> None:
    await put_prompts(tq, keys)
    await put_status(tq, keys, "running")
    await put_status(tq, keys, "finished")
    ready = await finished(tq)
    assert len(ready) == len(keys)
    await tq.async_kv_clear(ready, PARTITION)


async def measure(tq: Any, *, quick: bool) -> list[Row]:
    """Measure the rules alone, the durable cycle, and the peer's."""
    steps, rounds = (6, 3) if quick else (16, 9)
    names = itertools.count()
    cpu_s: list[float] = []

    async def rules() -> float:
        return ledger_rate(steps=steps, n=N)

    async def peer() -> float:
        keys = [f"c{next(names)}" for _ in range(BATCH_SIZE)]
        begun = time.perf_counter()
        await _peer_cycle(tq, keys)
        return len(keys) / (time.perf_counter() - begun)

    with tempfile.TemporaryDirectory() as scratch:
        async with (
            running_replay(
                Path(scratch) / "run", batch_size=BATCH_SIZE, n=N, window_batches=1
            ) as client,
        ):

            async def cycle() -> float:
                async with _others(client):
                    await _train(client, 1)  # the pipeline fills
                    begun, used = time.perf_counter(), client.cpu_s()
                    await _train(client, steps)
                    groups = steps * BATCH_SIZE
                    cpu_s.append((client.cpu_s() - used) / groups)
                    return groups / (time.perf_counter() - begun)

            figures = await interleaved(
                {"rules": rules, "cycle": cycle, "peer": peer}, rounds=rounds
            )
    rate, theirs = median(figures["cycle"]), median(figures["peer"])
    return [
        Row("ledger (64 groups of 8 sessions a step)"),
        Row("the rules alone, transitions", per_second(median(figures["rules"]))),
        Row("durable through the service, transitions", per_second(rate * TRANSITIONS_PER_GROUP)),
        Row(
            "durable through the service, groups / the peer's tags",
            per_second(rate),
            per_second(theirs),
            str(Ratio.of(figures["cycle"], figures["peer"])),
        ),
        Row("CPU of both ends, per group", microseconds(median(cpu_s[1:]))),
    ]
