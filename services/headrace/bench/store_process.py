"""The trajectory store in a process of its own: the real one, with the replay buffer it needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.bench.child import running
from headrace.bench.replay import running_replay
from headrace.bench.stopwatch import cpu_of
from headrace.config.config import Config
from headrace.rpc.channel import open_channel
from headrace.rpc.process import ProcessOptions
from headrace.rpc.waits import Waits
from headrace.trajectory.client import get_trajectories
from headrace.v1 import store_pb2_grpc

if TYPE_CHECKING:
    from headrace.v1.store_pb2_grpc import TrajectoryStoreServiceAsyncStub


@dataclass(frozen=True)
class Store:
    """A store that runs."""

    stub: TrajectoryStoreServiceAsyncStub
    cpu_s: Callable[[], float]
    """CPU seconds that its process has used."""


def _serve(_pipe: Connection, config_json: str, announcement: str) -> None:
    from headrace.store.process import run  # loads TransferQueue

    options = ProcessOptions(name="store", announce=Path(announcement))
    asyncio.run(run(Config.model_validate_json(config_json), options))


@asynccontextmanager
async def running_store(scratch: Path, *, durability: str = "log") -> AsyncIterator[Store]:
    """Start the store; yield once it has answered.

    Raises:
        UsageError: it does not come up.

    """
    scratch.mkdir()  # noqa: ASYNC240 (nothing runs beside it)
    announcement = scratch / "store.json"
    async with running_replay(scratch / "replay", batch_size=1, n=1, window_batches=1) as replay:
        config = Config.model_validate(
            {
                "run": {"run_dir": str(scratch), "run_id": "bench"},
                "data": {"source": {"kind": "jsonl", "path": "none"}, "train_batch_size": 1},
                "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "a", "eos": "."}},
                "store": {"durability": durability},
                "endpoints": {"replay": replay.client.address},
            }
        )
        async with running("store", _serve, config.model_dump_json(), str(announcement)) as child:
            announced = await child.announced(announcement)
            async with open_channel(announced.address) as channel:
                stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
                await child.answers(get_trajectories(stub, ["none"], waits=Waits(stall_after_s=60)))
                yield Store(stub, cpu_of(child.pid))
