"""`headrace run` on a Redis journal: Redis dies and comes back, and nobody has to do anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from launched import launched
from ports import free_port
from redis_server import RedisServer
from scene import small_config

HOLDS = "holds: every prompt is accounted for"
STEPS = 12

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


def test_a_run_whose_redis_is_killed_twice_ends_well(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    redis = RedisServer(tmp_path / "redis", port=free_port())
    redis.start()
    config = small_config(
        tmp_path,
        model={"options": {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16}},
        rollout={"engine": {"mean_latency_s": 0.2}},
        trainer={"total_training_steps": STEPS, "threads": 1, "optim": {"lr": 1e-3}},
        journal={"kind": "redis", "redis_url": redis.url},
    )
    try:
        with launched(tmp_path, config) as run:
            for least in (2, 6):
                run.until(lambda least=least: run.steps >= least)  # type: ignore[misc]
                redis.kill()
                redis.start()
            code, output = run.ended(within_s=150)
            assert code == 0, output
            assert run.left() == []
        assert f"{STEPS} of {STEPS}" in output
        assert HOLDS in output
        assert f"{4 * STEPS} trained" in output
        assert "died" not in output
        assert "Traceback" not in output
    finally:
        redis.stop()
