"""How fast trajectories go into the store and come back, beside TransferQueue used directly.

Ways that are measured in turn in one run, each server in a process of its own:

- the store: this project's gRPC service, one call for all trajectories, each on disk (fsync)
  before its put is confirmed.
- one by one: a kv put per trajectory with its fields as tensors and a tag, all puts at once on
  one event loop; read back in one batch. This is how verl's agent loops use TransferQueue.
- in a batch: the same fields as ragged tensors, in one batch put.
- bare: a dictionary in this process that keeps the messages' bytes.

Times are of the client: from messages or tensors in memory to the confirmation, and back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeAlias

from headrace.bench.findings import Findings
from headrace.bench.laps import Lap, Laps
from headrace.bench.peer import PARTITION, Peer
from headrace.bench.setting import Setting
from headrace.bench.stopwatch import Stopwatch
from headrace.bench.store_log import measure_log
from headrace.bench.store_process import Store, running_store
from headrace.bench.table import Row, microseconds
from headrace.bench.trajectories import LOADS, QUICK_LOADS, Load, fields_of, trajectories
from headrace.trajectory.client import get_trajectories, put_trajectories
from headrace.v1 import store_pb2 as pb
from headrace.v1.trajectory_pb2 import Trajectory

Done: TypeAlias = dict[str, list[Lap]]
"""Rounds, by what was done."""


async def _take(
    done: Done, watch: Stopwatch, name: str, count: int, work: Awaitable[object]
) -> None:
    """Time a put or a get of the whole load."""
    with watch.lap(count) as taken:
        await work
    done.setdefault(name, []).append(taken.lap)


async def _through_store(store: Store, done: Done, made: list[Trajectory]) -> None:
    watch, keys = Stopwatch(store.cpu_s), [one.key for one in made]
    await _take(done, watch, "store put", len(made), put_trajectories(store.stub, made))
    await _take(done, watch, "store get", len(made), get_trajectories(store.stub, keys))
    await store.stub.DeleteTrajectories(pb.DeleteTrajectoriesRequest(keys=keys), timeout=60)


async def _one_by_one(peer: Peer, done: Done, load: Load, made: list[Trajectory]) -> None:
    tq, watch = peer.tq, Stopwatch(peer.cpu_s)
    keys, rows = [one.key for one in made], [fields_of(one) for one in made]
    puts = (
        tq.async_kv_put(key, PARTITION, fields=row, tag=load.tag)
        for key, row in zip(keys, rows, strict=True)
    )
    await _take(done, watch, "one by one put", len(made), asyncio.gather(*puts))
    get = tq.async_kv_batch_get(keys, PARTITION)
    await _take(done, watch, "one by one get", len(made), get)
    await tq.async_kv_clear(keys, PARTITION)


async def _in_a_batch(peer: Peer, done: Done, load: Load, made: list[Trajectory]) -> None:
    import torch
    from tensordict import TensorDict

    tq, watch = peer.tq, Stopwatch(peer.cpu_s)
    keys, rows = [one.key for one in made], [fields_of(one) for one in made]

    async def put() -> None:
        ragged = {
            name: torch.nested.as_nested_tensor([row[name] for row in rows], layout=torch.jagged)
            for name in rows[0]
        }
        fields = TensorDict(ragged, batch_size=len(keys))
        await tq.async_kv_batch_put(keys, PARTITION, fields, [load.tag] * len(keys))

    await _take(done, watch, "in a batch put", len(made), put())
    get = tq.async_kv_batch_get(keys, PARTITION)
    await _take(done, watch, "in a batch get", len(made), get)
    await tq.async_kv_clear(keys, PARTITION)


async def _bare(done: Done, made: list[Trajectory]) -> None:
    held: dict[str, bytes] = {}

    async def put() -> None:
        held.update((one.key, one.SerializeToString()) for one in made)

    async def get() -> list[Trajectory]:
        return [Trajectory.FromString(held[one.key]) for one in made]

    await _take(done, Stopwatch(), "bare put", len(made), put())
    await _take(done, Stopwatch(), "bare get", len(made), get())


async def _rounds(store: Store, peer: Peer, load: Load, rounds: int) -> dict[str, Laps]:
    done: Done = {}
    for number in range(rounds + 1):
        made = trajectories(load, number)
        ways: list[Callable[[], Awaitable[None]]] = [
            partial(_through_store, store, done, made),
            partial(_one_by_one, peer, done, load, made),
            partial(_in_a_batch, peer, done, load, made),
            partial(_bare, done, made),
        ]
        for way in ways if number % 2 else reversed(ways):
            await way()
    return {name: Laps(laps[1:]) for name, laps in done.items()}  # the first is not counted


async def measure(setting: Setting) -> Findings:
    """Measure the store, both ways to use the peer, and what the store's log costs."""
    assert setting.peer
    findings = Findings(
        rows=[Row("store: CPU per trajectory, all processes; trajectories per second / theirs")]
    )
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(running_store(setting.scratch / "log"))
        for load in QUICK_LOADS if setting.is_quick else LOADS:
            rounds = 3 if setting.is_quick else 11
            laps = await _rounds(log, setting.peer, load, rounds)
            findings.rows += [
                _row(load, what, way, laps)
                for what in ("put", "get")
                for way in ("one by one", "in a batch")
            ]
            findings.laps |= {f"store, {load.name}, {name}": done for name, done in laps.items()}
        memory = await stack.enter_async_context(
            running_store(setting.scratch / "memory", durability="memory")
        )
        findings += await measure_log(log, memory, is_quick=setting.is_quick)
    return findings


def _row(load: Load, what: str, way: str, laps: dict[str, Laps]) -> Row:
    ours = laps[f"store {what}"]
    return Row(
        f"{load.name}, {what}; peer: {way}",
        microseconds(ours.cpu_per_item_s),
        ours.over(laps[f"{way} {what}"]),
        ours.over(laps[f"bare {what}"]),
    )
