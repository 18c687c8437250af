"""A worker whose engine can be sent weights: when it takes them so, and what it does if it can't."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import save_file
from sending import Behaviour, started
from weights_world import Giver
from worker_scene import World, eventually, made_world
from worker_world import serving

from headrace.rollout.direct import FIRST_PAUSE_S, DirectWay
from headrace.rollout.download import Downloads
from headrace.rollout.engines.base import EngineError, EngineLostError
from headrace.rollout.engines.receiver import Sender
from headrace.rollout.engines.scripted import ScriptedEngine
from headrace.rollout.engines.weights import confirm, read_tensors
from headrace.rollout.weights_group import WeightsGroup
from headrace.rpc.channel import open_channel
from headrace.trainer.tensors import list_tensors
from headrace.trainer.weights_groups import WeightsGroups
from headrace.v1 import prompt_pb2, trainer_pb2_grpc
from headrace.weights.tensors import TENSORS_NAME, WEIGHTS_NAME
from headrace.weights.transfer import GRPC_URI


class Receiving(ScriptedEngine):
    """Takes weights both ways, as an engine on a GPU does; `trouble` comes after they were sent."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ways: list[tuple[str, int]] = []
        """How it was asked to take which version."""
        self.trouble: EngineError | None = None

    async def load(self, weights: prompt_pb2.PublishedWeights) -> None:
        self.ways.append(("load", weights.id.version))
        await super().load(weights)

    async def receive(self, weights: prompt_pb2.PublishedWeights, sender: Sender) -> None:
        self.ways.append(("receive", weights.id.version))
        directory = confirm(weights, without=[WEIGHTS_NAME])
        assert not (directory / WEIGHTS_NAME).exists()
        assert read_tensors(directory)["names"] == ["a"]
        try:
            if not sender.is_open:
                await sender.open(1)
            await sender.send(weights.id)
            if self.trouble is not None:
                raise self.trouble
        except EngineError:
            await sender.close()
            raise
        await super().load(weights)


class Place:
    """A worker, and a trainer that sends as its processes behave."""

    def __init__(self, world: World, got: Path) -> None:
        self.world = world
        self.got = got
        self.behaviour: Behaviour = "good"
        self.groups = WeightsGroups("cuda:0", timeout_s=60, start=lambda: started(self.behaviour)())
        self.giver = Giver(world.root, self.groups)
        self.engine: Receiving
        self.time = 1000.0
        """Of the way past the files."""

    async def publish(self, version: int, *, listed: bool = True) -> None:
        def save(directory: Path) -> None:
            save_file({"a": torch.full((3,), version)}, directory / WEIGHTS_NAME)
            if listed:
                tensors = list_tensors(directory / WEIGHTS_NAME, "cpu")
                (directory / TENSORS_NAME).write_bytes(tensors.to_bytes())

        await self.world.publish(version, uri=GRPC_URI, write_files=save)

    async def start(self) -> None:
        address = await self.world.stack.enter_async_context(
            serving(lambda s: trainer_pb2_grpc.add_TrainerServiceServicer_to_server(self.giver, s))
        )
        channel = await self.world.stack.enter_async_context(open_channel(address))
        stub = trainer_pb2_grpc.TrainerServiceStub(channel)
        downloads = Downloads(stub, self.got)

        def direct(engine: Receiving) -> DirectWay:
            self.engine = engine
            group = WeightsGroup(stub, worker_id="worker-0", timeout_s=60)
            return DirectWay(engine, group, downloads, now=lambda: self.time)

        await self.world.start(downloads=downloads, direct=direct, engine_type=Receiving)

    async def follows(self, version: int, *, listed: bool = True) -> None:
        """Have the worker take a version; what has sent it may say so a little later."""
        await self.publish(version, listed=listed)
        await eventually(lambda: self.version == version and not self.is_sending)

    @property
    def is_sending(self) -> bool:
        acts = (group._act for group in self.groups)
        return any(act is not None and not act.done() for act in acts)

    @property
    def version(self) -> int:
        current = self.world.worker.weights.current
        return current.id.version if current is not None else -1

    def files(self) -> list[str]:
        """Which big files were got, by the order."""
        return [file for file, _ in self.giver.asked if file == WEIGHTS_NAME]


@pytest_asyncio.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    (tmp_path / "weights").mkdir()
    (tmp_path / "got").mkdir()
    async with made_world(tmp_path / "weights") as world:
        place = Place(world, tmp_path / "got")
        yield place
        await place.groups.close()


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Give what the worker says of weights that it did not receive."""
    return lambda: [
        line for line in capsys.readouterr().out.splitlines() if "weights_not_received" in line
    ]


async def test_the_first_weights_come_as_a_file_and_later_ones_without(place: Place) -> None:
    await place.publish(0)
    await place.start()
    await eventually(lambda: place.version == 0)
    await place.follows(1)
    await place.follows(2)

    assert place.engine.ways == [("load", 0), ("receive", 1), ("receive", 2)]
    assert len(place.files()) == 1
    assert len(list(place.groups)) == 1


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("refuses", "NCCL only supports CUDA and ROCm backends"),
        ("fails to join", "remote process exited"),
    ],
)
async def test_what_cannot_be_sent_is_got_as_a_file_which_is_said_once_with_the_reason(
    place: Place, behaviour: Behaviour, reason: str, said: Callable[[], list[str]]
) -> None:
    place.behaviour = behaviour
    await place.publish(0)
    await place.start()
    await eventually(lambda: place.version == 0)
    await place.follows(1)
    await place.follows(2)
    first = list(place.engine.ways)
    place.time += FIRST_PAUSE_S
    await place.follows(3)

    # It is left alone for a while, and then tried again.
    assert first == [("load", 0), ("receive", 1), ("load", 1), ("load", 2)]
    assert place.engine.ways[len(first) :] == [("receive", 3), ("load", 3)]
    assert len(place.files()) == 4
    first_line = said()[0]
    assert "warning" in first_line
    assert reason in first_line or "not there any more" in first_line


async def test_the_same_reason_is_a_warning_once(
    place: Place, said: Callable[[], list[str]]
) -> None:
    place.behaviour = "refuses"
    await place.publish(0)
    await place.start()
    await eventually(lambda: place.version == 0)
    for version in (1, 2, 3):
        place.time += 2 * 3600
        await place.follows(version)

    lines = said()
    assert ["warning" in line for line in lines] == [True, False, False]
    assert all("NCCL only supports CUDA" in line for line in lines)


async def test_an_engine_that_lost_its_weights_on_the_way_gets_the_file_before_it_works_again(
    place: Place,
) -> None:
    await place.publish(0)
    await place.start()
    await eventually(lambda: place.version == 0)
    place.engine.trouble = EngineLostError("1 of 1 tensors are not what was published: a")
    seen: list[int] = []

    def look(file: str, piece: int, data: bytes) -> bytes:
        if file == WEIGHTS_NAME:
            seen.append(place.version)
        return data

    place.giver.spoil = look
    await place.follows(1)

    assert place.engine.ways == [("load", 0), ("receive", 1), ("load", 1)]
    assert seen == [-1]
    assert len(list(place.groups)) == 0


async def test_a_version_without_a_list_of_tensors_is_got_as_a_file(
    place: Place, said: Callable[[], list[str]]
) -> None:
    await place.publish(0)
    await place.start()
    await eventually(lambda: place.version == 0)
    await place.follows(1, listed=False)

    assert place.engine.ways == [("load", 0), ("receive", 1), ("load", 1)]
    [line] = said()
    assert "has no tensors.json" in line
