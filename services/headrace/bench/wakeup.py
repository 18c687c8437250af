"""How long a trainer waits for a batch that has just become ready.

The trainer's long poll waits; a worker completes the last sessions of the batch; the time runs
from that call to the trainer's answer, with both events on disk. The peer's trainer lists its
partition and sleeps 2 s in between, so what becomes ready at any moment waits a second on average.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median

from headrace.bench.findings import Findings
from headrace.bench.goal import Goal
from headrace.bench.groups import WORKER
from headrace.bench.peer import PARTITION, POLL_S, Peer, finished, put_status
from headrace.bench.pipeline import hand_over
from headrace.bench.ratio import Ratio, percentile
from headrace.bench.replay import Replay, running_replay
from headrace.bench.setting import Setting
from headrace.bench.table import Row, milliseconds

BATCH_SIZE = 8
MOST_S = 0.050


async def _wake(replay: Replay) -> float:
    """Make a batch ready, but for the last call, and time the rest."""
    client = replay.client
    await client.feed(BATCH_SIZE)
    leases = await client.lease(WORKER, BATCH_SIZE, wait_s=5.0)
    await client.complete(WORKER, leases[:-1])
    sampling = asyncio.create_task(client.sample())
    await asyncio.sleep(0)
    await client.demand(wait_s=0.0)  # sent after the poll, so that stands when this is answered
    begun = time.perf_counter()
    completing = asyncio.create_task(client.complete(WORKER, leases[-1:]))
    await sampling
    seconds = time.perf_counter() - begun
    await completing
    await client.commit()
    return seconds


@asynccontextmanager
async def _polling(peer: Peer, found: asyncio.Event) -> AsyncIterator[None]:
    """Poll as verl's trainer does, until something is finished."""

    async def poll() -> None:
        while not await finished(peer.tq):  # noqa: ASYNC110 (the peer has nothing to await)
            await asyncio.sleep(POLL_S)
        found.set()

    task = asyncio.create_task(poll())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _peer_wake(peer: Peer, pause_s: float) -> float:
    """Finish something so long after a poll began, and time how long that stays unseen."""
    found = asyncio.Event()
    async with _polling(peer, found):
        await asyncio.sleep(pause_s)
        begun = time.perf_counter()
        await put_status(peer.tq, ["w"], "finished")
        await found.wait()
        seconds = time.perf_counter() - begun
    await peer.tq.async_kv_clear(["w"], PARTITION)
    return seconds


async def _bare_wake() -> float:
    begun = time.perf_counter()
    await hand_over()
    return time.perf_counter() - begun


async def measure(setting: Setting) -> Findings:
    """Measure waits: headrace's, the peer's, and a queue's in one process."""
    assert setting.peer
    rounds, per_round = (3, 20) if setting.is_quick else (9, 60)
    pauses = random.Random(1)
    waits_s: dict[str, list[float]] = {"headrace": [], "peer": [], "bare": []}
    medians_s: list[float] = []
    async with running_replay(
        setting.scratch / "run", batch_size=BATCH_SIZE, n=1, window_batches=1
    ) as replay:
        await _wake(replay)
        for _ in range(rounds):
            round_s = [await _wake(replay) for _ in range(per_round)]
            waits_s["headrace"] += round_s
            medians_s.append(median(round_s))
            waits_s["peer"].append(await _peer_wake(setting.peer, pauses.uniform(0, POLL_S)))
            waits_s["bare"].append(median([await _bare_wake() for _ in range(per_round)]))
    ours = waits_s["headrace"]
    p99_s = percentile(ours, 99)
    return Findings(
        rows=[
            Row(
                "wake-up: from the last CompleteSessions to SampleBatch's answer; their wait / ours"
            ),
            Row(
                "p50 / p99",
                milliseconds(median(ours), p99_s),
                Ratio.of(waits_s["peer"], medians_s),
                Ratio.of(waits_s["bare"], medians_s),
            ),
        ],
        goals=[Goal.at_most("wake-up, p99", MOST_S * 1e3, p99_s * 1e3, " ms")],
        waits_s={f"wake-up, {name}": found for name, found in waits_s.items()},
    )
