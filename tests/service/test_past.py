"""What `headrace run` finds in a directory where there was a run before, and says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ledger_world import settings
from replay_resumes import OPEN
from replay_server import Replay, replay_server

from headrace.cli.past import Past
from headrace.config.config import Config
from headrace.config.load import dump_config
from headrace.config.rundir import RunDirectory
from headrace.config.wish import name_resume, wish_of
from headrace.errors import UsageError
from headrace.v1 import replay_pb2 as pb
from headrace.v1.resume_pb2 import ResumeState


def config(directory: Path, *, save_freq: int = 1, **sections: Any) -> Config:
    """As the servers of these tests are set, which know nothing of configuration."""
    return Config.model_validate(
        {
            "run": {"run_dir": directory, "run_id": "r"},
            "data": {"source": {"kind": "jsonl", "path": "/a"}, "train_batch_size": 4},
            "model": {"architecture": "gpt2", "tokenizer": "/t"},
            "rollout": {"n": 2},
            "trainer": {"num_warmup_batches": 3, "save_freq": save_freq},
            **sections,
        }
    )


def left(directory: Path, before: Config) -> RunDirectory:
    """Write what a launcher leaves beside the journal."""
    found = RunDirectory(directory)
    found.config_file.write_text(dump_config(before))
    return found


async def train(replay: Replay, *, rows: int) -> int:
    """Feed a window, train on a step of it; give the trainer's number."""
    incarnation = await replay.begin(row_count=rows)
    await replay.feed()
    leases = await replay.lease(4)
    await replay.stub.CompleteSessions(replay.completion(leases))
    await replay.stub.SampleBatch(
        pb.SampleBatchRequest(incarnation=incarnation, step=1, part_count=1)
    )
    await replay.stub.CommitStep(pb.CommitStepRequest(incarnation=incarnation, step=1))
    return incarnation


def test_a_new_directory_has_no_past(tmp_path: Path) -> None:
    past = Past.of(RunDirectory(tmp_path), config(tmp_path))

    assert (past.began, past.finished, past.last_resume) == (False, False, "")


def test_a_run_that_never_came_to_write_anything_has_not_begun(tmp_path: Path) -> None:
    past = Past.of(left(tmp_path, config(tmp_path)), config(tmp_path))

    assert (past.began, past.finished) == (False, False)


async def test_an_interrupted_run_is_gone_on_with(tmp_path: Path) -> None:
    async with replay_server(tmp_path / "journal", settings()) as replay:
        await train(replay, rows=100)
    directory = left(tmp_path, config(tmp_path))

    past = Past.of(directory, config(tmp_path))

    assert (past.began, past.finished) == (True, False)
    assert past.going_on_in_words() == (
        f"going on with {tmp_path}: step 1 of 25, no checkpoint yet"
    )
    past.check_can_go_on(config(tmp_path))
    with pytest.raises(UsageError, match=r"at step 1, and without checkpoints .*run\.name=NAME"):
        past.check_can_go_on(config(tmp_path, save_freq=-1))


async def test_a_run_cannot_be_made_shorter_than_it_is(tmp_path: Path) -> None:
    async with replay_server(tmp_path / "journal", settings()) as replay:
        incarnation = await train(replay, rows=100)
        leases = await replay.lease(4)
        await replay.stub.CompleteSessions(replay.completion(leases))
        await replay.stub.SampleBatch(
            pb.SampleBatchRequest(incarnation=incarnation, step=2, part_count=1)
        )
        await replay.stub.CommitStep(pb.CommitStepRequest(incarnation=incarnation, step=2))
    past = Past.of(left(tmp_path, config(tmp_path)), config(tmp_path))

    for steps in (2, 3, None):
        past.check_can_go_on(steps_of(tmp_path, steps))
    with pytest.raises(UsageError, match=r"total_training_steps: 1 is fewer than the 2 steps"):
        past.check_can_go_on(steps_of(tmp_path, 1))


def steps_of(directory: Path, steps: int | None) -> Config:
    trainer = {"num_warmup_batches": 3, "save_freq": 1, "total_training_steps": steps}
    return config(directory, trainer=trainer)


async def saved(replay: Replay, incarnation: int) -> None:
    """Let the ledger know of a checkpoint of step 1."""
    await replay.stub.BeginCut(pb.BeginCutRequest(snapshot_id="a", incarnation=incarnation, step=1))
    await replay.stub.EndCut(pb.EndCutRequest(snapshot_id="a", committed=True, oldest_step=1))


