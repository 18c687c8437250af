"""What the benchmark is for, as far as it can be asserted on any machine: no absolute time is."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from redis_server import RedisServer

from headrace.bench import rollout
from headrace.bench.bare_engine import BareTorch
from headrace.bench.pure_run import rules_run, sample_rule_s
from headrace.bench.redis_server import RedisMissingError, running_redis
from headrace.bench.replay import running_replay
from headrace.config.rollout import TorchEngine
from headrace.errors import UsageError

FEW, MANY = 1_000, 100_000
TOY = rollout.Size(
    "toy", layers=4, heads=4, kv_heads=2, intermediate=768, groups=64, most_tokens=4, has_goal=True
)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def numbers(value: object) -> Sequence[float]:
    """All numbers in what JSON gave."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.timeout(300)
def test_a_quick_run_of_a_part_prints_its_table_and_its_goals(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"

    done = bench("ledger", "--quick", "--json", str(file))

    assert done.returncode == 0, done.stderr
    assert "durable cycle, file journal" in done.stdout
    assert "measured ledger in" in done.stderr
    given = json.loads(file.read_text())
    [cycle] = [row for row in given["rows"] if row["name"] == "durable cycle, file journal"]
    assert cycle["peer"]["median"] > 0
    assert cycle["bare"]["median"] > 0
    assert all(math.isfinite(number) for number in numbers(given["rows"]))
    verdicts = {goal["name"]: goal["is_met"] for goal in given["goals"]}
    for name, is_met in verdicts.items():
        assert f"{'met   ' if is_met else 'MISSED'}  {name}: " in done.stdout
    assert len(verdicts) == (2 if given["notes"] else 4)  # without redis-server one line says so
    assert all(lap["cpu_s"] > 0 for laps in given["rounds"].values() for lap in laps)


def test_what_a_user_got_wrong_is_said_in_a_line_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    no_part = bench("leger")
    no_folder = bench("ledger", "--json", str(tmp_path / "none" / "file"))

    assert no_part.returncode == no_folder.returncode == 2
    assert "there is no part 'leger'" in no_part.stderr
    assert "there is no folder" in no_folder.stderr
    assert not no_part.stdout
    assert "Traceback" not in no_part.stderr + no_folder.stderr


async def test_a_redis_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(RedisMissingError, match=r"^Redis at 127.0.0.1:1/0 does not answer: "):
        async with running_redis(tmp_path / "redis", "redis://:secret@127.0.0.1:1/0"):
            pass
    with pytest.raises(UsageError, match="--redis-url is not the address of a Redis server"):
        async with running_redis(tmp_path / "redis", "127.0.0.1:6379"):
            pass


async def test_a_replay_buffer_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path, appendfsync="everysec")
    redis.start()
    try:
        with pytest.raises(UsageError, match="appendfsync everysec: a killed Redis would lose"):
            async with running_replay(
                tmp_path / "run",
                batch_size=1,
                n=1,
                window_batches=1,
                journal={"kind": "redis", "redis_url": redis.url},
            ):
                pass
    finally:
        redis.stop()


@pytest.mark.timeout(300)
def test_sampling_a_batch_takes_as_long_among_100_000_live_groups_as_among_1_000() -> None:
    # A scan would take a hundred times as long. The best of many samples, taken in turn: other
    # processes only ever slow a sample down.
    seconds = sample_rule_s((FEW, MANY), samples=60)

    assert min(seconds[MANY]) < 5 * min(seconds[FEW])


def test_the_benchmarks_run_of_the_rules_ends() -> None:
    rules_run(steps=2)


@pytest.mark.timeout(300)
async def test_the_worker_is_compared_on_as_much_work_as_the_bare_engine_does(
    tmp_path: Path,
) -> None:
    engine = {"kind": "torch", "max_batch_sequences": 128, "threads": 1}
    comparison = rollout.Comparison(tmp_path, engine, TOY)

    found = await rollout.compare("torch", comparison, rounds=1)

    [ours], [theirs] = (
        found.laps[f"rollout, torch, toy, {way}"].counted for way in ("worker", "bare")
    )
    most = TOY.most_tokens * TOY.groups * rollout.SESSIONS
    assert 0.9 * most < ours.items <= most
    assert 0.9 * most < theirs.items <= most
    [goal] = found.goals
    assert goal.found == pytest.approx(ours.items / ours.seconds * theirs.seconds / theirs.items)


async def test_a_bare_engine_that_is_given_up_ends_in_the_midst_of_its_sequences(
    tmp_path: Path,
) -> None:
    comparison = rollout.Comparison(tmp_path, {"kind": "torch"}, TOY)
    weights = await asyncio.to_thread(comparison.write_weights, "l0")
    engine = BareTorch(TorchEngine(max_batch_sequences=64), Path(weights.uri), eos_id=-1)
    generating = asyncio.create_task(engine.generate([[5, 6]] * 400_000, most_tokens=200))
    await asyncio.sleep(0.5)

    generating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await generating
    async with asyncio.timeout(60):  # where all of it would take an hour
        await asyncio.get_running_loop().shutdown_default_executor()
