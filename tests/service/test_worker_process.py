"""The worker as a process of its own, first with small peers, then with the real ones."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from part_process import Part, started
from worker_world import TinyLedger, TinyStore, serving

from headrace.config.config import Config
from headrace.rpc.channel import open_channel
from headrace.trajectory.client import get_trajectories
from headrace.v1 import (
    feeder_pb2,
    prompt_pb2,
    replay_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    store_pb2_grpc,
)
from headrace.v1 import replay_pb2 as pb
from headrace.weights.directory import write

LATE = {"kind": "scripted", "mean_latency_s": 1000}
QUICK = {"kind": "scripted", "mean_latency_s": 0.01, "failure_rate": 0.05}


def make_config(directory: Path, engine: dict[str, Any], **sections: Any) -> Config:
    return Config.model_validate(
        {
            "run": {"run_dir": directory, "run_id": "test"},
            "data": {
                "source": {"kind": "jsonl", "path": "rows.jsonl"},
                "train_batch_size": 4,
                "max_prompt_length": 4,
                "max_response_length": 6,
            },
            "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "abcdef", "eos": "."}},
            "rollout": {"engine": engine, "n": 2, "max_groups_in_flight": 8},
            "ledger": {"lease_s": 2.0, "max_failures": 50},
            "store": {"capacity_bytes": 2**24},
            "trainer": {"save_freq": -1},
            **sections,
        }
    )


def publish(root: Path, lineage: str, version: int) -> prompt_pb2.PublishedWeights:
    directory, checksum = write(
        root, run_id="test", lineage=lineage, version=version, write_files=lambda _: None
    )
    return prompt_pb2.PublishedWeights(
        id=prompt_pb2.WeightsId(lineage=lineage, version=version),
        uri=str(directory),
        checksum=checksum,
    )


class Place:
    """Small peers, and workers started beside them."""

    def __init__(self, directory: Path, replay: str, store: str) -> None:
        self.directory = directory
        self.endpoints = {"replay": replay, "store": store}
        self.ledger = TinyLedger()  # type: ignore[abstract]  # the workers' side only
        self.store = TinyStore()  # type: ignore[abstract]

    def config(self, engine: dict[str, Any], **sections: Any) -> Config:
        return make_config(self.directory, engine, endpoints=self.endpoints, **sections)


@pytest_asyncio.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        made = Place(tmp_path, "", "")
        made.endpoints["replay"] = await stack.enter_async_context(
            serving(
                lambda s: replay_pb2_grpc.add_ReplayBufferServiceServicer_to_server(made.ledger, s)
            )
        )
        made.endpoints["store"] = await stack.enter_async_context(
            serving(
                lambda s: store_pb2_grpc.add_TrajectoryStoreServiceServicer_to_server(made.store, s)
            )
        )
        await made.ledger.publish(publish(tmp_path / "weights", "main", 0))
        yield made


async def test_a_worker_that_is_told_to_stop_hands_back_and_ends_with_code_0(
    place: Place,
) -> None:
    place.ledger.feed("e0r0", "e0r1")
    async with started("rollout", place.config(LATE), place.directory, "worker-0") as part:
        await place.ledger.until(lambda: len(place.ledger.leased) == 2, timeout_s=60)
        part.process.send_signal(signal.SIGTERM)
        assert await part.exit_code() == 0

    assert [ended.end for ended in place.ledger.ended_leases] == [pb.LEASE_END_RETURNED] * 2


async def test_a_drained_worker_says_how_it_is_until_it_goes(place: Place) -> None:
    place.ledger.feed("e0r0")
    place.ledger.held["EndLeases"] = asyncio.Event()
    async with started("rollout", place.config(LATE), place.directory, "worker-0") as part:
        await place.ledger.until(lambda: place.ledger.leased, timeout_s=60)
        async with open_channel(await part.address()) as channel:
            stub = rollout_pb2_grpc.RolloutWorkerServiceStub(channel)
            status = await at_work(stub)
            first = await stub.Drain(rollout_pb2.DrainRequest())
            second = await stub.Drain(rollout_pb2.DrainRequest())
            going = await stub.GetWorkerStatus(rollout_pb2.GetWorkerStatusRequest())
            place.ledger.held["EndLeases"].set()
        assert await part.exit_code() == 0

    assert status.process.process == "worker-0"
    assert status.worker_id.startswith(f"worker-0-{part.process.pid}-")
    assert (status.engine, status.weight_version, status.lineage) == ("scripted", 0, "main")
    assert (status.groups_in_flight, status.draining) == (1, False)
    assert [wait.name for wait in status.process.waits] == ["engine"]
    assert first.groups_in_flight == 1
    assert second.groups_in_flight in (0, 1)
    assert going.draining
    assert [ended.end for ended in place.ledger.ended_leases] == [pb.LEASE_END_RETURNED]


async def at_work(worker: Any) -> rollout_pb2.GetWorkerStatusResponse:
    """Ask a worker how it is until it has got what it was leased."""
    async with asyncio.timeout(60):
        while True:
            status: rollout_pb2.GetWorkerStatusResponse = await worker.GetWorkerStatus(
                rollout_pb2.GetWorkerStatusRequest()
            )
            if any(wait.name == "engine" for wait in status.process.waits):
                return status
            await asyncio.sleep(0.02)


async def test_each_life_of_a_worker_has_a_name_of_its_own(place: Place) -> None:
    for life in range(2):
        async with started("rollout", place.config(LATE), place.directory, "worker-0") as part:
            place.ledger.feed(f"e0r{life}")
            await place.ledger.notify()
            await place.ledger.until(partial(_holds, place.ledger, life + 1), timeout_s=60)
            part.process.kill()

    holders = {worker_id for _, worker_id in place.ledger.leased.values()}
    assert len(holders) == 2


def _holds(ledger: TinyLedger, count: int) -> bool:
    return len(ledger.leased) == count


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"reward": {"kind": "python", "function": "no_such_module:f"}}, "cannot import no_such"),
        ({"endpoints": {"store": "127.0.0.1:1"}}, "endpoints.replay is not set"),
    ],
)
async def test_what_the_user_got_wrong_is_said_before_anything_is_leased(
    place: Place, sections: dict[str, Any], message: str
) -> None:
    endpoints = {"endpoints": place.endpoints, **sections}
    config = make_config(place.directory, QUICK, **endpoints)
    async with started("rollout", config, place.directory, "worker-0") as part:
        assert await part.exit_code() == 2
        assert message in part.log.read_text()

    assert not place.ledger.calls


class Rest:
    """Feeder and trainer, as far as a worker can tell."""

    def __init__(self, directory: Path, replay: Any, store: Any) -> None:
        self.directory = directory
        self.replay = replay
        self.store = store
        self.trained: Counter[str] = Counter()

    async def feed(self) -> None:
        await self.replay.OpenFeed(pb.OpenFeedRequest(row_count=24, fingerprint="f"))
        while True:
            wanted = await self.replay.AwaitDemand(pb.AwaitDemandRequest(wait_s=5))
            if wanted.ended:
                return
            payload = feeder_pb2.PromptPayload(token_ids=[2, 3], text="ab", answer="c")
            prompts = [
                pb.NewPrompt(uid=f"e0r{wanted.cursor + i}", payload=payload)
                for i in range(wanted.demand)
            ]
            if prompts:
                await self.replay.RegisterPrompts(
                    pb.RegisterPromptsRequest(first_ordinal=wanted.cursor, prompts=prompts)
                )

    async def train(self, after_step: Any) -> None:
        trainer = await self.replay.RegisterTrainer(pb.RegisterTrainerRequest(trainer_id="t"))
        await self.publish(trainer, 0)
        for step in range(1, 7):
            groups = await self.sample(trainer.incarnation, step)
            self.trained.update(group.uid for group in groups)
            keys = [each.key for group in groups for each in group.trajectories]
            found, missing = await get_trajectories(self.store, keys)
            assert not missing
            assert all(each.weight_spans[0].version <= step for each in found.values())
            await self.replay.CommitStep(
                pb.CommitStepRequest(incarnation=trainer.incarnation, step=step)
            )
            await self.publish(trainer, step)
            await after_step(step)

    async def publish(self, trainer: pb.RegisterTrainerResponse, version: int) -> None:
        weights = publish(self.directory / "weights", trainer.lineage, version)
        await self.replay.PublishWeights(
            pb.PublishWeightsRequest(incarnation=trainer.incarnation, weights=weights)
        )

    async def sample(self, incarnation: int, step: int) -> list[prompt_pb2.SampledGroup]:
        request = pb.SampleBatchRequest(incarnation=incarnation, step=step, part_count=1, wait_s=5)
        while True:
            answer = await self.replay.SampleBatch(request)
            if answer.status == pb.SAMPLE_STATUS_READY:
                return list(answer.groups)


async def test_a_run_with_the_real_peers_ends_though_a_worker_is_killed(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:

        async def start(part: str, name: str, endpoints: dict[str, str]) -> Part:
            config = make_config(tmp_path, QUICK, endpoints=endpoints)
            return await stack.enter_async_context(started(part, config, tmp_path, name))

        endpoints = {"replay": await (await start("replay", "replay", {})).address()}
        endpoints["store"] = await (await start("store", "store", endpoints)).address()
        workers = [await start("rollout", f"worker-{i}", endpoints) for i in range(2)]
        replay = await stack.enter_async_context(open_channel(endpoints["replay"]))
        store = await stack.enter_async_context(open_channel(endpoints["store"]))
        rest = Rest(
            tmp_path,
            replay_pb2_grpc.ReplayBufferServiceStub(replay),
            store_pb2_grpc.TrajectoryStoreServiceStub(store),
        )

        async def kill_one(step: int) -> None:
            if step == 2:
                workers[0].process.kill()

        async with asyncio.timeout(100), asyncio.TaskGroup() as both:
            both.create_task(rest.feed())
            both.create_task(rest.train(kill_one))

        audit = await rest.replay.Audit(pb.AuditRequest())
        workers[1].process.terminate()
        assert await workers[1].exit_code() == 0

    assert rest.trained == Counter({f"e0r{row}": 1 for row in range(24)})
    assert audit.ok, audit.violations
    assert audit.counts.trained == 24
