"""How fast prompts are fed: by the feeder's process, and by bare calls.

With the feeder: a trainer samples a batch of 64, the window wants 64 new prompts, the feeder reads
them from a file, G rows at a time, and registers them, and a worker has leased all of them. That
is two events more than feeding, each on disk, and still what a run waits for.
Bare calls register ready-made prompts; one prompt per call is the worst there is.
The peer puts each prompt by itself, a tensor and a tag, and keeps nothing on disk.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench_ledger import BATCH_SIZE
from bench_table import Row, per_second
from interleave import Ratio, Way, interleaved
from peer_process import PARTITION, put_prompts
from replay_process import Client, running_replay

from headrace.config.config import Config
from headrace.feeder.process import run
from headrace.log import configure
from headrace.rpc.process import ProcessOptions

SPAWN = multiprocessing.get_context("spawn")
ROW_COUNT = 50_000
WORKER = "worker"


def _serve(config_json: str) -> None:
    configure("feeder", "bench", level="error")
    config = Config.model_validate_json(config_json)
    sys.exit(asyncio.run(run(config, ProcessOptions(name="feeder"))))


@asynccontextmanager
async def running_feeder(replay: Client, rows: Path, *, chunk_size: int) -> AsyncIterator[None]:
    """Start a feeder that reads so many rows at a time (G)."""
    config = Config.model_validate(
        {
            "run": {"run_dir": str(rows.parent), "run_id": "bench"},
            "data": {
                "source": {"kind": "jsonl", "path": str(rows)},
                "train_batch_size": BATCH_SIZE,
                "gen_batch_size": chunk_size,
            },
            "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "0123456789", "eos": "."}},
            "endpoints": {"replay": replay.address},
        }
    )
    process = SPAWN.Process(target=_serve, args=(config.model_dump_json(),))
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _write_rows(path: Path) -> None:
    rows = ({"prompt": f"{i:08}", "answer": f"{i:08}"} for i in range(ROW_COUNT))
    path.write_text("\n".join(json.dumps(row) for row in rows))


class Refill:
    """A run in which the window lacks a whole batch whenever one was sampled."""

    def __init__(self, client: Client) -> None:
        self._client = client

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

        async def way() -> float:
            seconds = 0.0
            for _ in range(batches):
                replacement = asyncio.create_task(self._lease())
                await asyncio.sleep(0)
                begun = time.perf_counter()
                await self._client.sample()
                leases = await replacement
                seconds += time.perf_counter() - begun
                await self._client.commit()
                await self._client.complete(WORKER, leases)
            return batches * BATCH_SIZE / seconds

        return way


def _by_call(client: Client, count: int, prompts_per_call: int) -> Way:
    async def way() -> float:
        begun = time.perf_counter()
        for _ in range(count // prompts_per_call):
            await client.feed(prompts_per_call)
        return count / (time.perf_counter() - begun)

    return way


async def _ways(stack: AsyncExitStack, scratch: Path, batches: int, singles: int) -> dict[str, Way]:
    """Start what feeds and what is fed: a replay buffer for each way."""
    rows = scratch / "rows.jsonl"
    _write_rows(rows)
    ways = {}
    for chunk_size in (1, 64):
        client = await stack.enter_async_context(
            running_replay(
                scratch / f"loop{chunk_size}",
                batch_size=BATCH_SIZE,
                n=1,
                window_batches=1,
                opens_feed=False,
            )
        )
        await stack.enter_async_context(running_feeder(client, rows, chunk_size=chunk_size))
        refill = Refill(client)
        await refill.begin()
        ways[f"feeder, G = {chunk_size}, a batch of 64 until leased"] = refill.way(batches)
    bare = await stack.enter_async_context(
        running_replay(scratch / "bare", batch_size=BATCH_SIZE, n=8, window_batches=10_000)
    )
    ways["bare calls, 1 prompt each"] = _by_call(bare, singles, 1)
    ways["bare calls, 64 prompts each"] = _by_call(bare, batches * BATCH_SIZE, 64)
    return ways


async def measure(tq: Any, *, quick: bool) -> list[Row]:
    """Measure all ways to feed, and the peer's."""
    rounds, batches, singles = (3, 5, 32) if quick else (11, 20, 64)
    names = itertools.count()

    async def peer() -> float:
        keys = [f"f{next(names)}" for _ in range(singles)]
        begun = time.perf_counter()
        await put_prompts(tq, keys)
        rate = len(keys) / (time.perf_counter() - begun)
        await tq.async_kv_clear(keys, PARTITION)
        return rate

    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ways = await _ways(stack, scratch, batches, singles)
        figures = await interleaved({**ways, "peer": peer}, rounds=rounds)
    theirs = median(figures["peer"])
    one_by_one, chunked, *_ = ways
    return [
        Row("feed, durable, prompts / the peer's put per prompt"),
        *(
            Row(
                name,
                per_second(median(figures[name])),
                per_second(theirs),
                str(Ratio.of(figures[name], figures["peer"])),
            )
            for name in ways
        ),
        Row("G = 1 / G = 64", ratio=str(Ratio.of(figures[one_by_one], figures[chunked]))),
    ]
