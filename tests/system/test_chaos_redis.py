"""A run whose Redis is killed loses nothing that it acknowledged: its callers wait.

The judge reads what the killed Redis had on its disk, and compares it with what everybody had been
told by then.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from killer import REDIS_ABOVE_ALL, carry_out, plan
from long_run import KILLS, SEED, STEPS, only_in_a_long_run
from scene import Scene, eventually, scene, small_config

from headrace.v1 import replay_pb2

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]


@pytest.mark.timeout(240 + 12 * KILLS)
async def test_nothing_acknowledged_is_lost_when_redis_is_killed_at_random(tmp_path: Path) -> None:
    print(f"HEADRACE_CHAOS_SEED={SEED} HEADRACE_CHAOS_KILLS={KILLS}")
    config = small_config(
        tmp_path,
        rows=4 * STEPS * 4,
        trainer={"total_training_steps": STEPS},
        journal={"compact_every": 100, "keep_settled": 20},
    )
    kills = plan(f"{SEED}/redis", KILLS, STEPS - 1, REDIS_ABOVE_ALL)
    async with scene(tmp_path, config, journal="redis") as play:
        killing = asyncio.create_task(carry_out(kills, play))
        await play.recorder.run(STEPS - 1)
        assert await killing == KILLS, "none is left out, however quick the run"
        await play.recorder.run()
        assert len(play.witness.kills) == KILLS
        print(f"{KILLS} kills of Redis; {play.witness.kills[-1].length} events before the last")
        assert await play.findings(fed=4 * STEPS) == []


@pytest.mark.parametrize(
    "victims",
    [
        ("redis",),
        ("replay", "redis"),
        pytest.param(("redis", "replay"), marks=only_in_a_long_run),
    ],
    ids="+".join,
)
async def test_callers_wait_for_a_killed_redis_and_the_run_goes_on(
    tmp_path: Path, victims: tuple[str, ...]
) -> None:
    config = small_config(
        tmp_path,
        trainer={"total_training_steps": 8},
        rollout={"engine": {"mean_latency_s": 0.2}},
    )
    async with scene(tmp_path, config, journal="redis") as play:
        await play.recorder.run(steps=2)
        training = asyncio.create_task(play.recorder.run())
        before = play.cluster.pid("replay")
        async with play.away(*victims):
            if "replay" not in victims:
                await eventually(lambda: nobody_is_answered(play))
        await training
        assert await play.findings(fed=32) == []
        if "replay" not in victims:
            assert play.cluster.pid("replay") == before
            refused = {entry.error.partition(":")[0] for entry in play.recorder.history}
            assert refused <= {"", "DEADLINE_EXCEEDED"}


async def nobody_is_answered(play: Scene) -> bool:
    """Whether an answer is held back, for what it depends on is not durable."""
    try:
        await play.recorder.replay.Audit(replay_pb2.AuditRequest(), timeout=1)
    except grpc.aio.AioRpcError as failed:
        return failed.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    return False
