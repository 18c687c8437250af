"""How fast trajectories go into the store and come back, beside TransferQueue used directly.

Three ways, measured in turn in one run, each with its server in a process of its own:

- the store: this project's gRPC service, one call for all trajectories.
- one by one: a kv put per trajectory with its fields as tensors and a tag, all puts at once on
  one event loop; read back in one batch. This is how verl's agent loops use TransferQueue.
- in a batch: the same fields as ragged tensors, in one batch put.

Times are of the client: from messages or tensors in memory to the confirmation, and back.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from bench_table import Row, per_second
from interleave import Ratio
from peer_process import PARTITION
from replay_process import running_replay

from headrace.config.config import Config
from headrace.log import configure
from headrace.rpc import announce
from headrace.rpc.channel import open_channel
from headrace.rpc.process import ProcessOptions
from headrace.rpc.waits import Waits
from headrace.store.process import run
from headrace.trajectory.client import get_trajectories, put_trajectories
from headrace.v1 import store_pb2 as pb
from headrace.v1 import store_pb2_grpc
from headrace.v1.trajectory_pb2 import Trajectory

StoreStub: TypeAlias = "store_pb2_grpc.TrajectoryStoreServiceAsyncStub"
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Load:
    """How many trajectories go into one call, and how long they are."""

    name: str
    count: int
    tokens: int
    """Response tokens each; a token takes about 7 bytes of a trajectory."""

    @property
    def tag(self) -> dict[str, Any]:
        """Give the peer's tag of such a trajectory."""
        return {"status": "finished", "prompt_len": 16, "response_len": self.tokens}


LOADS = (Load("512 x 1 KB", 512, 140), Load("64 x 16 KB", 64, 2300))
QUICK_LOADS = (Load("128 x 1 KB", 128, 140), Load("32 x 16 KB", 32, 2300))


def trajectories(load: Load, round_number: int) -> list[Trajectory]:
    """Make the trajectories of one round."""
    return [
        Trajectory(
            schema_version=1,
            key=f"e0r{i}_{load.tokens}_0_bencha{round_number}",
            prompt_token_ids=range(16),
            response_token_ids=[j % 30_000 for j in range(load.tokens)],
            logprobs=[-0.5] * load.tokens,
            loss_mask=[True] * load.tokens,
            reward=1.0,
        )
        for i in range(load.count)
    ]


def serve_store(config_json: str, announcement: str) -> None:
    """Be the store's process."""
    configure("store", "bench", level="error")
    options = ProcessOptions(name="store", announce=Path(announcement))
    sys.exit(asyncio.run(run(Config.model_validate_json(config_json), options)))


@asynccontextmanager
async def running_store(*, durability: str = "log") -> AsyncIterator[StoreStub]:
    """Start the store and the replay buffer it belongs to; yield a stub once it has answered."""
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        replay = await stack.enter_async_context(
            running_replay(scratch / "replay", batch_size=1, n=1, window_batches=1)
        )
        announcement = scratch / "store.json"
        config = Config.model_validate(
            {
                "run": {"run_dir": str(scratch), "run_id": "bench"},
                "data": {"source": {"kind": "jsonl", "path": "none"}, "train_batch_size": 1},
                "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "a", "eos": "."}},
                "store": {"durability": durability},
                "endpoints": {"replay": replay.address},
            }
        )
        process = SPAWN.Process(
            target=serve_store, args=(config.model_dump_json(), str(announcement))
        )
        process.start()
        stack.callback(process.join)
        stack.callback(process.terminate)
        while (announced := announce.read(announcement)) is None:  # noqa: ASYNC110 (a file)
            await asyncio.sleep(0.1)
        channel = await stack.enter_async_context(open_channel(announced.address))
        stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
        await get_trajectories(stub, ["none"], waits=Waits(stall_after_s=60))
        yield stub


def fields_of(one: Trajectory) -> dict[str, Any]:
    """Return a trajectory as the peer's tensors."""
    import torch

    return {
        "prompts": torch.tensor(one.prompt_token_ids),
        "responses": torch.tensor(one.response_token_ids),
        "response_mask": torch.tensor(one.loss_mask, dtype=torch.int64),
        "rollout_log_probs": torch.tensor(one.logprobs),
        "rm_scores": torch.tensor([one.reward]),
    }


class Times:
    """Trajectories per second of each round, by what was done."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._rates: dict[str, list[float]] = {}

    async def take(self, name: str, work: Awaitable[object]) -> None:
        """Time a put or a get of the whole load."""
        begun = time.perf_counter()
        await work
        rate = self._load.count / (time.perf_counter() - begun)
        self._rates.setdefault(name, []).append(rate)

    def row(self, what: str, way: str) -> Row:
        """Compare the store with a way to use the peer; the first round is not counted."""
        ours, theirs = self._rates[f"store {what}"][1:], self._rates[f"{way} {what}"][1:]
        return Row(
            f"{self._load.name}, {what} / {way}",
            per_second(median(ours)),
            per_second(median(theirs)),
            str(Ratio.of(ours, theirs)),
        )


async def _through_store(stub: StoreStub, times: Times, made: list[Trajectory]) -> None:
    keys = [one.key for one in made]
    await times.take("store put", put_trajectories(stub, made))
    await times.take("store get", get_trajectories(stub, keys))
    await stub.DeleteTrajectories(pb.DeleteTrajectoriesRequest(keys=keys), timeout=60)


async def _one_by_one(tq: Any, times: Times, load: Load, made: list[Trajectory]) -> None:
    keys, rows = [one.key for one in made], [fields_of(one) for one in made]
    puts = (
        tq.async_kv_put(key, PARTITION, fields=row, tag=load.tag)
        for key, row in zip(keys, rows, strict=True)
    )
    await times.take("one by one put", asyncio.gather(*puts))
    await times.take("one by one get", tq.async_kv_batch_get(keys, PARTITION))
    await tq.async_kv_clear(keys, PARTITION)


async def _in_a_batch(tq: Any, times: Times, load: Load, made: list[Trajectory]) -> None:
    import torch
    from tensordict import TensorDict

    keys, rows = [one.key for one in made], [fields_of(one) for one in made]

    async def put() -> None:
        ragged = {
            name: torch.nested.as_nested_tensor([row[name] for row in rows], layout=torch.jagged)
            for name in rows[0]
        }
        fields = TensorDict(ragged, batch_size=len(keys))
        await tq.async_kv_batch_put(keys, PARTITION, fields, [load.tag] * len(keys))

    await times.take("in a batch put", put())
    await times.take("in a batch get", tq.async_kv_batch_get(keys, PARTITION))
    await tq.async_kv_clear(keys, PARTITION)


async def _measure(stub: StoreStub, tq: Any, load: Load, rounds: int) -> Times:
    times = Times(load)
    for number in range(rounds + 1):
        made = trajectories(load, number)
        ways: list[Callable[[], Awaitable[None]]] = [
            partial(_through_store, stub, times, made),
            partial(_one_by_one, tq, times, load, made),
            partial(_in_a_batch, tq, times, load, made),
        ]
        for way in ways if number % 2 else reversed(ways):
            await way()
    return times


async def measure(tq: Any, *, quick: bool) -> list[Row]:
    """Measure the store and both ways to use the peer."""
    rows = [Row("store, trajectories / the peer's tensors")]
    async with running_store() as stub:
        for load in QUICK_LOADS if quick else LOADS:
            times = await _measure(stub, tq, load, rounds=3 if quick else 11)
            rows += [
                times.row(what, way)
                for what in ("put", "get")
                for way in ("one by one", "in a batch")
            ]
    return rows
