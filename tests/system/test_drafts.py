"""Long answers under way when somebody is killed: they are gone on with, not begun anew.

Real processes; engines that play scripts, slowly. The trainer is the test itself, or a real one
with a tiny model.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from going_on import Following
from judge_journal import read_file_journal
from killer import EVERYBODY, carry_out, plan
from launched import Launched, launched, living_in
from long_run import KILLS, SEED, STEPS, only_in_a_long_run
from scene import eventually, scene, small_config

from headrace.v1 import journal_pb2

LONG = 100
SLOW: dict[str, Any] = {
    "engine": {"mean_latency_s": 0.0, "token_latency_s": 0.03, "min_tokens": LONG - 20},
    "partial_rollout": True,
    "journal_tokens_every": 10,
}
DATA = {"max_response_length": LONG}
END_S = 240.0

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]


@pytest.mark.parametrize("journal", ["file", "redis"])
async def test_another_worker_goes_on_behind_what_a_killed_one_has_reported(
    tmp_path: Path, journal: str
) -> None:
    steps = 8
    config = small_config(
        tmp_path, data=DATA, rollout=SLOW, trainer={"total_training_steps": steps}
    )
    async with scene(tmp_path, config, journal=journal) as play:
        training = asyncio.create_task(play.recorder.run())
        first = f"worker-0-{play.cluster.pid('worker-0')}-"
        await eventually(lambda: is_in_the_middle(play.journal(), first))
        async with play.away("worker-0"):
            await eventually(lambda: bool(Following().follow(play.journal()).ended))
        await training
        assert await play.findings(fed=4 * steps) == []
        gone_on = Following().follow(play.journal()).ended
        reads = [entry for entry in play.recorder.history if entry.call == "GetTrajectories"]
        trained = {each.key: each for entry in reads for each in entry.answer or ()}

    assert gone_on, "nothing was under way"
    for each in gone_on:
        record = each.record
        key = f"{each.uid}_{each.session}_0_{record.lineage}a{record.attempt}"
        response = list(trained[key].response_token_ids)
        assert response[: len(each.prefix)] == list(each.prefix)
        assert len(response) == record.token_count <= LONG
        assert record.min_version <= min(each.versions)
    assert max(len(each.prefix) for each in gone_on) > LONG // 4


def is_in_the_middle(records: Sequence[journal_pb2.JournalRecord], worker: str) -> bool:
    """Whether the worker has just reported an answer that is far from both of its ends."""
    return any(
        record.tokens_reported.worker_id.startswith(worker)
        and any(
            draft.offset > LONG // 4
            for progress in record.tokens_reported.progress
            for draft in progress.drafts
        )
        for record in records[-3:]
    )


def config_of(directory: Path) -> Any:
    """A tiny model that is really trained, and a checkpoint of every step."""
    return small_config(
        directory,
        data=DATA,
        rollout=SLOW,
        model={"options": {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 128}},
        trainer={
            "total_training_steps": 5,
            "save_freq": 1,
            "threads": 1,
            "optim": {"lr": 1e-3},
            "tensorboard": False,
        },
    )


def kill_all(run: Launched) -> None:
    """Kill -9 everything, the launcher first."""
    run.process.kill()
    while left := living_in(run.directory):  # one that was killed takes a moment to be gone
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    run.process.wait()


def test_a_run_that_was_killed_as_a_whole_goes_on_with_its_answers(tmp_path: Path) -> None:
    config = config_of(tmp_path)

    def journal() -> Any:
        return read_file_journal(tmp_path / "run" / "journal")

    with launched(tmp_path, config) as run:
        run.until(lambda: run.steps >= 2, within_s=END_S)
        run.until(lambda: is_in_the_middle(journal(), "worker-"))
        kill_all(run)
    before = len(journal())

    with launched(tmp_path, config) as run:
        code, output = run.ended(END_S)
        assert code == 0, output
    assert "holds: every prompt is accounted for" in output
    after = journal()
    left = Following().follow(after[:before])
    assert left.begun
    left.ended.clear()
    gone_on = [each for each in left.follow(after[before:]).ended if len(each.prefix) > 1]

    assert gone_on, "nothing was under way"
    for each in gone_on:
        assert each.record.token_count > len(each.prefix)
        assert each.record.min_version <= min(each.versions)


@only_in_a_long_run
@pytest.mark.timeout(240 + 12 * KILLS)
async def test_a_run_of_long_answers_under_random_kills_has_each_token_once(tmp_path: Path) -> None:
    print(f"HEADRACE_CHAOS_SEED={SEED} HEADRACE_CHAOS_KILLS={KILLS}")
    config = small_config(
        tmp_path,
        rows=4 * STEPS * 4,
        data=DATA,
        rollout=SLOW,
        trainer={"total_training_steps": STEPS},
        sampler={"max_off_policy_strategy": "drop", "max_off_policy_threshold": 4},
        journal={"compact_every": 100, "keep_settled": 20},
    )
    kills = plan(f"{SEED}/drafts", KILLS, STEPS, EVERYBODY)
    async with scene(tmp_path, config, may_drop=["stale"]) as play:
        killing = asyncio.create_task(carry_out(kills, play))
        await play.recorder.run()
        print(f"{await killing} kills; {(await play.recorder.audit()).counts}")
        assert await play.findings() == []
        assert Following().follow(play.journal()).ended
