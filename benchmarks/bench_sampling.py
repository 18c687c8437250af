"""How long a SampleBatch takes with 1,000, 10,000 and 100,000 live groups in the replay buffer.

Each size has a replay buffer of its own, with its journal, half of the groups finished; they are
asked in turn. Every answer is a step's batch of 64 groups, and is on disk before it leaves. The
peer's trainer lists its partition and picks what is finished; its answer is on no disk.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from bench_ledger import BATCH_SIZE, sample_rule_s
from bench_table import Row, microseconds, milliseconds
from interleave import Ratio, percentile
from peer_process import finished, prompt_tag
from replay_process import Client, running_replay

from headrace.replay.feeding import MAX_PROMPTS_PER_CALL
from headrace.replay.leasing import MAX_LEASES_PER_CALL

LIVE_COUNTS = (1_000, 10_000, 100_000)
WORKER = "worker"


async def _fill(client: Client, live_count: int) -> None:
    """Feed so many groups and finish half of them."""
    edges = [*range(0, live_count, MAX_PROMPTS_PER_CALL), live_count]
    for begin, end in pairwise(edges):
        await client.feed(end - begin)
    left = live_count // 2
    while left:
        left -= await _generate(client, min(left, MAX_LEASES_PER_CALL))


async def _generate(client: Client, count: int) -> int:
    leases = await client.lease(WORKER, count, wait_s=5.0)
    await client.complete(WORKER, leases)
    return len(leases)


async def _sample(client: Client) -> float:
    """Time one batch, and put as many new groups in its place."""
    begun = time.perf_counter()
    await client.sample()
    seconds = time.perf_counter() - begun
    await client.commit()
    await client.feed(BATCH_SIZE)
    await _generate(client, BATCH_SIZE)
    return seconds


async def _peer_poll(tq: Any, live_count: int) -> float:
    begun = time.perf_counter()
    ready = await finished(tq, f"live{live_count}")
    assert len(ready) == live_count // 2
    return time.perf_counter() - begun


async def _fill_peer(tq: Any, live_count: int) -> None:
    partition = f"live{live_count}"
    for begin in range(0, live_count, 1000):
        keys = [f"s{i}" for i in range(begin, begin + 1000)]
        tags = [prompt_tag("finished" if i % 2 else "pending") for i in range(1000)]
        await tq.async_kv_batch_put(keys, partition, tags=tags)


async def _clear_peer(tq: Any, live_count: int) -> None:
    partition = f"live{live_count}"
    keys = list((await tq.async_kv_list(partition))[partition])
    await tq.async_kv_clear(keys, partition)


async def measure(tq: Any, *, quick: bool) -> list[Row]:
    """Measure the service, the rule alone, and the peer's poll."""
    samples, polls = (30, 3) if quick else (300, 7)
    polled = LIVE_COUNTS[:2] if quick else LIVE_COUNTS  # filling the peer takes longest of all
    ours: dict[int, list[float]] = {count: [] for count in LIVE_COUNTS}
    theirs: dict[int, list[float]] = {count: [] for count in polled}
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clients = {
            count: await stack.enter_async_context(
                running_replay(
                    scratch / str(count),
                    batch_size=BATCH_SIZE,
                    n=1,
                    window_batches=count / BATCH_SIZE,
                )
            )
            for count in LIVE_COUNTS
        }
        for count, client in clients.items():
            await _fill(client, count)
        for count in polled:
            await _fill_peer(tq, count)
        for number in range(samples):
            for count, client in clients.items():
                ours[count].append(await _sample(client))
                if count in polled and number % (samples // polls) == 0:
                    theirs[count].append(await _peer_poll(tq, count))
        for count in polled:
            await _clear_peer(tq, count)
    return [
        Row("SampleBatch of 64 groups, durable: p50 / p99; the peer's poll: p50"),
        *(_compared(count, ours[count], theirs.get(count, [])) for count in LIVE_COUNTS),
        _growth(ours),
        Row("the rule alone, in memory: p50 / p99"),
        *_rule(samples),
    ]


def _compared(count: int, ours: list[float], theirs: list[float]) -> Row:
    return Row(
        f"{count:,} live groups",
        f"{milliseconds(median(ours))} / {milliseconds(percentile(ours, 99))}",
        milliseconds(median(theirs)) if theirs else "",
        f"{median(theirs) / median(ours):.2f}x" if theirs else "",
    )


def _growth(seconds: dict[int, list[float]]) -> Row:
    few, many = LIVE_COUNTS[0], LIVE_COUNTS[-1]
    ratio = Ratio.of(seconds[many], seconds[few])
    return Row(f"time at {many:,} / at {few:,}", ratio=str(ratio))


def _rule(samples: int) -> list[Row]:
    seconds = sample_rule_s(LIVE_COUNTS, samples=samples)
    return [
        *(
            Row(
                f"{count:,} live groups",
                f"{microseconds(median(took))} / {microseconds(percentile(took, 99))}",
            )
            for count, took in seconds.items()
        ),
        _growth(seconds),
    ]
