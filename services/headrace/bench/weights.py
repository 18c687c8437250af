"""How long a version of the weights takes from the trainer's files to a worker's, checked.

- dir: written with checksums and synced; the worker verifies every file where it lies.
- grpc: written the same way, served by the trainer's service, received into a folder of the
  worker's own and verified on the way.
- bare: the same bytes written and read once, no checksum and no sync.

TransferQueue is not used for weights. Loading them into a model is not measured.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from headrace.bench.child import Child, running, tell
from headrace.bench.findings import Findings
from headrace.bench.laps import Lap, Laps, interleaved
from headrace.bench.setting import Setting
from headrace.bench.stopwatch import Stopwatch, cpu_of
from headrace.bench.table import Row, microseconds
from headrace.rollout.download import Downloads
from headrace.rpc.channel import open_channel
from headrace.trainer.progress import Progress
from headrace.trainer.service import TrainerService
from headrace.trainer.weights_server import WeightsServer
from headrace.v1 import prompt_pb2, status_pb2, trainer_pb2_grpc
from headrace.weights.directory import name_of, prune, verify, write
from headrace.weights.transfer import GRPC_URI

MIB = 2**20
RUN_ID, LINEAGE = "bench", "main"


def _serve(pipe: Connection, root: str) -> None:
    """Be the trainer, as far as it gives weights."""

    async def serve() -> None:
        from prometheus_client import CollectorRegistry

        from headrace.rpc.server import bind, create_server

        server = create_server(CollectorRegistry(), process="trainer")
        weights = WeightsServer(Path(root), run_id=RUN_ID)
        TrainerService(status_pb2.ProcessStatus, Progress(), weights).add_to(server)
        address = bind(server, "127.0.0.1", 0)
        await server.start()
        tell(pipe, address)
        await server.wait_for_termination()

    asyncio.run(serve())


class Publisher:
    """Writes versions as the trainer does."""

    def __init__(self, root: Path, content: bytes) -> None:
        self._root = root
        self._content = content
        self._version = 0

    def publish(self) -> prompt_pb2.PublishedWeights:
        """Write the next version; the ones before it go."""
        self._version += 1
        prune(self._root, run_id=RUN_ID, lineage=LINEAGE, oldest_needed=self._version)
        _, checksum = write(
            self._root,
            run_id=RUN_ID,
            lineage=LINEAGE,
            version=self._version,
            write_files=self.write_files,
        )
        return prompt_pb2.PublishedWeights(
            id=prompt_pb2.WeightsId(lineage=LINEAGE, version=self._version),
            uri=GRPC_URI,
            checksum=checksum,
        )

    def write_files(self, folder: Path) -> None:
        """Write the files alone."""
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(self._content)

    def where(self, weights: prompt_pb2.PublishedWeights) -> Path:
        """Give a version's directory."""
        return self._root / name_of(RUN_ID, LINEAGE, weights.id.version)


@asynccontextmanager
async def _giving(root: Path, scratch: Path) -> AsyncIterator[tuple[Child, Downloads]]:
    """Serve a directory of versions, and be the worker that gets them."""
    scratch.mkdir()  # noqa: ASYNC240 (nothing runs beside it)
    async with (
        running("trainer", _serve, str(root)) as child,
        open_channel(await child.receive()) as channel,
    ):
        yield child, Downloads(trainer_pb2_grpc.TrainerServiceStub(channel), scratch)


async def measure(setting: Setting) -> Findings:
    """Measure both transports, and a bare copy."""
    size_mib, rounds = (16, 3) if setting.is_quick else (64, 9)
    roots = {name: setting.scratch / name for name in ("dir", "grpc", "bare")}
    for root in roots.values():
        root.mkdir()
    content = os.urandom(MIB) * size_mib
    publishers = {name: Publisher(root, content) for name, root in roots.items()}
    async with _giving(roots["grpc"], setting.scratch / "worker") as (child, downloads):
        watch = Stopwatch(cpu_of(child.pid))

        async def by_directory() -> Lap:
            publisher = publishers["dir"]
            with watch.lap(size_mib) as taken:
                weights = await asyncio.to_thread(publisher.publish)
                await asyncio.to_thread(verify, publisher.where(weights))
            return taken.lap

        async def by_grpc() -> Lap:
            with watch.lap(size_mib) as taken:
                weights = await asyncio.to_thread(publishers["grpc"].publish)
                await downloads.get(weights)
            return taken.lap

        async def bare() -> Lap:
            with watch.lap(size_mib) as taken:
                await asyncio.to_thread(_copy, publishers["bare"], roots["bare"])
            return taken.lap

        ways = {"dir": by_directory, "grpc": by_grpc, "bare": bare}
        laps = await interleaved(ways, rounds=rounds)
    return Findings(
        rows=[
            Row(f"weights, {size_mib} MiB: CPU per MiB; MiB per second / a bare copy's"),
            *(_row(name, laps) for name in ("dir", "grpc")),
            Row("grpc / dir (both headrace)", peer=laps["grpc"].over(laps["dir"])),
        ],
        laps={f"weights, {name}": done for name, done in laps.items()},
    )


def _copy(publisher: Publisher, root: Path) -> None:
    folder = root / "copy"
    folder.mkdir()
    publisher.write_files(folder)
    for path in folder.iterdir():
        path.read_bytes()
    shutil.rmtree(folder)


def _row(name: str, laps: dict[str, Laps]) -> Row:
    ours = laps[name]
    what = {
        "dir": "transport: dir, written and verified",
        "grpc": "transport: grpc, written, sent and verified",
    }
    return Row(what[name], microseconds(ours.cpu_per_item_s), bare=ours.over(laps["bare"]))
