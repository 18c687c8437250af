"""The trainer's process saves, goes on and leaves, against small servers that play its peers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from held_storage import HeldStorage
from trainer_coordinator import LINEAGE
from trainer_stage import Stage
from trainer_world import serve_peers

from headrace.checkpoint.storage import verify
from headrace.errors import (
    CannotResumeError,
    NoValidCheckpointError,
    TrainerFencedError,
    UsageError,
)
from headrace.failpoints import VARIABLE
from headrace.v1 import replay_pb2 as pb
from headrace.v1 import trainer_pb2


def saved_counters(stage: Stage, step: int) -> dict[str, Any]:
    """Read what goes with the tensors of a checkpoint."""
    [file] = (stage.run_dir / "checkpoints" / f"global_step_{step}").rglob("state.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def once_saved(stage: Stage) -> pb.SampleBatchResponse | None:
    """Answer a request for a batch: it has to wait while a snapshot is under way."""
    begun = {call[1] for call in stage.coordinator.calls if call[0] == "begin"}
    if begun <= stage.coordinator.parts.keys():
        return None
    return pb.SampleBatchResponse(status=pb.SAMPLE_STATUS_WAITING)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    server, address, peers = await serve_peers()
    yield Stage(tmp_path, address, peers)
    await server.stop(None)


async def test_every_nth_step_and_the_last_are_saved_before_they_are_published(
    stage: Stage,
) -> None:
    stage.peers.total_steps = 5
    stage.peers.before_sample = lambda _request: once_saved(stage)
    assert await stage.run(save_freq=2) == 0
    assert sorted(stage.coordinator.parts) == [2, 4, 5]
    assert [call for call in stage.coordinator.calls if call[0] == "begin"] == [
        ("begin", 2), ("begin", 4), ("begin", 5),
    ]  # fmt: skip
    assert stage.peers.calls[-1] == ("end",)
    files = {file.path for file in stage.coordinator.parts[4].files}
    assert {
        f"trainer/a/{name}" for name in (".metadata", "state.json", "model/tokenizer.json")
    } <= files
    counters = saved_counters(stage, 4)
    assert (counters["step"], counters["updates"], counters["lineage"]) == (4, 4, "a")
    assert stage.coordinator.facts["rollout.n"] == "8"
    assert stage.coordinator.facts["tokenizer"]
    assert ["timing_s/save_checkpoint" in line for line in stage.metrics] == [
        False, True, False, True, True,
    ]  # fmt: skip
    assert not list((stage.run_dir / "scratch").iterdir())


@pytest.mark.parametrize("parts", [1, 2])
async def test_a_trainer_that_goes_on_ends_with_the_weights_of_one_that_never_stopped(
    stage: Stage, tmp_path: Path, parts: int
) -> None:
    sections = {"algorithm": {"kl_loss_coef": 0.1}}
    optim = {"lr": 3e-3, "lr_schedule": "cosine", "lr_min_ratio": 0.1, "lr_warmup_steps": 2}
    trainer: dict[str, Any] = {"optim": optim, "parameter_sync_step": parts, "save_freq": 2}
    stage.peers.total_steps = 6
    stage.sections = sections
    assert await stage.run(**trainer) == 0
    whole, lines = dict(stage.peers.published), stage.metrics

    (tmp_path / "second").mkdir()
    server, address, peers = await serve_peers()
    again = Stage(tmp_path / "second", address, peers)
    again.sections, peers.total_steps = sections, 6

    def fence_in_step_6(request: pb.SampleBatchRequest) -> pb.SampleBatchResponse | None:
        waiting = once_saved(again)
        if waiting is None and request.step == 6 and peers.lineage == "a":
            raise TrainerFencedError("another one has come")
        return waiting

    peers.before_sample = fence_in_step_6
    assert await again.run(**trainer) == 4
    assert sorted(again.coordinator.parts) == [2, 4]
    assert await again.run(**trainer) == 0
    await server.stop(None)

    assert peers.published == whole
    assert saved_counters(again, 6)["seen"] == saved_counters(stage, 6)["seen"] != ""
    versions = {path.name for path in (again.run_dir / "weights").iterdir()}
    assert versions == {"r_b_v00000005", "r_b_v00000006"}
    begun = peers.calls.index(("publish", 4), peers.calls.index(("publish", 5)))
    assert peers.calls[begun + 1] == ("sample", 5, 0)
    assert [line["step"] for line in again.metrics] == [1, 2, 3, 4, 5, 6]
    same = ("actor/lr", "actor/kl_loss", "actor/pg_loss", "training/epoch", "critic/rewards/mean")
    assert [{name: line[name] for name in same} for line in again.metrics] == [
        {name: line[name] for name in same} for line in lines
    ]
    abandoned = (tmp_path / "second" / "metrics.abandoned.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in abandoned] == [5]


async def test_training_goes_on_while_a_snapshot_is_written_and_the_next_is_skipped_by_name(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.peers.total_steps = 4
    stage.coordinator.may_commit.clear()

    def release(request: pb.SampleBatchRequest) -> None:
        if request.step == 4:
            stage.coordinator.may_commit.set()

    stage.peers.before_sample = release
    assert await stage.run(save_freq=1) == 0
    assert sorted(stage.coordinator.parts) == [1, 4]
    out = capsys.readouterr().out
    assert "snapshot_skipped" in out
    assert "step 1 is still being saved" in out


async def test_a_snapshot_that_fails_is_said_and_costs_no_more_than_itself(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.peers.total_steps = 4
    stage.coordinator.failures = ["ledger.pb: no space left"]
    told: list[str] = []

    async def look() -> None:
        channel, stub = stage.stub()
        async with channel:
            while not told:
                status = await stub.GetTrainerStatus(trainer_pb2.GetTrainerStatusRequest())
                told.extend([status.snapshot_error] if status.snapshot_error else [])
                await asyncio.sleep(0.05)

    looking: list[asyncio.Task[None]] = []

    def look_in_step_4(request: pb.SampleBatchRequest) -> pb.SampleBatchResponse | None:
        if request.step == 4 and not looking:
            looking.append(asyncio.ensure_future(look()))
        if request.step == 4 and not looking[0].done():
            return pb.SampleBatchResponse(status=pb.SAMPLE_STATUS_WAITING)
        return None

    stage.peers.before_sample = look_in_step_4
    assert await stage.run(save_freq=2) == 0
    assert told == ["step 2: ledger.pb: no space left"]
    assert sorted(stage.coordinator.parts) == [4]
    assert "snapshot_failed" in capsys.readouterr().out


async def test_a_disk_that_is_full_in_the_middle_of_a_run_is_no_reason_to_stop(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "trainer_part.written:1:raise")
    stage.peers.total_steps = 4
    assert await stage.run(save_freq=2) == 0
    assert sorted(stage.coordinator.parts) == [4]
    told = ("no part", "s2", "[Errno 28] failpoint trainer_part.written")
    assert [call for call in stage.coordinator.calls if "part" in call[0]] == [told, ("part", "s4")]


async def test_a_last_step_that_cannot_be_saved_does_not_end_the_run(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.coordinator.failures = ["no space left"] * 9
    assert await stage.run(save_freq=2) == 4
    error = capsys.readouterr().err
    assert "error: everything is trained, but the last checkpoint cannot be made" in error
    assert "no space left" in error
    assert ("end",) not in stage.peers.calls
    stage.coordinator.failures.clear()
    assert await stage.run(save_freq=2) == 0
    assert stage.peers.calls[-1] == ("end",)


async def test_a_file_that_the_storage_does_not_take_holds_up_no_end_and_is_not_written_twice(
    stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeldStorage, "calls", stage.coordinator.calls)
    HeldStorage.open_for_writing.clear()
    stage.sections["checkpoint"] = {"storage": "held://never", "deadline_s": 2.0}
    try:
        assert await stage.run(save_freq=100) == 4
        uploads = [each for each in threading.enumerate() if each.name == "upload"]
        assert [each.daemon for each in uploads] == [True]
        calls = [call[0] for call in stage.coordinator.calls if call[0] in ("begin", "file")]
    finally:
        HeldStorage.open_for_writing.set()
    error = capsys.readouterr().err
    assert "step 3 is still being written after" in error
    assert (calls.count("file"), calls[-1]) == (1, "file"), "no other is begun beside it"


async def test_the_last_step_is_saved_again_once_what_was_given_up_is_written(
    stage: Stage,
) -> None:
    HeldStorage.open_for_writing.clear()
    stage.sections["checkpoint"] = {"storage": "held://late", "deadline_s": 2.0}
    running = asyncio.create_task(stage.run(save_freq=100))
    await stage.coordinator.begun.wait()
    channel, stub = stage.stub()
    async with channel, asyncio.timeout(60):
        status = trainer_pb2.GetTrainerStatusResponse()
        while not status.snapshot_error:  # the first try is given up then
            status = await stub.GetTrainerStatus(trainer_pb2.GetTrainerStatusRequest())
            await asyncio.sleep(0.05)
    HeldStorage.open_for_writing.set()
    assert await running == 0
    verify(stage.coordinator.parts[3])


@pytest.mark.parametrize("ends_soon", [True, False])
async def test_data_that_ends_within_a_step_leave_the_step_before_saved_or_the_run_not_ended(
    stage: Stage, capsys: pytest.CaptureFixture[str], ends_soon: bool
) -> None:
    stage.peers.total_steps = 9
    stage.peers.ends_soon_from = 2 if ends_soon else None
    stage.peers.before_sample = lambda request: (
        pb.SampleBatchResponse(status=pb.SAMPLE_STATUS_DATA_ENDED)
        if (request.step, request.part) == (3, 1)
        else None
    )
    code = await stage.run(save_freq=100, parameter_sync_step=2)
    if ends_soon:
        assert (code, sorted(stage.coordinator.parts)) == (0, [2])
        assert saved_counters(stage, 2)["updates"] == 4
        assert stage.peers.calls[-1] == ("end",)
    else:
        assert (code, sorted(stage.coordinator.parts)) == (4, [])
        assert "the data ended within step 3" in capsys.readouterr().err
        assert ("end",) not in stage.peers.calls


async def test_steps_of_one_part_are_not_saved_more_often_where_the_data_end(stage: Stage) -> None:
    stage.peers.ends_soon_from = 1
    assert await stage.run(save_freq=100) == 0
    assert sorted(stage.coordinator.parts) == [3]


async def test_a_snapshot_is_made_of_the_step_that_somebody_asks_for(stage: Stage) -> None:
    asked: list[asyncio.Task[int]] = []

    async def ask() -> int:
        channel, stub = stage.stub()
        async with channel:
            answer = await stub.RequestSnapshot(trainer_pb2.RequestSnapshotRequest())
            return int(answer.step)

    def ask_in_step_2(request: pb.SampleBatchRequest) -> pb.SampleBatchResponse | None:
        if request.step == 2 and not asked:
            asked.append(asyncio.ensure_future(ask()))
        if request.step == 2 and not asked[0].done():
            return pb.SampleBatchResponse(status=pb.SAMPLE_STATUS_WAITING)
        return None

    stage.peers.before_sample = ask_in_step_2
    assert await stage.run(save_freq=100) == 0
    assert asked[0].result() == 2
    assert sorted(stage.coordinator.parts) == [2, 3]


async def test_told_to_stop_it_finishes_its_step_saves_it_and_leaves(stage: Stage) -> None:
    def stop_in_step_2(request: pb.SampleBatchRequest) -> None:
        if request.step == 2:
            stage.peers.before_sample = lambda _request: None
            os.kill(os.getpid(), signal.SIGTERM)

    stage.peers.before_sample = stop_in_step_2
    assert await stage.run(save_freq=100) == 130
    assert sorted(stage.coordinator.parts) == [2]
    assert stage.peers.calls[-1] == ("publish", 2)
    assert [line["step"] for line in stage.metrics] == [1, 2]

    assert await stage.run(save_freq=100) == 0
    assert [line["step"] for line in stage.metrics] == [1, 2, 3]


async def test_told_to_stop_while_nothing_is_unsaved_it_leaves_at_once(stage: Stage) -> None:
    told = asyncio.Event()

    def stop_in_step_3(request: pb.SampleBatchRequest) -> pb.SampleBatchResponse | None:
        if request.step < 3:
            return None
        if 2 in stage.coordinator.parts and not told.is_set():
            told.set()  # a second signal would end the test's process at once
            os.kill(os.getpid(), signal.SIGINT)
        return pb.SampleBatchResponse(status=pb.SAMPLE_STATUS_WAITING)

    stage.peers.before_sample = stop_in_step_3
    stage.sections["checkpoint"] = {"preempt_grace_s": 10_000}
    assert await stage.run(save_freq=2) == 130
    assert sorted(stage.coordinator.parts) == [2]


async def test_a_batch_that_does_not_come_within_the_grace_is_not_waited_for(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop_in_step_2(request: pb.SampleBatchRequest) -> pb.SampleBatchResponse | None:
        if request.step < 2:
            return None
        os.kill(os.getpid(), signal.SIGTERM)
        stage.peers.before_sample = lambda _request: waiting
        return waiting

    waiting = pb.SampleBatchResponse(status=pb.SAMPLE_STATUS_WAITING)
    stage.peers.before_sample = stop_in_step_2
    stage.sections["checkpoint"] = {"preempt_grace_s": 0.5}
    assert await stage.run(save_freq=100) == 130
    stopped = [line for line in capsys.readouterr().out.splitlines() if "stopped  " in line]
    assert "newest_saved=0" in stopped[0]
    assert "step=2" in stopped[0]


async def test_a_run_that_is_over_is_not_begun_again(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.coordinator.is_over = True
    assert await stage.run(save_freq=2) == 0
    assert {call[0] for call in stage.peers.calls} == {"register"}
    assert "already_finished" in capsys.readouterr().out


async def test_what_cannot_be_gone_on_from_ends_the_trainer_with_its_code(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.coordinator.refusal = CannotResumeError("rollout.n is 4, and 8 in the checkpoint")
    with pytest.raises(UsageError, match=r"rollout\.n is 4"):
        await stage.run(save_freq=2)
    stage.coordinator.refusal = NoValidCheckpointError("global_step_4/trainer is damaged")
    assert await stage.run(save_freq=2) == 3
    assert "error: global_step_4/trainer is damaged" in capsys.readouterr().err


async def test_weights_that_cannot_be_written_end_the_trainer_in_a_line(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    (stage.run_dir / "weights").write_text("a file is in the way")
    assert await stage.run(save_freq=2) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the trainer cannot go on:")
    assert str(stage.run_dir / "weights") in line


async def test_a_checkpoint_that_was_damaged_after_it_was_picked_is_not_loaded(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.peers.total_steps = 2
    assert await stage.run(save_freq=2) == 0
    shard = stage.run_dir / "checkpoints" / "global_step_2" / "trainer" / "a" / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert await stage.run(save_freq=2) == 3
    assert "__0_0.distcp" in capsys.readouterr().err


async def test_a_run_that_goes_back_to_its_beginning_is_warmed_up_again_and_not_otherwise(
    stage: Stage,
) -> None:
    warm_start = {"steps": 1, "batch_size": 4, "lr": 1e-2}
    stage.coordinator.failures = ["nothing is saved"] * 9
    assert await stage.run(save_freq=100, warm_start=warm_start) == 4
    stage.coordinator.failures.clear()
    assert await stage.run(save_freq=100, warm_start=warm_start) == 0
    assert stage.peers.lineage == LINEAGE
    assert [call for call in stage.peers.calls if call[0] == "rows"] == [("rows", 0, 4)] * 2
    assert [line["step"] for line in stage.metrics] == [1, 2, 3]

    assert await stage.run(save_freq=100, warm_start=warm_start) == 0
    assert len([call for call in stage.peers.calls if call[0] == "rows"]) == 2


async def test_checkpoints_need_a_coordinator(stage: Stage) -> None:
    stage.sections["endpoints"] = {"replay": stage.address, "store": stage.address}
    with pytest.raises(UsageError, match=r"endpoints\.checkpoint is not set.*save_freq=-1"):
        await stage.run(save_freq=1)
