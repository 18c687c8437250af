"""What the store's log costs: the same store with it and without it, in turn, in one run.

With the log, each put is on disk (fsync) before it is confirmed. One call for all trajectories is
what a worker's batch is; many calls at once is what many workers are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from statistics import median

from headrace.bench.findings import Findings
from headrace.bench.goal import Goal
from headrace.bench.laps import Lap, Laps, interleaved
from headrace.bench.stopwatch import Stopwatch
from headrace.bench.store_process import Store
from headrace.bench.table import Row, microseconds
from headrace.bench.trajectories import LOADS, Load, trajectories
from headrace.trajectory.client import put_trajectories
from headrace.v1 import store_pb2 as pb
from headrace.v1.trajectory_pb2 import Trajectory

CALLS = 16
"""Workers that put at once."""
LEAST_RATIO = 0.7


async def _put(store: Store, made: Sequence[Trajectory], calls: int) -> Lap:
    """Put all in so many calls at once, and delete them."""
    with Stopwatch(store.cpu_s).lap(len(made)) as taken:
        puts = (put_trajectories(store.stub, made[call::calls]) for call in range(calls))
        await asyncio.gather(*puts)
    keys = [one.key for one in made]
    await store.stub.DeleteTrajectories(pb.DeleteTrajectoriesRequest(keys=keys), timeout=60)
    return taken.lap


async def _compare(
    log: Store, memory: Store, load: Load, *, calls: int, rounds: int
) -> tuple[Laps, Laps]:
    made = trajectories(load, calls)
    ways = {"log": partial(_put, log, made, calls), "memory": partial(_put, memory, made, calls)}
    laps = await interleaved(ways, rounds=rounds)
    return laps["log"], laps["memory"]


async def measure_log(log: Store, memory: Store, *, is_quick: bool) -> Findings:
    """Measure puts with the log, against those without it."""
    findings = Findings(
        rows=[Row("store.durability: log / memory (both headrace), trajectories per second")]
    )
    ratios = []
    for load in LOADS:
        for calls in (1, CALLS):
            with_log, without = await _compare(
                log, memory, load, calls=calls, rounds=6 if is_quick else 20
            )
            how = "one call" if calls == 1 else f"{calls} calls at once"
            name = f"{load.name}, put in {how}"
            ratio = with_log.over(without)
            ratios.append(ratio.median)
            findings.rows.append(Row(name, microseconds(with_log.cpu_per_item_s), ratio))
            findings.laps[f"store, {name}, log"] = with_log
            findings.laps[f"store, {name}, memory"] = without
    findings.goals = [
        Goal.at_least(
            "store.durability: log / memory, median of the loads", LEAST_RATIO, median(ratios), "x"
        )
    ]
    return findings
