"""A run whose processes are killed, stopped and started again ends as if nothing had happened.

Real processes; the test is their trainer and records what it is told; the judge reads that record
and the journal. `HEADRACE_CHAOS_KILLS` is how many kills a random run has, `HEADRACE_CHAOS_SEED`
repeats one. With the former, what is left out for its time otherwise is there, too.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from killer import EVERYBODY, WITH_REDIS, carry_out, plan
from long_run import KILLS, SEED, STEPS, only_in_a_long_run
from scene import eventually, scene, small_config

from headrace.config.services import LedgerConfig
from headrace.v1 import replay_pb2

BOTH_JOURNALS = pytest.mark.parametrize("journal", ["file", "redis"])

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]


@pytest.mark.timeout(240 + 12 * KILLS)
@pytest.mark.parametrize(
    ("strategy", "durability", "journal"),
    [
        ("none", "log", "file"),
        ("drop", "memory", "redis"),
        pytest.param("drop", "memory", "file", marks=only_in_a_long_run),
        pytest.param("none", "log", "redis", marks=only_in_a_long_run),
    ],
)
async def test_a_run_under_random_kills_trains_every_prompt_once(
    tmp_path: Path, strategy: str, durability: str, journal: str
) -> None:
    """`none`: exactly the first rows are trained on. `drop`: the stale ones among them are not."""
    print(f"HEADRACE_CHAOS_SEED={SEED} HEADRACE_CHAOS_KILLS={KILLS}")
    config = small_config(
        tmp_path,
        rows=4 * STEPS * 4,
        trainer={"total_training_steps": STEPS},
        rollout={"engine": {"mean_latency_s": 0.2, "failure_rate": 0.03}},
        sampler={"max_off_policy_strategy": strategy, "max_off_policy_threshold": 4},
        ledger={"max_failures": 20},
        journal={"compact_every": 100, "keep_settled": 20},
        store={"durability": durability},
    )
    may_drop = ["stale"] if strategy == "drop" else []
    odds = WITH_REDIS if journal == "redis" else EVERYBODY
    kills = plan(f"{SEED}/{strategy}/{journal}", KILLS, STEPS, odds)
    async with scene(tmp_path, config, journal=journal, may_drop=may_drop) as play:
        killing = asyncio.create_task(carry_out(kills, play))
        await play.recorder.run()
        print(f"{await killing} kills; {(await play.recorder.audit()).counts}")
        assert await play.findings(fed=None if may_drop else 4 * STEPS) == []


@pytest.mark.parametrize(
    ("victim", "durability", "journal"),
    [
        ("replay", "log", "file"),
        ("feeder", "log", "file"),
        ("worker-0", "log", "file"),
        ("store", "log", "file"),
        ("store", "memory", "file"),
        ("replay", "log", "redis"),
        pytest.param("feeder", "log", "redis", marks=only_in_a_long_run),
        pytest.param("worker-0", "log", "redis", marks=only_in_a_long_run),
        pytest.param("store", "log", "redis", marks=only_in_a_long_run),
        ("store", "memory", "redis"),
    ],
)
async def test_a_run_goes_on_after_one_kill(
    tmp_path: Path, victim: str, durability: str, journal: str
) -> None:
    config = small_config(
        tmp_path,
        trainer={"total_training_steps": 8},
        rollout={"engine": {"mean_latency_s": 0.2}},
        store={"durability": durability},
    )
    async with scene(tmp_path, config, journal=journal, workers=1) as play:
        await play.recorder.run(steps=2)
        training = asyncio.create_task(play.recorder.run())
        await play.catch("worker-0")
        async with play.away(victim):
            pass
        play.cluster.resume("worker-0")
        await training
        assert await play.findings(fed=32) == []
        regenerated = dict((await play.recorder.status()).regenerated)
        if victim == "worker-0":
            assert regenerated["expired"] > 0
        if victim == "store":  # with a log it comes back with what it had
            assert ("store_lost" in regenerated) == (durability == "memory")


@BOTH_JOURNALS
async def test_a_worker_that_slept_past_its_leases_changes_nothing(
    tmp_path: Path, journal: str
) -> None:
    config = small_config(
        tmp_path,
        trainer={"total_training_steps": 8},
        rollout={"engine": {"mean_latency_s": 0.3}},
        ledger={"lease_s": 1.0},
    )
    async with scene(tmp_path, config, journal=journal) as play:
        await play.cluster.stop("worker-1")
        await play.recorder.run(steps=2)
        training = asyncio.create_task(play.recorder.run())
        await play.catch("worker-0")
        play.cluster.start("worker-1")
        await play.recorder.reached(play.recorder.step + 3)  # with what was the sleeper's
        before = play.cluster.log("worker-0").read_text()
        play.cluster.resume("worker-0")
        await eventually(
            lambda: "lease_lost" in play.cluster.log("worker-0").read_text()[len(before) :]
        )
        await training
        assert await play.findings(fed=32) == []


@BOTH_JOURNALS
async def test_when_all_workers_fail_feeding_stops_and_no_prompt_is_lost(
    tmp_path: Path, journal: str
) -> None:
    broken = tmp_path / "broken"
    config = small_config(
        tmp_path,
        trainer={"total_training_steps": 8},
        rollout={"engine": {"failing_file": str(broken)}},
        ledger={"max_failures": 3},  # an outage costs one, and a failure may be reported late
    )
    async with scene(tmp_path, config, journal=journal) as play:
        await play.recorder.run(steps=2)
        # Nothing is under way, so that no late success says that the prompts are to blame.
        await play.until(lambda status: status.counts.finished == 8)
        broken.touch()
        batch = await play.recorder.sample()
        assert batch
        await play.until(lambda status: status.circuit == replay_pb2.CIRCUIT_CAUSE_WORKERS_FAIL)
        opened = await play.recorder.status()
        assert "scripted" in opened.circuit_error
        # Steps are taken from what is finished, so that the window would want more.
        await play.recorder.commit(batch)
        training = asyncio.create_task(play.recorder.run())
        # What was under way fails, too; then probes do, one at a time, and nothing else happens.
        await play.until(
            lambda now: (
                now.committed_step == 4
                and now.counts.running <= 2
                and now.regenerated["failed"] > opened.regenerated["failed"] + 4
            ),
        )
        later = await play.recorder.status()
        assert later.target > later.occupancy
        # But for the few that are let in to probe with, once all others were tried in vain.
        assert later.cursor <= opened.cursor + LedgerConfig().eject_after
        assert later.demand <= 1
        assert not later.counts.dropped
        assert not training.done()
        broken.unlink()
        await training
        assert await play.findings(fed=32) == []


@pytest.mark.parametrize("journal", ["file", pytest.param("redis", marks=only_in_a_long_run)])
async def test_leases_that_run_out_all_the_time_fail_no_prompt(
    tmp_path: Path, journal: str
) -> None:
    config = small_config(
        tmp_path,
        trainer={"total_training_steps": 15},
        rollout={"engine": {"mean_latency_s": 0.3}},
        ledger={"lease_s": 0.5},
    )
    async with scene(tmp_path, config, journal=journal) as play:
        training = asyncio.create_task(play.recorder.run())
        while not training.done():  # one of the two sleeps at any moment, for longer than a lease
            for sleeper in play.cluster.workers:
                play.cluster.pause(sleeper)
                await asyncio.sleep(0.8)
                play.cluster.resume(sleeper)
        await training
        assert await play.findings(fed=60) == []
        leases = [
            record.prompts_leased.leases
            for record in play.journal()
            if record.HasField("prompts_leased")
        ]
        expired = (await play.recorder.status()).regenerated["expired"]
        assert expired >= 0.15 * sum(map(len, leases))


async def test_without_a_window_slow_loading_wastes_no_group(tmp_path: Path) -> None:
    config = small_config(
        tmp_path,
        trainer={"total_training_steps": 5, "num_warmup_batches": 0},
        sampler={"max_off_policy_threshold": 1},
        rollout={"engine": {"load_latency_s": 0.5}},
        ledger={"lease_s": 60.0},
    )
    async with scene(tmp_path, config) as play:
        await play.recorder.run()
        assert await play.findings(fed=20) == []
        spans = [
            group.span
            for entry in play.recorder.history
            if entry.call == "SampleBatch" and entry.answer is not None
            for group in entry.answer.groups
        ]
        assert spans == [1] * 20
        attempts = [
            lease.attempt for record in play.journal() for lease in record.prompts_leased.leases
        ]
        assert attempts == [1] * 20


async def test_without_a_window_waiting_for_the_oldest_makes_progress(tmp_path: Path) -> None:
    config = small_config(
        tmp_path,
        trainer={"total_training_steps": 5, "num_warmup_batches": 0},
        sampler={"max_off_policy_threshold": 1, "max_off_policy_strategy": "wait"},
    )
    async with scene(tmp_path, config, part_count=2) as play:
        async with asyncio.timeout(60):
            await play.recorder.run()
        assert await play.findings(fed=20) == []


async def test_rows_that_fill_no_batch_are_surplus(tmp_path: Path) -> None:
    config = small_config(tmp_path, rows=22)
    async with scene(tmp_path, config, workers=1, may_drop=["surplus"]) as play:
        assert play.recorder.total_steps == 5
        await play.recorder.run()
        assert await play.findings(fed=22) == []
        counts = (await play.recorder.status()).counts
        assert (counts.trained, dict(counts.dropped)) == (20, {"surplus": 2})


@BOTH_JOURNALS
async def test_of_two_replay_buffers_the_older_ends_and_nothing_is_lost(
    tmp_path: Path, journal: str
) -> None:
    config = small_config(tmp_path, trainer={"total_training_steps": 8})
    async with scene(tmp_path, config, journal=journal, workers=1) as play:
        await play.recorder.run(steps=2)
        play.cluster.add("newer", "replay")
        play.cluster.start("newer")
        await play.cluster.ready("newer")
        training = asyncio.create_task(play.recorder.run())
        assert await play.cluster.ended("replay", within_s=60) == 1
        assert "fenced" in play.cluster.log("replay").read_text()
        assert await play.cluster.retire("newer") == 0
        play.cluster.start("replay")
        await training
        assert await play.findings(fed=32) == []
