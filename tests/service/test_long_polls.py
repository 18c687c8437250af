"""Two thousand workers that wait at one replay buffer: all are answered, and memory is bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from ledger_world import settings
from replay_server import replay_server

from headrace.v1 import prompt_pb2
from headrace.v1 import replay_pb2 as pb
from headrace.v1.replay_pb2_grpc import ReplayBufferServiceStub

WORKERS = 2000
PER_CHANNEL = 100


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


@pytest.mark.timeout(300)
async def test_two_thousand_long_polls_are_answered_and_memory_is_bounded(tmp_path: Path) -> None:
    rules = settings(window_size=WORKERS)
    async with replay_server(tmp_path, rules) as replay:
        await replay.begin(row_count=10 * WORKERS, capacity_bytes=10**12)
        before = resident_bytes()
        channels = [grpc.aio.insecure_channel(replay.target) for _ in range(WORKERS // PER_CHANNEL)]
        stubs = [ReplayBufferServiceStub(channel) for channel in channels]

        async def lease(number: int) -> list[prompt_pb2.Lease]:
            request = pb.LeasePromptsRequest(
                worker_id=f"w{number}",
                max_count=1,
                weights=replay.weights(0),
                weights_checksum="c",
                wait_s=60,
            )
            answer = await stubs[number // PER_CHANNEL].LeasePrompts(request, timeout=200)
            return list(answer.leases)

        waiting = [asyncio.create_task(lease(number)) for number in range(WORKERS)]
        async with asyncio.timeout(60):
            while len(replay.buffer.workers.heard) < WORKERS:  # noqa: ASYNC110 (no event for it)
                await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        grown = resident_bytes() - before
        assert grown < 400 * 2**20, f"{grown / WORKERS / 1024:.0f} KiB for each waiting worker"

        assert await replay.feed() == WORKERS
        leases = await asyncio.gather(*waiting)
        assert sorted({held.uid for [held] in leases}) == sorted(f"e0r{i}" for i in range(WORKERS))
        assert (await replay.stub.Audit(pb.AuditRequest())).ok
        for channel in channels:
            await channel.close()
