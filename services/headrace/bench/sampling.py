"""How long sampling a batch takes among few and among many resident groups.

The rule in memory, in this process: a step's batch of 64 groups, half of all groups finished, by
CPU time. The service with its journal answers 1,000 and 10,000 live groups beside the peer, whose
trainer lists its partition and picks what is finished; the peer's answer is on no disk.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise
from statistics import median

from headrace.bench.client import Client
from headrace.bench.findings import Findings
from headrace.bench.goal import Goal
from headrace.bench.groups import BATCH_SIZE, WORKER
from headrace.bench.laps import Lap, Laps
from headrace.bench.peer import Peer, finished, prompt_tag
from headrace.bench.pure_run import sample_rule_s
from headrace.bench.ratio import Ratio, percentile
from headrace.bench.replay import Replay, running_replay
from headrace.bench.setting import Setting
from headrace.bench.stopwatch import Stopwatch
from headrace.bench.table import Row, microseconds
from headrace.replay.feeding import MAX_PROMPTS_PER_CALL
from headrace.replay.leasing import MAX_LEASES_PER_CALL

LIVE_COUNTS = (1_000, 10_000)
FEW, MANY, QUICK_MANY = 1_000, 1_000_000, 100_000
MOST_GROWTH = 5.0
SAMPLES_PER_ROUND = 5


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


async def _sample(replay: Replay) -> Lap:
    """Time one batch, and put as many new groups in its place."""
    with Stopwatch(replay.cpu_s).lap(1) as taken:
        await replay.client.sample()
    await replay.client.commit()
    await replay.client.feed(BATCH_SIZE)
    await _generate(replay.client, BATCH_SIZE)
    return taken.lap


async def _median(replay: Replay) -> Lap:
    """Time some batches: right after the peer's long turn, the first waits for the processor."""
    laps = [await _sample(replay) for _ in range(SAMPLES_PER_ROUND)]
    return sorted(laps, key=lambda lap: lap.seconds)[len(laps) // 2]


async def _peer_poll(peer: Peer, live_count: int) -> Lap:
    with Stopwatch(peer.cpu_s).lap(1) as taken:
        ready = await finished(peer.tq, f"live{live_count}")
    assert len(ready) == live_count // 2
    return taken.lap


async def _fill_peer(peer: Peer, live_count: int) -> None:
    partition = f"live{live_count}"
    for begin in range(0, live_count, 1000):
        keys = [f"s{i}" for i in range(begin, begin + 1000)]
        tags = [prompt_tag("finished" if i % 2 else "pending") for i in range(1000)]
        await peer.tq.async_kv_batch_put(keys, partition, tags=tags)


async def _clear_peer(peer: Peer, live_count: int) -> None:
    partition = f"live{live_count}"
    keys = list((await peer.tq.async_kv_list(partition))[partition])
    await peer.tq.async_kv_clear(keys, partition)


async def measure(setting: Setting) -> Findings:
    """Measure the rule alone, the service, and the peer's poll."""
    findings = _rule(is_quick=setting.is_quick)
    findings += await _service(setting)
    return findings


def _rule(*, is_quick: bool) -> Findings:
    many = QUICK_MANY if is_quick else MANY
    seconds = sample_rule_s((FEW, many), samples=100 if is_quick else 300)
    growth = percentile(seconds[many], 99) / percentile(seconds[FEW], 99)
    name = f"SampleBatch's rule, p99 at {many:,} / at {FEW:,} resident groups"
    if is_quick:
        name += f" (the goal is meant for {MANY:,})"
    return Findings(
        rows=[
            Row("sampling 64 groups, the rule alone: CPU, p50 / p99"),
            *(_rule_row(count, took) for count, took in seconds.items()),
        ],
        goals=[Goal.at_most(name, MOST_GROWTH, growth, "x")],
        waits_s={f"sampling, CPU at {count}": took for count, took in seconds.items()},
    )


def _rule_row(count: int, seconds: list[float]) -> Row:
    p50, p99 = microseconds(median(seconds)), microseconds(percentile(seconds, 99))
    return Row(f"{count:,} resident groups", f"{p50} / {p99}")


async def _service(setting: Setting) -> Findings:
    assert setting.peer
    rounds = 5 if setting.is_quick else 15
    ours: dict[int, list[Lap]] = {count: [] for count in LIVE_COUNTS}
    theirs: dict[int, list[Lap]] = {count: [] for count in LIVE_COUNTS}
    async with AsyncExitStack() as stack:
        replays = {
            count: await stack.enter_async_context(
                running_replay(
                    setting.scratch / str(count),
                    batch_size=BATCH_SIZE,
                    n=1,
                    window_batches=count / BATCH_SIZE,
                )
            )
            for count in LIVE_COUNTS
        }
        for count, replay in replays.items():
            await asyncio.gather(_fill(replay.client, count), _fill_peer(setting.peer, count))
            await _sample(replay)  # not counted
        for number in range(rounds):
            for count in LIVE_COUNTS if number % 2 else LIVE_COUNTS[::-1]:
                ours[count].append(await _median(replays[count]))
                theirs[count].append(await _peer_poll(setting.peer, count))
        for count in LIVE_COUNTS:
            await _clear_peer(setting.peer, count)
    ratios = {count: Laps(ours[count]).over(Laps(theirs[count])) for count in LIVE_COUNTS}
    few, many = (Laps(ours[count]).rates for count in LIVE_COUNTS)
    return Findings(
        rows=[
            Row("sampling 64 groups, durable through the service; their poll's time / ours"),
            *(Row(f"{count:,} live groups", peer=ratio) for count, ratio in ratios.items()),
            Row("10,000 / 1,000 (both headrace)", peer=Ratio.of(many, few)),
        ],
        laps={f"sampling, {count}": Laps(laps) for count, laps in ours.items()}
        | {f"sampling, {count}, peer": Laps(laps) for count, laps in theirs.items()},
    )
