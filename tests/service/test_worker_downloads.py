"""A worker that gets its weights from the trainer: how it follows them, and what it waits for."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from ports import free_port
from weights_world import Giver
from worker_scene import World, eventually, made_world, waits_of
from worker_world import serving

from headrace.errors import UsageError
from headrace.rollout.download import Downloads
from headrace.rollout.scratch import PREFIX, Scratch
from headrace.rpc.channel import open_channel
from headrace.v1 import trainer_pb2_grpc
from headrace.weights.directory import prune
from headrace.weights.transfer import GRPC_URI


class Place:
    """A worker's world, and a trainer that comes and goes."""

    def __init__(self, world: World, got: Path) -> None:
        self.world = world
        self.giver = Giver(world.root)
        self.got = got
        self.port = free_port()
        self._life = AsyncExitStack()

    async def publish(self, version: int) -> None:
        await self.world.publish(version, uri=GRPC_URI)

    async def trainer_comes(self) -> None:
        await self._life.enter_async_context(
            serving(
                lambda s: trainer_pb2_grpc.add_TrainerServiceServicer_to_server(self.giver, s),
                self.port,
            )
        )

    async def trainer_goes(self) -> None:
        await self._life.aclose()

    async def start(self) -> None:
        """Start the worker; the trainer must have come once."""
        channel = await self.world.stack.enter_async_context(open_channel(f"127.0.0.1:{self.port}"))
        stub = trainer_pb2_grpc.TrainerServiceStub(channel)
        await self.world.start(downloads=Downloads(stub, self.got))

    @property
    def version(self) -> int:
        current = self.world.worker.weights.current
        return current.id.version if current is not None else -1


@pytest_asyncio.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    (tmp_path / "weights").mkdir()
    (tmp_path / "got").mkdir()
    async with made_world(tmp_path / "weights") as world:
        place = Place(world, tmp_path / "got")
        await place.trainer_comes()
        yield place
        await place.trainer_goes()


async def test_a_worker_loads_what_the_trainer_serves_and_keeps_the_newest_only(
    place: Place,
) -> None:
    await place.publish(0)
    place.world.ledger.feed("e0r0")
    await place.start()
    await place.world.ledger.until(lambda: place.world.ledger.is_whole("e0r0"))
    await place.publish(1)
    await eventually(lambda: place.version == 1)

    assert place.world.ledger.requests("LeasePrompts")[-1].weights.version in (0, 1)
    await eventually(lambda: len(list(place.got.iterdir())) == 1)
    assert [path.name[:9] for path in place.got.iterdir()] == ["v00000001"]


async def test_a_trainer_that_is_away_is_waited_for_by_name(place: Place) -> None:
    await place.publish(0)
    await place.trainer_goes()
    await place.start()
    await eventually(lambda: "weights to arrive" in waits_of(place.world))
    [wait] = [each for each in place.world.waits.snapshot() if each.name == "weights to arrive"]
    await place.trainer_comes()
    await eventually(lambda: place.version == 0)

    assert wait.owner == "trainer"
    assert wait.ends_when.startswith("it gives version 0; last: ")
    assert "weights to arrive" not in waits_of(place.world)


async def test_a_trainer_that_is_away_when_the_run_is_over_is_not_asked_any_more(
    place: Place,
) -> None:
    await place.publish(0)
    await place.trainer_goes()
    await place.start()
    await eventually(lambda: "weights to arrive" in waits_of(place.world))
    place.world.ledger.ended = True
    await place.world.ledger.notify()
    await eventually(lambda: not waits_of(place.world))
    await place.trainer_comes()
    asked = len(place.world.ledger.requests("AwaitWeights"))
    await asyncio.sleep(0)

    assert not place.giver.asked
    assert len(place.world.ledger.requests("AwaitWeights")) == asked


async def test_weights_that_were_pruned_on_the_way_make_room_for_the_newest(place: Place) -> None:
    await place.publish(0)
    prune(place.world.root, run_id="run", lineage="main", oldest_needed=1)
    await place.start()
    await eventually(lambda: place.giver.asked)
    assert place.version == -1
    await place.publish(1)

    await eventually(lambda: place.version == 1)


async def test_a_flipped_byte_is_got_again_without_a_word_from_anybody(place: Place) -> None:
    def flip_the_first(file: str, piece: int, data: bytes) -> bytes:
        return b"?" + data[1:] if len(place.giver.asked) == 1 else data

    place.giver.spoil = flip_the_first
    await place.publish(0)
    await place.start()

    await eventually(lambda: place.version == 0)
    assert place.giver.asked == [("manifest.json", 0)] * 2


async def test_a_worker_that_was_not_told_of_the_transport_says_so(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    await place.publish(0)
    await place.world.start()
    said = ""

    def says() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "set weights.transport: grpc for this worker, too" in said

    await eventually(says)
    assert place.version == -1


DYING = """
import os, pathlib, signal, sys
from headrace.rollout.scratch import Scratch
with Scratch(pathlib.Path(sys.argv[1])) as scratch:
    (scratch.path / "half").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_worker_left_is_removed_by_the_next_and_what_is_used_is_not(
    tmp_path: Path,
) -> None:
    died = subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], check=False)
    [left] = tmp_path.iterdir()
    other = tmp_path / "headrace-others"
    other.mkdir()
    with Scratch(tmp_path) as first, Scratch(tmp_path) as second:
        (second.path / "model").write_text("x")
        found = {path for path in tmp_path.iterdir() if path != other}

        assert found == {first.path, second.path}
        assert left not in found
        assert first.path.stat().st_mode & 0o777 == 0o700
    assert died.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == [other]


def test_a_link_is_no_leftover(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "precious").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(target)
    with Scratch(tmp_path):
        pass

    assert (target / "precious").exists()


def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match=r"weights\.tmpdir: no folder can be made in .*file"),
        Scratch(tmp_path / "file"),
    ):
        pass
