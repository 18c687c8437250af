"""What the store's log costs: the same store with it and without it, in turn, in one run.

With the log, each put is on disk (fsync) before it is confirmed. One call for all trajectories is
what a worker's batch is; many calls at once is what many workers are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

from bench_store import LOADS, Load, StoreStub, running_store, trajectories
from bench_table import Row, per_second
from interleave import Ratio, interleaved

from headrace.trajectory.client import put_trajectories
from headrace.v1 import store_pb2 as pb
from headrace.v1.trajectory_pb2 import Trajectory

CALLS = 16
"""Workers that put at once."""


async def _put(stub: StoreStub, made: Sequence[Trajectory], calls: int) -> float:
    """Put all in so many calls at once, and delete them; give trajectories put per second."""
    begun = time.perf_counter()
    await asyncio.gather(*(put_trajectories(stub, made[call::calls]) for call in range(calls)))
    rate = len(made) / (time.perf_counter() - begun)
    keys = [one.key for one in made]
    await stub.DeleteTrajectories(pb.DeleteTrajectoriesRequest(keys=keys), timeout=60)
    return rate


async def _compare(
    log: StoreStub, memory: StoreStub, load: Load, *, calls: int, rounds: int
) -> Row:
    made = trajectories(load, calls)
    ways = {
        "log": partial(_put, log, made, calls),
        "memory": partial(_put, memory, made, calls),
    }
    rates = await interleaved(ways, rounds=rounds)
    what = "one call" if calls == 1 else f"{calls} calls at once"
    return Row(
        f"{load.name}, put in {what}",
        per_second(median(rates["log"])),
        per_second(median(rates["memory"])),
        str(Ratio.of(rates["log"], rates["memory"])),
    )


async def measure(_tq: Any, *, quick: bool) -> list[Row]:
    """Measure puts with the log (left) and without it (right)."""
    rows = [Row("store.durability, trajectories: log / memory (ours, both)")]
    async with running_store() as log, running_store(durability="memory") as memory:
        for load in LOADS:
            for calls in (1, CALLS):
                rows.append(  # noqa: PERF401 (one after the other)
                    await _compare(log, memory, load, calls=calls, rounds=6 if quick else 20)
                )
    return rows
