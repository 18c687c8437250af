"""Answers that workers are killed over are trained on as long as they would have been anyway.

Real processes and random kills, of one worker at a time and once of everybody; scripted engines,
whose answers take time by the token. As every outcome is a function of (seed, uid, session,
attempt), the same run without kills needs not be run: its answers are those of the first attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from random import Random
from statistics import mean

import pytest
from going_on import Following
from kolmogorov import p_value
from long_run import SEED, only_in_a_long_run
from scene import Scene, eventually, scene, small_config

from headrace.config.rollout import ScriptedEngine
from headrace.rollout.engines.base import SampleRequest
from headrace.rollout.engines.scripted import script
from headrace.trajectory.key import TrajectoryKey

STEPS, BATCH = 12, 20
ROWS = STEPS * BATCH
"""All of them are trained on: what is left over at an end would be the long ones."""
LONGEST = 100
ENGINE = ScriptedEngine(kind="scripted", seed=5, mean_latency_s=0.0, token_latency_s=0.12)
"""An answer takes up to twelve seconds; its length is uniform. What is left of the effect is as long as
a report is late, half a second and what a busy machine adds: it has to be short beside that."""
EVERY = 2
"""Tokens between two reports; a worker makes no more than two in a second."""
WORKERS = 2
GAP_S = 1.5
"""Mean time until the next kill, once its victim has work."""
LEVEL = 0.001
"""Journals that are left out, and prefixes taken twice, were found at 1e-6 and below."""

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


async def trained_under_kills(
    directory: Path, *, every: int | None
) -> tuple[Mapping[TrajectoryKey, int], Following]:
    """Give the length of each answer that was trained on, and what was gone on with."""
    config = small_config(
        directory,
        rows=ROWS,
        data={"train_batch_size": BATCH, "gen_batch_size": BATCH, "max_response_length": LONGEST},
        rollout={
            "engine": ENGINE.model_dump(),
            "max_groups_in_flight": 64,
            "partial_rollout": True,
            "journal_tokens_every": every,
        },
        trainer={"num_warmup_batches": 8},
    )
    async with scene(directory, config, workers=WORKERS) as play:
        killing = asyncio.create_task(kill(play))
        await play.recorder.run()
        killed = await killing
        assert await play.findings(fed=ROWS) == []
        reads = [entry for entry in play.recorder.history if entry.call == "GetTrajectories"]
        rows = [row for entry in reads for row in entry.answer or ()]
        gone_on = Following().follow(play.journal())
    # A group that was returned unread is read again, under other keys.
    read = {
        (key.uid, key.session): (key, row) for row in rows for key in [TrajectoryKey.parse(row.key)]
    }
    lengths = {key: len(row.response_token_ids) for key, row in read.values()}
    assert len(lengths) == ROWS * config["rollout"]["n"]
    hit = sum(key.attempt > 1 for key in lengths)
    print(f"{killed} kills; {hit} of {len(lengths)} answers were begun by somebody else")
    assert killed > WORKERS
    assert hit > len(lengths) // 4
    return lengths, gone_on


async def kill(play: Scene) -> int:
    """Kill a worker that has work, again and again; in the middle of the run everybody; count."""
    draw, count, everybody = Random(f"{SEED}/lengths"), 0, [*play.cluster.members]
    while play.recorder.step < STEPS:
        victims = [draw.choice(play.cluster.workers)]
        await works(play, victims[0])
        await asyncio.sleep(draw.expovariate(1 / GAP_S))
        if play.recorder.step >= STEPS // 2 and everybody:
            victims, everybody = everybody, []
        async with play.away(*victims):
            count += 1
    assert not everybody, "the run was over too soon"
    return count


async def works(play: Scene, name: str) -> None:
    """Wait until a worker holds leases, or the run has ended."""
    own = f"{name}-{play.cluster.pid(name)}-"

    async def look() -> bool:
        workers = (await play.recorder.status()).workers
        held = [each.lease_count for each in workers if each.worker_id.startswith(own)]
        return any(held) or play.recorder.ended

    await eventually(look)


def undisturbed(key: TrajectoryKey) -> int:
    """Give the length of an answer whose first worker lives."""
    request = SampleRequest(key.uid, key.session, 1, [3], 1.0, LONGEST)
    return len(script(ENGINE, request, vocab_size=8, eos_id=2).token_ids)


async def test_killed_over_and_gone_on_with_answers_are_as_long_as_without_kills(
    tmp_path: Path,
) -> None:
    lengths, following = await trained_under_kills(tmp_path, every=EVERY)

    expected = {key: undisturbed(key) for key in lengths}
    p = p_value([*lengths.values()], [*expected.values()])
    continued = [len(each.prefix) for each in following.ended]
    print(f"{len(continued)} gone on with, behind {sum(continued)} tokens; p = {p:.3g}")
    assert all(expected[key] == length for key, length in lengths.items() if key.attempt == 1)
    assert len(continued) > len(lengths) // 5
    assert p > LEVEL


@only_in_a_long_run
async def test_begun_anew_they_are_shorter(tmp_path: Path) -> None:
    lengths, following = await trained_under_kills(tmp_path, every=None)

    expected = {key: undisturbed(key) for key in lengths}
    p = p_value([*lengths.values()], [*expected.values()])
    print(f"means {mean(lengths.values()):.3g} and {mean(expected.values()):.3g}; p = {p:.3g}")
    assert not following.ended
    assert mean(lengths.values()) < mean(expected.values())
    assert p < LEVEL / 10
