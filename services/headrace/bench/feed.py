"""How fast prompts are fed: by the feeder's process, and by bare calls.

With the feeder: a trainer samples a batch, the window wants as many new prompts, the feeder reads
them from a file, G rows at a time, and registers them, and a worker has leased all of them. That
is two events more than feeding, each on disk, and still what a run waits for.
Bare calls register ready-made prompts; one prompt per call is the worst there is.
The peer puts each prompt by itself, a tensor and a tag, and keeps nothing on disk.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from typing import Any

from headrace.bench.feeder import running_feeder, write_rows
from headrace.bench.findings import Findings
from headrace.bench.goal import Goal
from headrace.bench.groups import WORKER
from headrace.bench.laps import Lap, Laps, Way, interleaved
from headrace.bench.peer import PARTITION, Peer, put_prompts
from headrace.bench.pipeline import run_pipeline
from headrace.bench.replay import Replay, running_replay
from headrace.bench.setting import Setting
from headrace.bench.stopwatch import Stopwatch
from headrace.bench.table import Row, microseconds

BATCH_SIZE = 256
"""Prompts that the window lacks at once: a training batch of usual size."""
PEER_PROMPTS = 32
BARE_PROMPTS = 10_000
LEAST_RATIO = 20.0


class Refill:
    """A run in which the window lacks a whole batch whenever one was sampled."""

    def __init__(self, replay: Replay, watch: Stopwatch) -> None:
        self._client = replay.client
        self._watch = watch

    async def begin(self) -> None:
        """Finish the first batch."""
        await self._client.complete(WORKER, await self._lease())

    async def _lease(self) -> list[Any]:
        leases: list[Any] = []
        while len(leases) < BATCH_SIZE:
            leases += await self._client.lease(WORKER, BATCH_SIZE - len(leases), wait_s=9.0)
        return leases

    def way(self, batches: int) -> Way:
        """Give the prompts per second between a sampled batch and its leased replacement."""

        async def way() -> Lap:
            laps = [await self._once() for _ in range(batches)]
            return Lap(
                batches * BATCH_SIZE,
                sum(lap.seconds for lap in laps),
                sum(lap.cpu_s for lap in laps),
            )

        return way

    async def _once(self) -> Lap:
        replacement = asyncio.create_task(self._lease())
        await asyncio.sleep(0)
        with self._watch.lap(BATCH_SIZE) as taken:
            await self._client.sample()
            leases = await replacement
        await self._client.commit()
        await self._client.complete(WORKER, leases)
        return taken.lap


def _by_call(replay: Replay, count: int, prompts_per_call: int) -> Way:
    watch = Stopwatch(replay.cpu_s)

    async def way() -> Lap:
        with watch.lap(count) as taken:
            for _ in range(count // prompts_per_call):
                await replay.client.feed(prompts_per_call)
        return taken.lap

    return way


def _peer_way(peer: Peer) -> Way:
    names, watch = itertools.count(), Stopwatch(peer.cpu_s)

    async def way() -> Lap:
        keys = [f"f{next(names)}" for _ in range(PEER_PROMPTS)]
        with watch.lap(len(keys)) as taken:
            await put_prompts(peer.tq, keys)
        await peer.tq.async_kv_clear(keys, PARTITION)
        return taken.lap

    return way


async def _bare() -> Lap:
    with Stopwatch().lap(BARE_PROMPTS) as taken:
        await run_pipeline(BARE_PROMPTS, batch_size=64, n=1)
    return taken.lap


async def measure(setting: Setting) -> Findings:
    """Measure all ways to feed, the peer's, and a bare one."""
    assert setting.peer
    rounds, batches, singles = (3, 2, 32) if setting.is_quick else (11, 6, 64)
    async with AsyncExitStack() as stack:
        feeders = {
            f"feeder, G = {size}, until leased": await _by_feeder(stack, setting, size, batches)
            for size in (1, 64)
        }
        bare = await stack.enter_async_context(
            running_replay(setting.scratch / "bare", batch_size=64, n=8, window_batches=10_000)
        )
        calls = {
            "bare calls, 1 prompt each": _by_call(bare, singles, 1),
            "bare calls, 64 prompts each": _by_call(bare, batches * BATCH_SIZE, 64),
        }
        laps = await interleaved(
            {**feeders, **calls, "peer": _peer_way(setting.peer), "bare": _bare}, rounds=rounds
        )
    one, many = (laps[name] for name in feeders)
    return Findings(
        rows=[
            Row("feed: CPU per prompt, all processes; prompts per second / theirs"),
            *(_row(name, laps) for name in (*feeders, *calls)),
            Row("G = 1 / G = 64 (both headrace)", peer=one.over(many)),
            Row("TransferQueue's put per prompt", microseconds(laps["peer"].cpu_per_item_s)),
        ],
        goals=[
            Goal.at_least(
                "feed at G = 1, / the peer's path", LEAST_RATIO, one.over(laps["peer"]).median, "x"
            )
        ],
        laps={f"feed, {name}": done for name, done in laps.items()},
    )


async def _by_feeder(stack: AsyncExitStack, setting: Setting, chunk_size: int, batches: int) -> Way:
    replay = await stack.enter_async_context(
        running_replay(
            setting.scratch / f"feeder{chunk_size}",
            batch_size=BATCH_SIZE,
            n=1,
            window_batches=1,
            opens_feed=False,
        )
    )
    rows = setting.scratch / "rows.jsonl"
    write_rows(rows)
    feeder_cpu_s = await stack.enter_async_context(
        running_feeder(replay.client.address, rows, batch_size=BATCH_SIZE, chunk_size=chunk_size)
    )
    refill = Refill(replay, Stopwatch(replay.cpu_s, feeder_cpu_s))
    await refill.begin()
    return refill.way(batches)


def _row(name: str, laps: dict[str, Laps]) -> Row:
    ours = laps[name]
    return Row(
        name,
        microseconds(ours.cpu_per_item_s),
        ours.over(laps["peer"]),
        ours.over(laps["bare"]),
    )
