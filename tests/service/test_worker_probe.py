"""A worker whose engine does not compute what the trainer does stays out, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest_asyncio
from part_process import Part, started
from probed import publish, settings, trained
from worker_scene import Gate, World, after_load, eventually, made_world

from headrace.config.config import Config
from headrace.config.rollout import ScriptedEngine as ScriptedConfig
from headrace.rollout.engines.base import EngineError, EngineStatus
from headrace.rollout.engines.probe import ProbeError
from headrace.rollout.engines.scripted import ScriptedEngine
from headrace.rpc.channel import open_channel
from headrace.v1 import (
    feeder_pb2,
    prompt_pb2,
    replay_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    status_pb2,
)
from headrace.v1 import replay_pb2 as pb


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with made_world(tmp_path) as made:
        yield made


class Forgetful(ScriptedEngine):
    """Has one place for weights, and does not agree with the trainer on version 1."""

    async def load(self, weights: prompt_pb2.PublishedWeights) -> None:
        await super().load(weights)
        if weights.id.version == 1:
            error = ProbeError("it says something else", mean=3.0)
            error.weights_lost = True
            raise error


async def test_an_engine_without_usable_weights_gives_its_groups_back_and_waits_for_others(
    world: World,
) -> None:
    gate = Gate()
    await world.publish(0)
    world.ledger.feed("e0r0", "e0r1")
    await world.start(
        ScriptedConfig(kind="scripted", mean_latency_s=1),
        sleep=after_load(gate), engine_type=Forgetful,
    )  # fmt: skip
    await gate.reached.wait()
    await world.publish(1)
    # Those it had; and any that a call was granted that was under way.
    await eventually(lambda: len(world.ledger.ended_leases) >= 2)
    await eventually(lambda: not world.worker._leases._calls and not world.ledger.leased)
    await eventually(lambda: len(world.ledger.requests("AwaitWeights")) > 4)
    waits = {wait.name: wait for wait in world.waits.snapshot()}
    current = world.worker.weights.current
    asked = len(world.ledger.requests("LeasePrompts"))
    leased = dict(world.ledger.leased)
    gate.open.set()
    await world.publish(2)
    await world.ledger.until(lambda: world.ledger.is_whole("e0r0", "e0r1"))

    assert {ended.end for ended in world.ledger.ended_leases} == {pb.LEASE_END_RETURNED}
    assert current is None
    assert not leased
    assert waits["weights that agree"].owner == "trainer"
    assert waits["weights that agree"].ends_when == (
        "the engine agrees with it on version 1 or a later one; last: it says something else"
    )
    assert not any(wait.name == "weights that agree" for wait in world.waits.snapshot())
    after = [call.weights.version for call in world.ledger.requests("LeasePrompts")[asked:]]
    assert set(after) == {2}


async def test_an_engine_that_keeps_its_weights_goes_on_with_them(world: World) -> None:
    class Prudent(Forgetful):
        async def load(self, weights: prompt_pb2.PublishedWeights) -> None:
            before = self._weights
            try:
                await super().load(weights)
            except ProbeError as error:
                self._weights = before
                error.weights_lost = False
                raise

    await world.publish(0)
    await world.start(engine_type=Prudent)
    await eventually(lambda: world.worker.weights.current is not None)
    await world.publish(1)
    await eventually(
        lambda: any(wait.name == "weights that agree" for wait in world.waits.snapshot())
    )
    world.ledger.feed("e0r0")
    await world.ledger.notify()
    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))

    assert [record.max_version for record in world.ledger.sessions["e0r0"].values()] == [0, 0]


async def test_an_engine_that_cannot_have_weights_is_what_is_waited_for(world: World) -> None:
    class Away(ScriptedEngine):
        async def load(self, weights: prompt_pb2.PublishedWeights) -> None:
            if weights.id.version == 0:
                raise EngineError("no server has version 0: nobody is there")
            await super().load(weights)

    await world.publish(0)
    await world.start(engine_type=Away)
    await eventually(lambda: [wait.owner for wait in world.waits.snapshot()] == ["scripted engine"])
    [wait] = world.waits.snapshot()
    await world.publish(1)
    await eventually(lambda: world.worker.weights.current is not None)

    assert (wait.name, wait.ends_when) == (
        "weights",
        "weights are published and loaded; last: no server has version 0: nobody is there",
    )
    await eventually(lambda: [wait.name for wait in world.waits.snapshot()] == ["work"])


async def test_an_engine_that_had_no_room_while_it_refused_weights_is_given_work_again(
    world: World,
) -> None:
    refusing = Gate()

    class Busy(ScriptedEngine):
        """Begins nothing while it takes weights, and does not take version 1."""

        room = 8

        async def load(self, weights: prompt_pb2.PublishedWeights) -> None:
            if weights.id.version == 1:
                self.room = 0
                await refusing.sleep(0)
                self.room = 8
                raise EngineError("these were removed meanwhile")
            await super().load(weights)

        def status(self) -> EngineStatus:
            return replace(super().status(), room=self.room)

    await world.publish(0)
    await world.start(engine_type=Busy, lease_wait_s=0.05)
    await eventually(lambda: world.worker.weights.current is not None)
    await world.publish(1)
    await refusing.reached.wait()
    await eventually(lambda: not world.worker._leases._calls)
    world.ledger.feed("e0r0")
    refusing.open.set()
    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))

    assert [record.max_version for record in world.ledger.sessions["e0r0"].values()] == [0, 0]


def make_config(directory: Path, endpoints: dict[str, str], **engine: Any) -> Config:
    return Config.model_validate(
        {
            "run": {"run_dir": directory, "run_id": "test"},
            "data": {
                "source": {"kind": "jsonl", "path": "rows.jsonl"},
                "train_batch_size": 4,
                "max_prompt_length": 4,
                "max_response_length": 6,
            },
            "model": settings().model_dump(mode="json", exclude_none=True),
            "rollout": {
                "engine": {"kind": "torch", "device": "cpu", "threads": 1, **engine},
                "n": 2,
            },
            "trainer": {"save_freq": -1},
            "endpoints": endpoints,
        }
    )


async def test_a_worker_that_disagrees_leases_nothing_and_one_that_agrees_does_the_work(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        endpoints: dict[str, str] = {}

        async def start(part: str, name: str, **engine: Any) -> Part:
            config = make_config(tmp_path, endpoints, **engine)
            return await stack.enter_async_context(started(part, config, tmp_path, name))

        async def connect(address: str) -> grpc.aio.Channel:
            return await stack.enter_async_context(open_channel(address))

        endpoints["replay"] = await (await start("replay", "replay")).address()
        endpoints["store"] = await (await start("store", "store")).address()
        replay = replay_pb2_grpc.ReplayBufferServiceStub(await connect(endpoints["replay"]))
        trainer = await replay.RegisterTrainer(pb.RegisterTrainerRequest(trainer_id="t"))
        weights = publish(tmp_path / "weights", trained(settings()), 0, lineage=trainer.lineage)
        await replay.PublishWeights(
            pb.PublishWeightsRequest(incarnation=trainer.incarnation, weights=weights)
        )
        await replay.OpenFeed(pb.OpenFeedRequest(row_count=4, fingerprint="f"))
        payload = feeder_pb2.PromptPayload(token_ids=[2, 3], text="01", answer="2")
        prompts = [pb.NewPrompt(uid=f"e0r{i}", payload=payload) for i in range(4)]
        await replay.RegisterPrompts(pb.RegisterPromptsRequest(first_ordinal=0, prompts=prompts))

        rough = await start("rollout", "rough", dtype="bfloat16", logprob_tolerance=1e-6)
        looking = rollout_pb2_grpc.RolloutWorkerServiceStub(await connect(await rough.address()))
        async with asyncio.timeout(100):
            while not (wait := await disagreement(looking)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            before = await replay.Audit(pb.AuditRequest())
            await start("rollout", "exact")
            while (await replay.Audit(pb.AuditRequest())).counts.finished < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            still = await disagreement(looking)
            status = await looking.GetWorkerStatus(rollout_pb2.GetWorkerStatusRequest())

    assert wait.owner == "trainer"
    assert "weights of version 0 are refused: the engine's log-probabilities" in wait.ends_when
    assert (before.counts.pending, before.counts.running) == (4, 0)
    assert still is not None
    # It never held a group: what it cannot generate with, it does not lease for.
    assert (status.weight_version, status.groups_in_flight) == (-1, 0)
    assert "weights of version 0 are refused" in rough.log.read_text()


async def disagreement(worker: Any) -> status_pb2.Wait | None:
    status = await worker.GetWorkerStatus(rollout_pb2.GetWorkerStatusRequest())
    found = [wait for wait in status.process.waits if wait.name == "weights that agree"]
    return found[0] if found else None
