"""`headrace pause`, `resume`, `drain`, `drop`, `circuit close` change a run that lives, and say so."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ledger_world import settings
from part_process import started
from replay_server import Replay, replay_server

from headrace.config.config import Config
from headrace.config.load import dump_config
from headrace.config.rundir import RunDirectory
from headrace.config.services import EndpointsConfig
from headrace.v1 import journal_pb2, prompt_pb2
from headrace.v1 import replay_pb2 as pb
from headrace.weights.directory import write


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


async def headrace(*words: str) -> Answer:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli.main", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return Answer(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def replay(tmp_path: Path) -> AsyncIterator[Replay]:
    async with replay_server(tmp_path / "journal", settings()) as made:
        await made.begin(row_count=100)
        yield made


def make_config(path: Path, target: str, run_id: str = "") -> Config:
    return Config.model_validate(
        {
            "run": {"run_dir": path, "run_id": run_id},
            "data": {
                "source": {"kind": "jsonl", "path": "/a"},
                "train_batch_size": 4,
                "max_prompt_length": 4,
                "max_response_length": 6,
            },
            "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "abcdef", "eos": "."}},
            "rollout": {"n": 2, "engine": {"kind": "scripted", "mean_latency_s": 1}},
            "trainer": {"num_warmup_batches": 3},
            "endpoints": {"replay": target, "store": "127.0.0.1:1"},
        }
    )


def write_run(path: Path, target: str, run_id: str = "") -> RunDirectory:
    """Write what a run leaves beside its journal; a running one of the tests has no run id."""
    directory = RunDirectory(path)
    directory.endpoint_file("replay").parent.mkdir(exist_ok=True)
    directory.config_file.write_text(dump_config(make_config(path, target, run_id)))
    announced = json.dumps({"address": target, "pid": os.getpid()})
    directory.endpoint_file("replay").write_text(announced)
    return directory


async def test_a_run_is_paused_and_resumed_by_its_address(replay: Replay) -> None:
    at = ("--replay", replay.target)

    said = [
        (await headrace(wish, *at)).out.strip() for wish in ("pause", "pause", "resume", "resume")
    ]

    assert said == [
        "the run is paused",
        "the run was paused already",
        "the run goes on",
        "the run was not paused",
    ]
    assert replay.buffer.ledger.paused is False


async def test_an_open_circuit_is_closed(replay: Replay) -> None:
    at = ("--replay", replay.target)
    ledger = replay.buffer.ledger
    cause = pb.CIRCUIT_CAUSE_WORKERS_FAIL
    ledger.emit(journal_pb2.CircuitOpened(cause=cause, error="boom"))
    replay.buffer.commit()

    said = [(await headrace("circuit", "close", *at)).out for _ in range(2)]

    assert said == ["the circuit is closed; what failed is tried again\n", "it was not open\n"]
    assert not ledger.circuit.is_open


async def test_prompts_that_nobody_can_do_are_given_up(replay: Replay) -> None:
    at = ("--replay", replay.target)
    await replay.feed()
    [held] = await replay.lease(1)
    assert held.uid == "e0r0"

    answers = [
        await headrace("drop", *uids, *at)
        for uids in (["e0r0", "e0r3", "e0r0"], ["e0r3", "e0r4"], ["e0r5", "e7r7"])
    ]
    where = await headrace("where", "e0r0", *at)

    assert [(answer.code, answer.out) for answer in answers] == [
        (0, "e0r0 is dropped\ne0r3 is dropped\n"),
        (0, "e0r3 was dropped already\ne0r4 is dropped\n"),
        (2, ""),
    ]
    assert answers[2].err.count("\n") == 1
    assert "no prompt 'e7r7' was fed" in answers[2].err
    assert "cancelled" in where.out
    counts = replay.buffer.ledger.groups.to_counts()
    assert (counts.pending, counts.running, dict(counts.dropped)) == (9, 0, {"cancelled": 3})
    renewal = pb.RenewLeasesRequest(
        worker_id="w", leases=[pb.LeaseRef(uid=held.uid, attempt=held.attempt)]
    )
    assert (await replay.stub.RenewLeases(renewal)).statuses == [pb.LEASE_STATUS_LOST]


async def test_a_prompt_that_is_finished_is_not_given_up(replay: Replay) -> None:
    await replay.feed()
    await replay.stub.CompleteSessions(replay.completion(await replay.lease(1)))

    answer = await headrace("drop", "e0r1", "e0r0", "--replay", replay.target)

    assert (answer.code, answer.out) == (2, "")
    assert "e0r0 is finished: only what is pending, running or failed can be dropped" in answer.err
    assert replay.buffer.ledger.groups.to_counts().dropped == {}


async def test_a_run_is_paused_by_its_directory(replay: Replay, tmp_path: Path) -> None:
    write_run(tmp_path, replay.target)

    answer = await headrace("pause", "--run", str(tmp_path))

    assert (answer.code, answer.out) == (0, "the run is paused\n")
    assert replay.buffer.ledger.paused is True


async def test_a_run_that_is_over_cannot_be_paused(tmp_path: Path) -> None:
    async with replay_server(tmp_path / "journal", settings()) as over:
        await over.begin(row_count=100)
    write_run(tmp_path, "127.0.0.1:1", run_id="r")

    answer = await headrace("pause", "--run", str(tmp_path))

    assert (answer.code, answer.out) == (2, "")
    assert "the run was stopped or is over" in answer.err
    assert answer.err.count("\n") == 1


async def test_a_worker_is_sent_home(replay: Replay, tmp_path: Path) -> None:
    directory = write_run(tmp_path, replay.target)
    config = make_config(tmp_path, replay.target)
    folder = directory.endpoint_file("any").parent
    async with started("rollout", config, folder, "worker-3") as worker:
        await worker.address()
        unknown = await headrace("drain", "worker-4", "--run", str(tmp_path))
        no_worker = await headrace("drain", "replay", "--run", str(tmp_path))

        answer = await headrace("drain", "worker-3", "--run", str(tmp_path))
        assert (answer.code, answer.err) == (0, "")
        assert answer.out.startswith("worker-3 goes home")
        assert await worker.exit_code() == 0

    for refused in (unknown, no_worker):
        assert refused.code == 2
        assert "is running; there are: worker-3" in refused.err


async def publish(replay: Replay, root: Path) -> None:
    """Publish weights that a worker can load: it leases nothing without, and nobody hears of it."""
    trainer = await replay.stub.RegisterTrainer(pb.RegisterTrainerRequest(trainer_id="t"))
    directory, checksum = write(
        root, run_id="", lineage=trainer.lineage, version=0, write_files=lambda _: None
    )
    weights = prompt_pb2.PublishedWeights(
        id=replay.weights(0), uri=str(directory), checksum=checksum
    )
    await replay.stub.PublishWeights(
        pb.PublishWeightsRequest(incarnation=trainer.incarnation, weights=weights)
    )


async def test_a_worker_is_sent_home_through_the_replay_buffer(tmp_path: Path) -> None:
    async with (
        replay_server(tmp_path / "journal", settings()) as replay,
        started("rollout", make_config(tmp_path, replay.target), tmp_path, "worker-3") as worker,
        started("rollout", make_config(tmp_path, replay.target), tmp_path, "worker-4") as other,
    ):
        at = ("--replay", replay.target)
        await publish(replay, tmp_path / "weights")
        async with asyncio.timeout(60):
            while len(replay.buffer.workers.live()) < 2:  # noqa: ASYNC110 (no event for it)
                await asyncio.sleep(0.05)
        unknown = await headrace("drain", "worker-9", *at)

        answer = await headrace("drain", "worker-3", *at)

        assert (answer.code, answer.err) == (0, "")
        assert answer.out.startswith("worker-3 goes home")
        assert await worker.exit_code() == 0
        assert other.process.returncode is None
    assert unknown.code == 2
    assert re.search(
        r"no worker 'worker-9' was heard of lately; there are: worker-3-\d+-\w{6}, worker-4-",
        unknown.err,
    )


async def test_a_name_that_several_workers_have_is_not_enough(replay: Replay) -> None:
    for worker in ("worker-0-1-aaaaaa", "worker-0-1-bbbbbb"):
        await replay.lease(1, worker=worker)

    by_name = await headrace("drain", "worker-0", "--replay", replay.target)
    by_id = await headrace("drain", "worker-0-1-bbbbbb", "--replay", replay.target)

    assert (by_name.code, by_id.code) == (2, 0)
    assert "give one of worker-0-1-aaaaaa, worker-0-1-bbbbbb" in by_name.err
    assert replay.buffer.workers.goes_home("worker-0-1-bbbbbb")
    assert not replay.buffer.workers.goes_home("worker-0-1-aaaaaa")


async def test_the_coordinator_is_asked_where_the_replay_buffer_says_it_is(
    replay: Replay, tmp_path: Path
) -> None:
    at = ("--replay", replay.target)
    unknown = await headrace("checkpoints", *at)
    config = make_config(tmp_path, replay.target)
    async with started("checkpoint", config, tmp_path, "checkpoint") as coordinator:
        endpoints = EndpointsConfig(checkpoint=await coordinator.address())
        replay.buffer.peers.take(endpoints)

        answer = await headrace("checkpoints", *at)

    assert (answer.code, answer.out) == (0, "no checkpoints\n"), answer.err
    assert unknown.code == 2
    assert "does not know where the checkpoint coordinator listens" in unknown.err
    both = await headrace("checkpoints", "--storage", "here", *at)
    assert "--storage and --replay both say" in both.err


async def test_a_snapshot_needs_a_trainer_that_the_replay_buffer_knows_of(replay: Replay) -> None:
    answer = await headrace("snapshot", "--replay", replay.target)

    assert answer.code == 2
    assert answer.err.startswith(
        f"error: the replay buffer at {replay.target} does not know where the trainer listens"
    )
