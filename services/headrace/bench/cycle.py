"""The control cycle of prompt groups, durable: fed, leased, completed, sampled, committed.

A feeder, sixteen workers and a trainer, as coroutines of this process, through the real replay
buffer: at most 8 groups per call, 8 sessions a group, a step of 64 groups in 8 parts.
The peer's cycle is what verl does with tags for the same group, one put each: pending, running,
finished; a poll and a clear per batch. It keeps nothing on disk.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from headrace.bench.client import Client
from headrace.bench.findings import Findings
from headrace.bench.goal import Goal
from headrace.bench.groups import BATCH_SIZE
from headrace.bench.laps import Lap, Laps, Way, interleaved
from headrace.bench.peer import PARTITION, Peer, finished, put_prompts, put_status
from headrace.bench.pipeline import WORKERS, run_pipeline
from headrace.bench.pure_run import rules_run
from headrace.bench.redis_server import RedisMissingError, running_redis
from headrace.bench.replay import Replay, running_replay
from headrace.bench.setting import Setting
from headrace.bench.stopwatch import Stopwatch
from headrace.bench.table import Row, microseconds
from headrace.bench.wire import running_wire

GROUPS_PER_CALL = 8
N = 8
BARE_GROUPS = 10_000
LEAST_RATIO = 8.0
MOST_CPU_S = 400e-6


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


async def _cycle(replay: Replay, steps: int, watch: Stopwatch) -> Lap:
    async with _others(replay.client):
        await _train(replay.client, 1)  # the pipeline fills
        with watch.lap(steps * BATCH_SIZE) as taken:
            await _train(replay.client, steps)
    return taken.lap


def _peer_way(peer: Peer) -> Way:
    names, watch = itertools.count(), Stopwatch(peer.cpu_s)

    async def way() -> Lap:
        keys = [f"c{next(names)}" for _ in range(BATCH_SIZE)]
        with watch.lap(BATCH_SIZE) as taken:
            await put_prompts(peer.tq, keys)
            await put_status(peer.tq, keys, "running")
            await put_status(peer.tq, keys, "finished")
            ready = await finished(peer.tq)
            assert len(ready) == len(keys)
            await peer.tq.async_kv_clear(ready, PARTITION)
        return taken.lap

    return way


async def _bare() -> Lap:
    with Stopwatch().lap(BARE_GROUPS) as taken:
        await run_pipeline(BARE_GROUPS, batch_size=BATCH_SIZE, n=N)
    return taken.lap


async def _rules(steps: int) -> Lap:
    with Stopwatch().lap(steps * BATCH_SIZE) as taken:
        rules_run(steps=steps, n=N)
    return taken.lap


async def measure(setting: Setting) -> Findings:
    """Measure the durable cycle over both journals, its rules alone, the peer's, and a bare one."""
    assert setting.peer
    steps, rounds = (4, 3) if setting.is_quick else (16, 9)
    findings = Findings()
    async with AsyncExitStack() as stack:
        journals = {"file": await _over_file(stack, setting, steps)}
        try:
            journals["Redis"] = await _over_redis(stack, setting, steps)
        except RedisMissingError as error:
            findings.notes.append(f"skipped: the ledger over a Redis journal, as {error}")
        wires = {
            name: await stack.enter_async_context(
                running_wire(
                    is_bare=is_bare,
                    group_count=steps * BATCH_SIZE,
                    groups_per_call=GROUPS_PER_CALL,
                    n=N,
                )
            )
            for name, is_bare in (("wire", False), ("bare wire", True))
        }
        laps = await interleaved(
            {
                **journals,
                **wires,
                "rules": partial(_rules, steps),
                "peer": _peer_way(setting.peer),
                "bare": _bare,
            },
            rounds=rounds,
        )
    findings.laps = {f"ledger, {name}": done for name, done in laps.items()}
    findings.rows = [
        Row("ledger: CPU per group of 8 sessions, all processes; groups per second / theirs"),
        *(_row(f"durable cycle, {name} journal", laps[name], laps) for name in journals),
        _row("its calls alone, answered at once", laps["wire"], laps),
        _row("the same without interceptors", laps["bare wire"], laps),
        _row("its rules alone, in this process", laps["rules"], laps),
        Row("TransferQueue's own, for tags", microseconds(laps["peer"].cpu_per_item_s)),
    ]
    for name in journals:
        findings.goals += _goals(name, laps[name], laps["peer"])
    return findings


async def _over_file(stack: AsyncExitStack, setting: Setting, steps: int) -> Way:
    replay = await stack.enter_async_context(
        running_replay(setting.scratch / "file", batch_size=BATCH_SIZE, n=N, window_batches=1)
    )
    return partial(_cycle, replay, steps, Stopwatch(replay.cpu_s))


async def _over_redis(stack: AsyncExitStack, setting: Setting, steps: int) -> Way:
    redis = await stack.enter_async_context(
        running_redis(setting.scratch / "redis", setting.redis_url)
    )
    run_id = f"bench-{uuid.uuid4().hex[:12]}"
    stack.callback(redis.forget, run_id)
    replay = await stack.enter_async_context(
        running_replay(
            setting.scratch / "over-redis",
            batch_size=BATCH_SIZE,
            n=N,
            window_batches=1,
            journal={"kind": "redis", "redis_url": redis.url},
            run_id=run_id,
        )
    )
    return partial(_cycle, replay, steps, Stopwatch(replay.cpu_s, redis.cpu_s))


def _row(name: str, ours: Laps, laps: dict[str, Laps]) -> Row:
    return Row(
        name,
        microseconds(ours.cpu_per_item_s),
        ours.over(laps["peer"]),
        ours.over(laps["bare"]),
    )


def _goals(journal: str, ours: Laps, peer: Laps) -> list[Goal]:
    cycle = f"durable control cycle, 8 per call, {journal} journal"
    return [
        Goal.at_least(
            f"{cycle}, / the peer's control part", LEAST_RATIO, ours.over(peer).median, "x"
        ),
        Goal.at_most(f"{cycle}, CPU per group", MOST_CPU_S * 1e6, ours.cpu_per_item_s * 1e6, " us"),
    ]
