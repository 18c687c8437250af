"""The replay buffer in a process of its own: the real one, every append synced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headrace.bench.child import running
from headrace.bench.client import Client
from headrace.bench.stopwatch import cpu_of
from headrace.config.config import Config
from headrace.replay.process import run
from headrace.rpc.channel import open_channel
from headrace.rpc.process import ProcessOptions
from headrace.v1 import replay_pb2_grpc


@dataclass(frozen=True)
class Replay:
    """A replay buffer that runs, and a client of it."""

    client: Client
    cpu_s: Callable[[], float]
    """CPU seconds that its process has used."""


def _serve(_pipe: Connection, config_json: str, announcement: str) -> None:
    options = ProcessOptions(name="replay", announce=Path(announcement))
    asyncio.run(run(Config.model_validate_json(config_json), options))


@asynccontextmanager
async def running_replay(
    directory: Path,
    *,
    batch_size: int,
    n: int,
    window_batches: float,
    opens_feed: bool = True,
    journal: Mapping[str, Any] | None = None,
    run_id: str = "bench",
) -> AsyncIterator[Replay]:
    """Start one whose journal lies in the directory, or as said, and open a run in it.

    Raises:
        UsageError: it does not come up.

    """
    directory.mkdir()  # noqa: ASYNC240 (nothing runs beside it)
    announcement = directory / "replay.json"
    config = Config.model_validate(
        {
            "run": {"run_dir": str(directory), "run_id": run_id},
            "data": {"source": {"kind": "jsonl", "path": "none"}, "train_batch_size": batch_size},
            "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "a", "eos": "."}},
            "rollout": {"n": n},
            "sampler": {"max_off_policy_strategy": "none"},
            "trainer": {"num_warmup_batches": window_batches},
            "ledger": {"lease_s": 3600.0},
            "journal": dict(journal or {}),
        }
    )
    async with running(
        "replay buffer", _serve, config.model_dump_json(), str(announcement)
    ) as child:
        announced = await child.announced(announcement)
        async with open_channel(announced.address) as channel:
            stub = replay_pb2_grpc.ReplayBufferServiceStub(channel)
            client = Client(stub, announced.address)
            await child.answers(client.open(opens_feed=opens_feed))
            yield Replay(client, cpu_of(child.pid))
