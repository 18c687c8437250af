"""The notebook client's questions, to a real replay buffer, store and trainer service."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import matplotlib as mpl
import pytest
from ledger_world import settings
from part_process import started
from prometheus_client import CollectorRegistry
from replay_server import Replay, replay_server

from headrace.client import Run, connect
from headrace.config.config import Config
from headrace.config.load import dump_config
from headrace.config.rundir import RunDirectory
from headrace.errors import (
    HeadraceError,
    InvalidFieldError,
    PromptInUseError,
    PromptUnknownError,
    UsageError,
)
from headrace.rpc.channel import open_channel
from headrace.rpc.server import bind, create_server
from headrace.trainer.progress import Progress
from headrace.trainer.service import TrainerService
from headrace.trainer.weights_server import WeightsServer
from headrace.trajectory.client import put_trajectories
from headrace.trajectory.key import TrajectoryKey
from headrace.v1 import prompt_pb2, replay_pb2_grpc, status_pb2, store_pb2, store_pb2_grpc
from headrace.v1 import replay_pb2 as pb
from headrace.v1.trajectory_pb2 import FINISH_REASON_STOP, Trajectory, WeightSpan

mpl.use("agg")

T = TypeVar("T")


async def asked(question: Callable[[], T]) -> T:
    """Ask from a thread: the client knows no event loop, and the servers need this one."""
    return await asyncio.to_thread(question)


@asynccontextmanager
async def run_behind(directory: Path, **rules: Any) -> AsyncIterator[tuple[Replay, Run]]:
    async with replay_server(directory / "journal", settings(**rules)) as replay:
        yield replay, await asked(lambda: connect(replay.target))


async def train_a_step(replay: Replay) -> None:
    """Feed the window, generate four groups, train on them."""
    incarnation = await replay.begin(row_count=100)
    await replay.feed()
    leases = await replay.lease(4, worker="worker-0")
    await replay.stub.CompleteSessions(replay.completion(leases, worker="worker-0"))
    await replay.stub.SampleBatch(
        pb.SampleBatchRequest(incarnation=incarnation, step=1, part_count=1)
    )
    await replay.stub.CommitStep(pb.CommitStepRequest(incarnation=incarnation, step=1))


async def test_the_status_is_text_in_a_terminal_and_a_table_in_a_notebook(tmp_path: Path) -> None:
    async with run_behind(tmp_path) as (replay, run):
        await train_a_step(replay)
        await replay.lease(2, worker="worker-<0>")
        status = await asked(run.status)

    assert (status.step, status.total_steps, status.paused, status.ended) == (1, 25, False, False)
    assert status.counts["trained"] == 4
    assert status.counts["running"] == 2
    assert "step" in str(status)
    assert "fed 12 = 6 pending + 2 running + 4 trained" in str(status)
    table = status._repr_html_()
    assert "step 1 of 25" in table
    assert "worker-&lt;0&gt;" in table
    assert "<script" not in table


async def test_prompts_are_a_row_each_by_state_and_reason(tmp_path: Path) -> None:
    async with run_behind(tmp_path) as (replay, run):
        await train_a_step(replay)
        everything = await asked(run.prompts)
        trained = await asked(lambda: run.prompts(state="trained"))
        stale = await asked(lambda: run.prompts(state="dropped", reason="stale"))
        with pytest.raises(UsageError, match="no state 'done'; there are pending, running"):
            await asked(lambda: run.prompts(state="done"))

    assert len(everything) == 12
    assert list(trained.uid) == ["e0r0", "e0r1", "e0r2", "e0r3"]
    assert set(trained.step) == {1}
    assert list(trained.reward) == [0.0] * 4
    assert everything.reward.isna().sum() == 8
    assert len(stale) == 0
    assert list(stale.columns) == list(everything.columns)


async def test_a_prompt_tells_its_history(tmp_path: Path) -> None:
    async with run_behind(tmp_path) as (replay, run):
        await train_a_step(replay)
        place = await asked(lambda: run.where("e0r1"))
        with pytest.raises(PromptUnknownError, match="no prompt 'e9r9' was fed"):
            await asked(lambda: run.where("e9r9"))

    names = ["prompts_registered", "prompts_leased", "sessions_completed", "batch_sampled"]
    assert (place.state, place.reason, place.group.uid) == ("trained", "", "e0r1")
    assert list(place.history.event) == [*names, "step_committed"]
    assert place.history.time.is_monotonic_increasing
    assert "step_committed" in str(place)
    assert "step_committed" in place._repr_html_()


async def test_the_levers_move_the_run(tmp_path: Path) -> None:
    async with run_behind(tmp_path, threshold=4) as (replay, run):
        await train_a_step(replay)
        paused = await asked(run.pause)
        nothing = await replay.lease(1)
        resumed = await asked(run.resume)
        again = await replay.lease(1)
        closed = await asked(run.close_circuit)
        dropped = await asked(run.drop_stale)
        with pytest.raises(InvalidFieldError):
            await asked(lambda: run.drop_stale(1))
        given_up = [await asked(lambda: run.drop(["e0r9", "e0r10"])) for _ in range(2)]
        given_up.append(await asked(lambda: run.drop("e0r11")))
        with pytest.raises(PromptInUseError, match="e0r0 is trained"):
            await asked(lambda: run.drop("e0r0"))
        last = await asked(lambda: run.where("e0r11"))
        audit = await asked(run.audit)

    assert (paused.paused, resumed.paused) == (True, False)
    assert "paused" in paused._repr_html_()
    assert (len(nothing), len(again)) == (0, 1)
    assert closed.circuit == ""
    assert dropped == []
    assert given_up == [["e0r9", "e0r10"], [], ["e0r11"]]
    assert (last.state, last.reason) == ("dropped", "cancelled")
    assert audit.ok


async def test_events_come_in_order_and_end_with_the_time(tmp_path: Path) -> None:
    async with run_behind(tmp_path) as (replay, run):
        await train_a_step(replay)
        count = replay.buffer.ledger.position
        past = await asked(lambda: list(islice(run.watch(after=0), count)))
        nothing = await asked(lambda: list(run.watch(for_s=0.2)))
        new = await asked(lambda: run.watch(for_s=60))
        await replay.lease(1)
        event = await asked(lambda: next(new))

    assert [event.position for event in past] == list(range(1, count + 1))
    assert nothing == []
    assert past[0].name == "run_opened"
    assert "step_committed" in {event.name for event in past}
    assert (event.name, event.position) == ("prompts_leased", count + 1)
    assert event.uids == ("e0r4",)
    assert str(event).split()[2] == "prompts_leased"


async def test_the_window_over_time_ends_where_the_run_is(tmp_path: Path) -> None:
    async with run_behind(tmp_path) as (replay, run):
        await train_a_step(replay)
        window = await asked(run.window)
        over_time = await asked(run.plot.window)
        by_step = await asked(lambda: run.plot.window(by="step"))
        with pytest.raises(ValueError, match="must be 'time' or 'step'"):
            run.plot.window(by="hour")
        counts = (await asked(run.status)).counts

    assert window.iloc[-1][list(counts)].to_dict() == counts
    assert window.position.is_monotonic_increasing
    assert str(window.time.dtype).endswith("UTC]")
    _, labels = over_time.get_legend_handles_labels()
    assert labels == ["sampled", "finished", "running", "pending"]
    assert by_step.get_xlabel() == "committed step"


def test_importing_the_client_loads_nothing_heavy() -> None:
    script = (
        "import sys, headrace.client\n"
        "heavy = {'torch', 'pandas', 'numpy', 'matplotlib', 'transformers', 'IPython',\n"
        "         'headrace.replay'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (loaded.stdout.split(), loaded.returncode) == ([], 0), loaded.stderr


# -- trajectories, which the store holds


def make_config(directory: Path, **sections: Any) -> Config:
    return Config.model_validate(
        {
            "run": {"run_dir": directory, "run_id": "r"},
            "data": {
                "source": {"kind": "jsonl", "path": "/rows.jsonl"},
                "train_batch_size": 4,
                "max_prompt_length": 4,
                "max_response_length": 6,
            },
            "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "abcdef", "eos": "."}},
            "rollout": {"engine": {"kind": "scripted"}, "n": 2},
            "trainer": {"num_warmup_batches": 3},
            "store": {"capacity_bytes": 2**24},
            **sections,
        }
    )


def trajectory_of(lease: prompt_pb2.Lease, session: int) -> Trajectory:
    """`ab` -> `cde.`"""
    key = TrajectoryKey(lease.uid, session, 0, lease.lineage, lease.attempt)
    return Trajectory(
        schema_version=1,
        key=str(key),
        prompt_token_ids=[2, 3],
        response_token_ids=[4, 5, 6, 1],
        logprobs=[-1.0] * 4,
        loss_mask=[True] * 4,
        reward=session,
        weight_spans=[WeightSpan(lineage=lease.lineage, version=0, end=4)],
        finish_reason=FINISH_REASON_STOP,
        temperature=1.0,
    )


async def generate(replay: Any, store: Any, count: int) -> None:
    """Play feeder, trainer and worker: `count` groups are finished, four of them sampled."""
    await replay.OpenFeed(pb.OpenFeedRequest(row_count=100, fingerprint="f"))
    trainer = await replay.RegisterTrainer(pb.RegisterTrainerRequest(trainer_id="t"))
    weights = prompt_pb2.WeightsId(lineage=trainer.lineage, version=0)
    published = prompt_pb2.PublishedWeights(id=weights, uri="u", checksum="c")
    await replay.PublishWeights(
        pb.PublishWeightsRequest(incarnation=trainer.incarnation, weights=published)
    )
    demand = await replay.AwaitDemand(pb.AwaitDemandRequest(wait_s=5))
    prompts = [pb.NewPrompt(uid=f"e0r{i}") for i in range(demand.demand)]
    await replay.RegisterPrompts(pb.RegisterPromptsRequest(prompts=prompts))
    leased = await replay.LeasePrompts(
        pb.LeasePromptsRequest(
            worker_id="w", max_count=count, weights=weights, weights_checksum="c", wait_s=5
        )
    )
    rows = [trajectory_of(lease, s) for lease in leased.leases for s in lease.missing_sessions]
    incarnation = await put_trajectories(store, rows)
    sessions = [
        pb.CompletedSession(
            lease=pb.LeaseRef(uid=lease.uid, attempt=lease.attempt),
            record=prompt_pb2.SessionRecord(
                session=s, trajectory_count=1, size_bytes=99, token_count=4, reward=s
            ),
        )
        for lease in leased.leases
        for s in lease.missing_sessions
    ]
    done = pb.CompleteSessionsRequest(
        worker_id="w", store_incarnation=incarnation, sessions=sessions
    )
    await replay.CompleteSessions(done)
    await replay.SampleBatch(
        pb.SampleBatchRequest(incarnation=trainer.incarnation, step=1, part_count=1)
    )


async def test_trajectories_are_text_where_the_run_directory_is_and_token_ids_elsewhere(
    tmp_path: Path,
) -> None:
    config = make_config(tmp_path)
    async with started("replay", config, tmp_path, "replay") as replay:
        address = await replay.address()
        endpoints = {"replay": address}
        async with (
            started("store", make_config(tmp_path, endpoints=endpoints), tmp_path, "store") as it,
            open_channel(address) as to_replay,
            open_channel(await it.address()) as to_store,
        ):
            store = store_pb2_grpc.TrajectoryStoreServiceStub(to_store)
            await until_open(store)
            await generate(replay_pb2_grpc.ReplayBufferServiceStub(to_replay), store, 6)

            run = await asked(lambda: connect(address))
            ids = await asked(run.trajectories)
            RunDirectory(tmp_path).config_file.write_text(dump_config(config))
            text = await asked(run.trajectories)
            sampled = await asked(lambda: run.trajectories(1))
            few = await asked(lambda: run.trajectories(limit=1))
            none = await asked(lambda: run.trajectories(2))
            with pytest.raises(UsageError, match="step 0 is committed, and a committed step's"):
                await asked(lambda: run.trajectories(0))

    assert len(ids) == len(text) == 12
    assert ids.response[0] == [4, 5, 6, 1]
    assert (text.prompt[0], text.response[0]) == ("ab", "cde")
    assert list(text.reward[:2]) == [0.0, 1.0]
    assert set(text.finish_reason) == {"stop"}
    assert set(text.min_version) == set(text.max_version) == {0}
    assert list(text.response_tokens) == [4] * 12
    assert list(text.state) == ["sampled"] * 8 + ["finished"] * 4
    assert (len(sampled), set(sampled.state), set(sampled.step)) == (8, {"sampled"}, {1})
    assert (len(few), len(none)) == (2, 0)


async def until_open(store: Any) -> None:
    """Wait until a store takes rows; the replay buffer knows of it by then."""
    async with asyncio.timeout(60):
        while True:
            status = await store.GetStoreStatus(store_pb2.GetStoreStatusRequest())
            if status.store_incarnation:
                return
            await asyncio.sleep(0.05)


# -- metrics, which the trainer has


@asynccontextmanager
async def trainer_service(progress: Progress) -> AsyncIterator[str]:
    server = create_server(CollectorRegistry())
    weights = WeightsServer(Path("unused"), run_id="r")
    TrainerService(status_pb2.ProcessStatus, progress, weights).add_to(server)
    address = bind(server, "127.0.0.1", 0)
    await server.start()
    yield address
    await server.stop(0)


async def test_metrics_come_from_the_trainer_if_its_files_are_elsewhere(tmp_path: Path) -> None:
    progress = Progress()
    async with run_behind(tmp_path) as (replay, run), trainer_service(progress) as address:
        with pytest.raises(UsageError, match="nobody has said yet where the trainer listens"):
            await asked(run.metrics)
        await replay.stub.RegisterTrainer(
            pb.RegisterTrainerRequest(trainer_id="t1", address=address)
        )
        none = await asked(run.metrics)
        for step in (1, 2, 3):
            progress.add(step, {"critic/rewards/mean": step / 10})
        progress.step = 4
        metrics = await asked(run.metrics)
        reward = await asked(run.plot.reward)
        staleness = await asked(run.plot.staleness)

    assert len(none) == 0
    assert metrics["critic/rewards/mean"].to_dict() == {1: 0.1, 2: 0.2, 3: 0.3}
    drawn: Any = reward.lines[0].get_ydata()
    assert list(drawn) == [0.1, 0.2, 0.3]
    assert reward.get_ylabel() == "reward"
    assert len(staleness.lines) == 0


async def test_metrics_of_a_run_directory_are_read_from_its_file(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.config_file.write_text(dump_config(make_config(tmp_path)))
    lines = [{"step": 1, "a/mean": 0.5}, {"step": 2, "a/mean": None, "b": 1.0}]
    directory.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    async with replay_server(directory.journal, settings()) as replay:
        await train_a_step(replay)

    run = await asked(lambda: connect(tmp_path))
    metrics = await asked(run.metrics)

    assert list(metrics.index) == [1, 2]
    assert metrics["a/mean"][1] == 0.5
    assert metrics["a/mean"].isna().tolist() == [False, True]


# -- runs that are over, and mistakes


async def test_a_run_directory_without_its_replay_buffer_is_read_from_the_journal(
    tmp_path: Path,
) -> None:
    directory = RunDirectory(tmp_path / "runs" / "one")
    directory.path.mkdir(parents=True)
    directory.config_file.write_text(dump_config(make_config(directory.path)))
    async with replay_server(directory.journal, settings()) as replay:
        await train_a_step(replay)

    run = await asked(lambda: connect(tmp_path / "runs"))
    status = await asked(run.status)
    events = await asked(lambda: list(run.watch(after=0)))
    window = await asked(run.window)
    with pytest.raises(
        UsageError, match="the run was stopped or is over, its replay buffer does not answer"
    ):
        await asked(run.pause)

    assert status.counts["trained"] == 4
    assert (status.offline, "read from its journal" in status._repr_html_()) == (True, True)
    assert [event.position for event in events] == list(window.position)
    assert (await asked(lambda: run.where("e0r0"))).state == "trained"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("127.0.0.1:1", "127.0.0.1:1, the replay buffer, does not answer"),
        ("nonsense", "'nonsense' is neither a directory nor an address; write host:port"),
        (".", "is no run directory, and there is none in it"),
    ],
)
async def test_a_wrong_target_says_so_at_once(
    target: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadraceError, match=message):
        await asked(lambda: connect(target))


async def test_another_process_is_not_taken_for_a_replay_buffer() -> None:
    async with trainer_service(Progress()) as address:
        with pytest.raises(UsageError, match=r"does not answer \(unavailable: .* another process"):
            await asked(lambda: connect(address))
