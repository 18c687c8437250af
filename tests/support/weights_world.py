"""The trainer's side of weights over gRPC: the real service, which can be made to misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from worker_world import serving

from headrace.rollout.download import Downloads
from headrace.rpc.channel import open_channel
from headrace.trainer.progress import Progress
from headrace.trainer.service import TrainerService
from headrace.trainer.weights_groups import WeightsGroups
from headrace.trainer.weights_server import WeightsServer
from headrace.v1 import prompt_pb2, status_pb2, trainer_pb2_grpc
from headrace.v1 import trainer_pb2 as pb
from headrace.weights.directory import write
from headrace.weights.transfer import GRPC_URI

MIB = 2**20


class Giver(TrainerService):
    """Remembers what was asked and sent; `spoil` may change a piece, or fail."""

    def __init__(
        self, root: Path, groups: WeightsGroups | None = None, *, run_id: str = "run"
    ) -> None:
        super().__init__(
            status_pb2.ProcessStatus,
            Progress(),
            WeightsServer(root, run_id=run_id),
            groups=groups,
        )
        self.asked: list[tuple[str, int]] = []
        """File and offset of each call."""
        self.sizes: list[list[int]] = []
        """Bytes of each message, by call."""
        self.spoil: Callable[[str, int, bytes], bytes] = lambda file, piece, data: data

    async def GetWeights(self, request: pb.GetWeightsRequest, context: Any) -> Any:
        self.asked.append((request.file, request.offset_bytes))
        sizes: list[int] = []
        self.sizes.append(sizes)
        async for answer in super().GetWeights(request, context):
            answer.data = self.spoil(request.file, len(sizes), answer.data)
            sizes.append(len(answer.data))
            yield answer


class Wire:
    """A way to an address that is cut once, as soon as `cut_when` says so."""

    def __init__(self, target: str) -> None:
        self.host, _, port = target.rpartition(":")
        self.port = int(port)
        self.cut_when: Callable[[], bool] = lambda: False
        self.carried = 0
        """Bytes from there."""
        self.carrying: set[asyncio.Task[None]] = set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.carrying.add(task)
        there, back = await asyncio.open_connection(self.host, self.port)
        ways = [
            asyncio.ensure_future(self._way(reader, back, counted=False)),
            asyncio.ensure_future(self._way(there, writer, counted=True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # asyncio's streams complain of a task that ends so
            pass
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (back, writer):
                end.close()
                with contextlib.suppress(ConnectionError):
                    await end.wait_closed()
            self.carrying.discard(task)

    async def _way(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counted: bool
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(2**16):
                if counted:
                    self.carried += len(data)
                    if self.cut_when():
                        self.cut_when = lambda: False
                        return
                sink.write(data)
                await sink.drain()


@asynccontextmanager
async def wired(target: str) -> AsyncIterator[tuple[Wire, str]]:
    """Give a wire and its near end's address."""
    wire = Wire(target)
    server = await asyncio.start_server(wire.carry, "127.0.0.1", 0)
    try:
        yield wire, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in wire.carrying:
            task.cancel()
        await asyncio.gather(*wire.carrying, return_exceptions=True)


def publish(
    root: Path, version: int, *, size_bytes: int = 100, write_files: Any = None
) -> prompt_pb2.PublishedWeights:
    """Write a version as a trainer does, and announce it as one that serves it."""

    def save(directory: Path) -> None:
        (directory / "config.json").write_text("{}")
        (directory / "empty").touch()
        content = random.Random(version).randbytes(size_bytes)
        (directory / "model.safetensors").write_bytes(content)

    _, checksum = write(
        root, run_id="run", lineage="main", version=version, write_files=write_files or save
    )
    return prompt_pb2.PublishedWeights(
        id=prompt_pb2.WeightsId(lineage="main", version=version), uri=GRPC_URI, checksum=checksum
    )


class Town:
    """A trainer that gives weights and a worker's downloads, a wire between them."""

    def __init__(self, directory: Path) -> None:
        self.given = directory / "given"
        self.got = directory / "got"
        self.given.mkdir()
        self.got.mkdir()
        self.giver = Giver(self.given)
        self.wire: Wire
        self.stub: Any
        self.downloads: Downloads

    def versions(self) -> list[str]:
        """Begin of the names of what the worker has."""
        return sorted(path.name[:9] for path in self.got.iterdir())


@asynccontextmanager
async def made_town(directory: Path) -> AsyncIterator[Town]:
    async with AsyncExitStack() as stack:
        town = Town(directory)
        address = await stack.enter_async_context(
            serving(lambda s: trainer_pb2_grpc.add_TrainerServiceServicer_to_server(town.giver, s))
        )
        town.wire, near = await stack.enter_async_context(wired(address))
        channel = await stack.enter_async_context(open_channel(near))
        town.stub = trainer_pb2_grpc.TrainerServiceStub(channel)
        town.downloads = Downloads(town.stub, town.got)
        yield town
