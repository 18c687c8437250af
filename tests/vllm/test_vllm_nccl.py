"""Weights that the trainer sends to vLLM's processes, as far as that goes without a GPU.

The trainer's service, the worker's side, vLLM and its transfer engine are real. NCCL refuses; where
the way has to go on, its two ends are replaced: `sending` and `vllm_link`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import probed
import psutil
import pytest
import torch
from sending import UNIQUE_ID, started
from vllm_link import HANGS, put
from vllm_world import MARKS, gap, make_model, request, running, sampled
from weights_world import Giver
from worker_world import serving

from headrace.rollout.direct import DirectWay
from headrace.rollout.download import Downloads
from headrace.rollout.engines.base import EngineError, EngineLostError
from headrace.rollout.weights_group import WeightsGroup
from headrace.rpc.channel import open_channel
from headrace.trainer.sender_process import SenderProcess
from headrace.trainer.tensors import list_tensors
from headrace.trainer.weights_groups import WeightsGroups
from headrace.v1 import prompt_pb2, trainer_pb2_grpc
from headrace.weights.digest import digest, text_of
from headrace.weights.tensors import TENSORS_NAME, WEIGHTS_NAME
from headrace.weights.transfer import GRPC_URI

pytestmark = MARKS


class Trainer:
    """A trainer that publishes, serves and sends; and a worker's sides of it."""

    def __init__(self, directory: Path, start: Callable[[], Awaitable[SenderProcess]]) -> None:
        self.root, self._got = directory / "given", directory / "got"
        self.root.mkdir()
        self._got.mkdir()
        self.start = start
        self.groups = WeightsGroups("cuda:0", timeout_s=600, start=lambda: self.start())
        self.giver = Giver(self.root, self.groups, run_id="test")
        self.downloads: Downloads
        self._stub: Any

    async def connect(self, address: str, channel: Any) -> None:
        self._stub = trainer_pb2_grpc.TrainerServiceStub(channel)
        self.downloads = Downloads(self._stub, self._got)

    def group(self, timeout_s: float = 600) -> WeightsGroup:
        return WeightsGroup(self._stub, worker_id="worker-0", timeout_s=timeout_s)

    def publish(self, model: Any, version: int) -> prompt_pb2.PublishedWeights:
        def add_list(directory: Path) -> None:
            listed = list_tensors(directory / WEIGHTS_NAME, "cpu")
            (directory / TENSORS_NAME).write_bytes(listed.to_bytes())

        weights = probed.publish(self.root, model, version, spoil=add_list)
        self.file = Path(weights.uri) / WEIGHTS_NAME
        weights.uri = GRPC_URI
        return weights

    async def small(self, weights: prompt_pb2.PublishedWeights) -> prompt_pb2.PublishedWeights:
        return await self.downloads.get(weights, without=[WEIGHTS_NAME])


@asynccontextmanager
async def made(
    directory: Path, start: Callable[[], Awaitable[SenderProcess]]
) -> AsyncIterator[Trainer]:
    trainer = Trainer(directory, start)
    async with (
        serving(
            lambda s: trainer_pb2_grpc.add_TrainerServiceServicer_to_server(trainer.giver, s)
        ) as address,
        open_channel(address) as channel,
    ):
        await trainer.connect(address, channel)
        try:
            yield trainer
        finally:
            await trainer.groups.close()


def processes() -> set[int]:
    """Those of vLLM."""
    return {
        child.pid
        for child in psutil.Process().children(recursive=True)
        if "resource_tracker" not in " ".join(child.cmdline())
    }


async def agrees(engine: Any, model: Any) -> bool:
    requests = [request(session) for session in range(4)]
    await sampled(engine, requests)
    return max(gap(model, asked) for asked in requests) < 1e-4


async def test_what_nccl_refuses_comes_as_a_file_into_the_same_vllm_and_the_reason_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [make_model("qwen3-tied", seed) for seed in range(3)]
    time = 0.0
    async with made(tmp_path, started("good")) as trainer, running(receives=True) as engine:
        way = DirectWay(engine, trainer.group(), trainer.downloads, now=lambda: time)
        await engine.load(await trainer.downloads.get(trainer.publish(models[0], 0)))
        begun = processes()
        reasons = []
        for version, start in ((1, started("good")), (2, SenderProcess.start)):
            time += 3600
            trainer.start = start
            weights = trainer.publish(models[version], version)
            taken = await way.take(weights, lambda: pytest.fail("nothing was lost"))
            said = [
                line
                for line in capsys.readouterr().out.splitlines()
                if "weights_not_received" in line
            ]
            reasons += said
            # The old ones are still there.
            assert not taken
            assert await agrees(engine, models[version - 1])
            await engine.load(await trainer.downloads.get(weights))
            assert await agrees(engine, models[version])

        assert processes() == begun
        assert list(trainer.groups) == []
    assert len(reasons) == 2
    assert "vLLM did not join the trainer" in reasons[0]
    assert "Cannot access accelerator device" in reasons[0]
    assert "cannot be sent to worker-0" in reasons[1]
    assert "the trainer has no GPU" in reasons[1]