@pytest.mark.parametrize(
    ("save_freq", "is_saved", "finished"), [(1, True, True), (1, False, False), (-1, False, True)]
)
async def test_a_run_is_finished_when_it_is_over_and_its_last_step_is_saved(
    tmp_path: Path, *, save_freq: int, is_saved: bool, finished: bool
) -> None:
    async with replay_server(tmp_path / "journal", settings()) as replay:
        incarnation = await train(replay, rows=4)
        if is_saved:
            await saved(replay, incarnation)
        await replay.stub.EndRun(pb.EndRunRequest(incarnation=incarnation))
    before = config(tmp_path, save_freq=save_freq)

    past = Past.of(left(tmp_path, before), before)

    assert past.finished == finished
    words = past.finished_in_words()
    assert words.startswith(f"{tmp_path} is finished: 1 of 1 steps; to ")
    assert words.endswith("to start another run: run.name=NAME or run.run_dir=DIR")
    back = f"resume.mode=path resume.path={tmp_path}/checkpoints/global_step_1 with more trainer."
    assert (back in words) == is_saved


async def test_a_finished_run_says_where_its_last_checkpoint_lies(tmp_path: Path) -> None:
    async with replay_server(tmp_path / "journal", settings()) as replay:
        incarnation = await train(replay, rows=4)
        await saved(replay, incarnation)
        await replay.stub.EndRun(pb.EndRunRequest(incarnation=incarnation))
    before = config(tmp_path, checkpoint={"storage": "s3://bucket/run/"})

    past = Past.of(left(tmp_path, before), before)

    assert "resume.path=s3://bucket/run/global_step_1 with" in past.finished_in_words()


async def test_a_finished_run_that_is_asked_to_go_back_goes_on_until_that_is_done(
    tmp_path: Path,
) -> None:
    async with replay_server(tmp_path / "journal", settings()) as replay:
        incarnation = await train(replay, rows=4)
        await saved(replay, incarnation)
        await replay.stub.EndRun(pb.EndRunRequest(incarnation=incarnation))
    directory = left(tmp_path, config(tmp_path))
    assert Past.of(directory, config(tmp_path)).finished

    back = config(tmp_path, resume={"mode": "path", "path": "somewhere/global_step_1"})
    anew = config(tmp_path, resume={"mode": "disable", "allow": ["new_lineage"]})
    for asked, words in (
        (back, "it was finished, and goes back (resume.mode: path)"),
        (anew, "all of that is left behind, it begins again (resume.mode: disable)"),
    ):
        past = Past.of(directory, asked)
        assert not past.finished
        assert past.going_on_in_words() == (
            f"going on with {tmp_path}: step 1 of 1, checkpoint 1; {words}"
        )

    async with replay_server(tmp_path / "journal", settings()) as replay:
        name = name_resume(wish_of(back.resume), ResumeState(), "x")
        trainer = await go_back(replay, 1, name)
        assert not Past.of(directory, back).finished
        await replay.stub.EndRun(pb.EndRunRequest(incarnation=trainer))
    assert Past.of(directory, back).finished
    assert not Past.of(directory, anew).finished


async def go_back(replay: Replay, step: int, name: str) -> int:
    """Be another trainer, and resume; give its number."""
    trainer = await replay.begin_resume(step, name)
    await replay.until_phase(trainer, step, OPEN, name=name)
    return trainer


async def test_what_was_finished_without_checkpoints_stays_so_when_they_are_wanted(
    tmp_path: Path,
) -> None:
    async with replay_server(tmp_path / "journal", settings()) as replay:
        incarnation = await train(replay, rows=4)
        await replay.stub.EndRun(pb.EndRunRequest(incarnation=incarnation))
    directory = left(tmp_path, config(tmp_path, save_freq=-1))

    assert Past.of(directory, config(tmp_path, save_freq=5)).finished


async def test_a_damaged_journal_is_left_to_the_replay_buffer(tmp_path: Path) -> None:
    async with replay_server(tmp_path / "journal", settings()) as replay:
        await train(replay, rows=100)
    for file in (tmp_path / "journal").glob("*.log"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 255
        file.write_bytes(data)

    past = Past.of(left(tmp_path, config(tmp_path)), config(tmp_path))

    assert (past.began, past.finished) == (True, False)
    assert past.going_on_in_words() == f"going on with {tmp_path}"
