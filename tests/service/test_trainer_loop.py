"""The trainer's process against small servers that play its peers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from trainer_stage import Stage
from trainer_world import serve_peers

from headrace.config.rollout import TorchEngine as TorchConfig
from headrace.errors import NotReadyError, TrainerFencedError, UsageError
from headrace.rollout.download import Downloads
from headrace.rollout.engines.base import SampleRequest
from headrace.rollout.engines.torch_engine import TorchEngine
from headrace.rpc.waits import Waits
from headrace.trainer.arrival import register
from headrace.v1 import prompt_pb2, replay_pb2_grpc, trainer_pb2
from headrace.v1 import replay_pb2 as pb


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    server, address, peers = await serve_peers()
    yield Stage(tmp_path, address, peers)
    await server.stop(None)


async def test_a_step_is_sampled_trained_committed_published_and_let_go(stage: Stage) -> None:
    assert await stage.run(parameter_sync_step=2) == 0

    steps = [
        call
        for step in (1, 2, 3)
        for call in (
            ("sample", step, 0),
            ("sample", step, 1),
            ("commit", step),
            ("publish", step),
        )
    ]
    calls = [call for call in stage.peers.calls if call[0] != "register"]
    assert calls == [("publish", 0), *steps, ("end",)]
    assert sorted(stage.peers.deleted) == sorted(stage.peers.rows)
    left = sorted(path.name for path in (stage.run_dir / "weights").iterdir())
    assert left == ["r_a_v00000002", "r_a_v00000003"]


async def test_a_feed_that_does_not_open_is_one_wait_and_becomes_a_stall(stage: Stage) -> None:
    stage.peers.total_steps = 0
    waits = Waits(stall_after_s=1)
    async with grpc.aio.insecure_channel(stage.address) as channel, asyncio.timeout(30):
        registering = asyncio.create_task(
            register(
                replay_pb2_grpc.ReplayBufferServiceStub(channel),
                trainer_id="t",
                waits=waits,
                stopping=asyncio.Event(),
            )
        )
        while not waits.stalled:  # noqa: ASYNC110 (nobody tells of a stall)
            await asyncio.sleep(0.05)
        [wait] = waits.snapshot()
        stage.peers.total_steps = 3
        assert (await registering).total_steps == 3
    assert (wait.name, wait.owner) == ("feed opened", "feeder")
    assert waits.snapshot() == []


async def test_what_the_trainer_itself_is_at_has_a_name(stage: Stage) -> None:
    told: list[asyncio.Task[set[str]]] = []

    async def ask() -> set[str]:
        channel, stub = stage.stub()
        async with channel:
            status = await stub.GetTrainerStatus(trainer_pb2.GetTrainerStatusRequest())
            return set(status.process.waited_s)

    def ask_in_step_2(request: pb.SampleBatchRequest) -> pb.SampleBatchResponse | None:
        if request.step == 2 and not told:
            told.append(asyncio.ensure_future(ask()))
        if request.step == 2 and not told[0].done():
            return pb.SampleBatchResponse(status=pb.SAMPLE_STATUS_WAITING)
        return None

    stage.peers.before_sample = ask_in_step_2
    assert await stage.run() == 0
    assert {"update computed", "weights written", "old weights removed"} <= told[0].result()


async def test_one_trainer_id_registers_until_the_feed_is_open(stage: Stage) -> None:
    await stage.run()
    registrations = [call for call in stage.peers.calls if call[0] == "register"]
    assert len(registrations) == 2
    assert len(set(registrations)) == 1


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_it_learns_what_is_rewarded_on_the_policy_that_sampled(
    stage: Stage, temperature: float
) -> None:
    stage.peers.total_steps, stage.peers.temperature = 25, temperature
    assert await stage.run(tensorboard=True) == 0
    metrics = stage.metrics
    rewards = [line["critic/rewards/mean"] for line in metrics]
    assert rewards[0] < 0.4
    assert sum(rewards[-3:]) / 3 > 0.8
    assert max(line["training/rollout_probs_diff_max"] for line in metrics) < 1e-4
    assert {line["training/off_policy/trajectory_staleness/max"] for line in metrics} == {0}
    assert len(list((stage.run_dir / "tensorboard").iterdir())) == 1


async def test_groups_whose_rows_are_gone_are_given_back_and_the_part_is_asked_for_again(
    stage: Stage,
) -> None:
    stage.peers.total_steps = 1
    stage.peers.lost = {"e0r1_3_0_aa1", "e0r2_0_0_aa1"}
    assert await stage.run() == 0
    kinds = [call for call in stage.peers.calls if call[0] in ("sample", "return", "commit")]
    assert kinds == [
        ("sample", 1, 0),
        ("return", 1, 0, "e0r1", "e0r2"),
        ("sample", 1, 0),
        ("commit", 1),
    ]
    assert all(key.endswith("aa2") for key in stage.peers.deleted)


async def test_it_ends_well_when_the_data_has_ended(stage: Stage) -> None:
    stage.peers.before_sample = lambda request: (
        pb.SampleBatchResponse(status=pb.SAMPLE_STATUS_DATA_ENDED) if request.step == 2 else None
    )
    assert await stage.run() == 0
    assert [line["step"] for line in stage.metrics] == [1]


async def test_an_older_trainer_ends_with_the_code_of_a_trainer_that_died(stage: Stage) -> None:
    def fence(_request: pb.SampleBatchRequest) -> None:
        raise TrainerFencedError("incarnation 7 was succeeded by 8")

    stage.peers.before_sample = fence
    assert await stage.run() == 4


@pytest.mark.parametrize(
    "arrival",
    [
        pb.RegisterTrainerResponse(committed_step=2),
        pb.RegisterTrainerResponse(
            latest_weights=prompt_pb2.PublishedWeights(id=prompt_pb2.WeightsId(lineage="a"))
        ),
    ],
)
async def test_a_run_of_an_earlier_trainer_is_refused(
    stage: Stage, arrival: pb.RegisterTrainerResponse, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.peers.arrival = arrival
    assert await stage.run() == 4
    assert "start a new run in a new run directory" in capsys.readouterr().out
    assert {call[0] for call in stage.peers.calls} == {"register"}


async def test_a_model_that_cannot_be_built_is_the_users_mistake(stage: Stage) -> None:
    with pytest.raises(UsageError, match=r"trainer\.device = 'abacus'"):
        await stage.run(device="abacus")


async def test_a_peer_that_is_away_for_a_moment_is_asked_again(stage: Stage) -> None:
    failures = iter(range(6))  # more than the channel's own tries

    def away(_request: pb.SampleBatchRequest) -> None:
        if next(failures, None) is not None:
            raise NotReadyError("loading")

    stage.peers.before_sample = away
    stage.peers.total_steps = 1
    assert await stage.run() == 0


async def test_while_it_waits_it_says_for_what_and_stops_when_told(stage: Stage) -> None:
    polled = asyncio.Event()

    def wait(_request: pb.SampleBatchRequest) -> pb.SampleBatchResponse:
        if len([call for call in stage.peers.calls if call[0] == "sample"]) > 1:
            polled.set()
        return pb.SampleBatchResponse(
            status=pb.SAMPLE_STATUS_WAITING, blocked_by="3 of 4 groups are finished"
        )

    stage.peers.before_sample = wait
    training = asyncio.create_task(stage.run())
    await polled.wait()
    channel, stub = stage.stub()
    async with channel:
        status = await stub.GetTrainerStatus(trainer_pb2.GetTrainerStatusRequest())
    os.kill(os.getpid(), signal.SIGTERM)

    assert await training == 130
    assert (status.phase, status.step) == (trainer_pb2.TRAINER_PHASE_SAMPLING, 1)
    assert (status.total_steps, status.weight_version) == (3, 0)
    (found,) = status.process.waits
    assert (found.name, found.owner) == ("batch", "replay")
    assert found.ends_when == "step 1, part 0: 3 of 4 groups are finished"


async def test_who_watches_gets_every_step_and_is_let_go_at_the_end(stage: Stage) -> None:
    started, watched = asyncio.Event(), asyncio.Event()

    async def watch() -> list[tuple[int, float]]:
        await started.wait()
        channel, stub = stage.stub()
        async with channel:
            stream = stub.WatchSteps(trainer_pb2.WatchStepsRequest(after_step=1))
            await stub.GetTrainerStatus(trainer_pb2.GetTrainerStatusRequest())
            watched.set()
            found = [response async for response in stream]
        return [(response.step, response.metrics["training/global_step"]) for response in found]

    def hold(request: pb.SampleBatchRequest) -> pb.SampleBatchResponse | None:
        started.set()
        if watched.is_set():
            return None
        return pb.SampleBatchResponse(status=pb.SAMPLE_STATUS_WAITING)

    stage.peers.before_sample = hold
    code, found = await asyncio.gather(stage.run(), watch())
    assert code == 0
    assert found == [(2, 2.0), (3, 3.0)]


async def test_the_warm_start_comes_before_the_first_weights(stage: Stage) -> None:
    stage.peers.total_steps = 1
    warm_start = {"steps": 30, "batch_size": 300, "lr": 1e-2}
    assert await stage.run(warm_start=warm_start, micro_batch_size=100) == 0
    rows = [call for call in stage.peers.calls if call[0] == "rows"]
    assert rows[:4] == [("rows", 0, 256), ("rows", 256, 44), ("rows", 300, 256), ("rows", 556, 44)]
    assert stage.peers.calls.index(("publish", 0)) > stage.peers.calls.index(rows[-1])
    # The answer `22` is two of three tokens: the policy was taught to give it.
    assert stage.metrics[0]["critic/rewards/mean"] > 0.5


async def test_workers_get_each_version_from_a_trainer_that_shares_no_directory_with_them(
    stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "got").mkdir()
    engine = TorchEngine(TorchConfig(device="cpu", threads=1), eos_id=1, seed=0)
    await engine.start()
    got: list[int] = []

    async def locate(weights: prompt_pb2.PublishedWeights) -> Path:
        assert weights.uri == "grpc:"
        channel, stub = stage.stub()
        async with channel:
            downloads = Downloads(stub, tmp_path / "got")
            here = await downloads.get(weights)
            await engine.load(here)
        [sample] = engine.generate([SampleRequest("e0r0", 0, 1, [2, 3], 1.0, 2)])
        got.append((await sample).response.weight_spans[0].version)
        return Path(here.uri)

    stage.peers.locate = locate  # type: ignore[method-assign]
    stage.sections["weights"] = {"transport": "grpc", "dir": tmp_path / "kept"}

    assert await stage.run() == 0
    await engine.close()
    assert got == [0, 1, 2, 3]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "r_a_v00000002", "r_a_v00000003",
    ]  # fmt: skip