@pytest.mark.parametrize("name", ["qwen3-tied", "gpt2-untied"])
async def test_what_is_sent_is_loaded_and_what_is_not_what_was_published_ends_vllm(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    models = [make_model(name, seed) for seed in range(4)]
    async with (
        made(tmp_path, started("good")) as trainer,
        running(receives=True, partial=True) as engine,
    ):
        await engine.load(await trainer.downloads.get(trainer.publish(models[0], 0)))
        group = trainer.group()

        async def send(version: int, spoiled: str = "") -> prompt_pb2.PublishedWeights:
            weights = trainer.publish(models[version], version)
            if not group.is_open:
                await group.open(1)
            await engine._life._llm.collective_rpc(put, args=(str(trainer.file), spoiled))
            engine._life.has_joined = True
            await engine.receive(await trainer.small(weights), group)
            return weights

        begun = processes()
        await send(1)
        assert await agrees(engine, models[1])
        await send(2)
        assert await agrees(engine, models[2])
        assert processes() >= begun
        assert engine.status().probe_gap < 1e-4

        [first, *_] = [each.name for each in list_tensors(trainer.file, "cpu").tensors]
        with pytest.raises(EngineLostError, match=f"1 of .* not what was published: {first}"):
            await send(3, spoiled=first)
        assert not begun & processes()
        assert not group.is_open


async def test_a_vllm_that_receives_nothing_is_ended_in_time_and_starts_anew_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    models = [make_model("gpt2-untied", seed) for seed in range(2)]
    async with made(tmp_path, started("good")) as trainer, running(receives=True) as engine:
        await engine.load(await trainer.downloads.get(trainer.publish(models[0], 0)))
        group = trainer.group(timeout_s=5)
        weights = trainer.publish(models[1], 1)
        await group.open(1)
        await engine._life._llm.collective_rpc(put, args=(str(trainer.file), HANGS))
        engine._life.has_joined = True
        begun = processes()
        async with asyncio.timeout(60):
            with pytest.raises(
                EngineError, match="version 1 was not loaded: it took too long"
            ) as late:
                await engine.receive(await trainer.small(weights), group)

        assert late.value.weights_lost
        assert not group.is_open
        assert list(trainer.groups) == []
        assert len(begun & processes()) == 0
        await engine.load(await trainer.downloads.get(weights))
        assert await agrees(engine, models[1])


def test_each_tensor_that_is_not_what_was_published_is_named() -> None:
    from headrace.rollout.engines.vllm_nccl import CheckedModel

    class Model:
        def __init__(self) -> None:
            self.given: list[str] = []

        def load_weights(self, weights: list[tuple[str, Any]]) -> set[str]:
            self.given += [name for name, _ in weights]
            return {f"model.{name}" for name, _ in weights}

    tensors = {name: torch.rand(5, 7) for name in "abc"}
    published = {name: text_of(digest(tensor)) for name, tensor in tensors.items()}
    model = Model()
    checked = CheckedModel(model)
    checked.load_weights(iter(list(tensors.items())[:2]))
    with pytest.raises(ValueError, match="1 of 3 tensors are not what was published: c"):
        checked.compare(published)
    checked.load_weights([("c", tensors["c"])])
    checked.compare(published)

    assert model.given == ["a", "b", "c"]
    assert checked.loaded == {"model.a", "model.b", "model.c"}
    tensors["b"][4, 6] += 1
    spoiled = CheckedModel(model)
    spoiled.load_weights(tensors.items())
    with pytest.raises(ValueError, match="1 of 3 tensors are not what was published: b"):
        spoiled.compare(published)


def test_vllm_knows_the_names_of_what_it_is_told() -> None:
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferInitInfo

    info = NCCLWeightTransferInitInfo(
        nccl_unique_id_b64=base64.b64encode(UNIQUE_ID).decode(), rank_offset=1, world_size=2,
        packed=True, packed_buffer_size_bytes=2**20, packed_num_buffers=2,
    )  # fmt: skip

    assert info.nccl_unique_id_bytes == UNIQUE_ID
