"""How fast trajectories go into the store and come back, beside TransferQueue used directly.

Three ways, each with its server in a process of its own, measured in turn in one run:

- `store`: this project's gRPC service, one call for all trajectories.
- `peer, one by one`: a kv put per trajectory with its fields as tensors and a tag, all puts at
  once on one event loop; read back in one batch. This is how verl's agent loops use TransferQueue.
- `peer, batch`: the same fields as ragged tensors, in one batch put.

Times are of the client: from messages or tensors in memory to the confirmation, and back. Only
the ratios of one run mean anything on a shared machine.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from headrace.config.config import Config
from headrace.log import configure
from headrace.rpc import announce
from headrace.rpc.channel import open_channel
from headrace.rpc.process import ProcessOptions
from headrace.rpc.server import bind, create_server
from headrace.rpc.waits import Waits
from headrace.store.nodes import Nodes
from headrace.store.process import run
from headrace.trajectory.client import get_trajectories, put_trajectories
from headrace.v1 import replay_pb2, replay_pb2_grpc, store_pb2_grpc
from headrace.v1 import store_pb2 as pb
from headrace.v1.trajectory_pb2 import Trajectory

ROUNDS = 10
PARTITION = "train"
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Load:
    """How many trajectories go into one call, and how long they are."""

    name: str
    count: int
    tokens: int
    """Response tokens each; a token takes about 7 bytes of a trajectory."""


LOADS = (Load("512 x 1 KB", 512, 140), Load("64 x 16 KB", 64, 2300))


@dataclass(frozen=True)
class Rate:
    """Trajectories per second, in the best round: others' load only ever slows a round down."""

    put: float
    get: float


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


async def timed(work: Awaitable[object]) -> float:
    """Return the seconds that `work` takes; it begins when it is awaited."""
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


def rate(load: Load, puts_s: list[float], gets_s: list[float]) -> Rate:
    """Sum up the rounds."""
    return Rate(put=load.count / min(puts_s), get=load.count / min(gets_s))


class Replay(replay_pb2_grpc.ReplayBufferServiceServicer):
    """As much of a replay buffer as a store needs to start."""

    async def RegisterStore(
        self, request: replay_pb2.RegisterStoreRequest, context: object
    ) -> replay_pb2.RegisterStoreResponse:
        """Take note."""
        return replay_pb2.RegisterStoreResponse()

    async def FindDeadTrajectories(
        self, request: replay_pb2.FindDeadTrajectoriesRequest, context: object
    ) -> replay_pb2.FindDeadTrajectoriesResponse:
        """Nothing is dead."""
        return replay_pb2.FindDeadTrajectoriesResponse()


def serve_store(config_json: str, announcement: str) -> None:
    """Be the store's process."""
    configure("store", "bench", level="error")
    options = ProcessOptions(name="store", announce=Path(announcement))
    sys.exit(asyncio.run(run(Config.model_validate_json(config_json), options)))


@asynccontextmanager
async def running_store() -> AsyncIterator[store_pb2_grpc.TrajectoryStoreServiceAsyncStub]:
    """Start the store; yield a stub once it has answered."""
    server = create_server(CollectorRegistry())
    replay = Replay()  # type: ignore[abstract]  # the rest is not called
    replay_pb2_grpc.add_ReplayBufferServiceServicer_to_server(replay, server)
    address = bind(server, "127.0.0.1", 0)
    await server.start()
    with tempfile.TemporaryDirectory() as directory:
        announcement = Path(directory) / "store.json"
        config = Config.model_validate(
            {
                "run": {"run_dir": directory, "run_id": "bench"},
                "data": {"source": {"kind": "jsonl", "path": "none"}, "train_batch_size": 1},
                "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "a", "eos": "."}},
                "endpoints": {"replay": address},
            }
        )
        process = SPAWN.Process(
            target=serve_store, args=(config.model_dump_json(), str(announcement))
        )
        process.start()
        try:
            while (announced := announce.read(announcement)) is None:  # noqa: ASYNC110 (a file)
                await asyncio.sleep(0.1)
            async with open_channel(announced.address) as channel:
                stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
                await get_trajectories(stub, ["none"], waits=Waits(stall_after_s=60))
                yield stub
        finally:
            process.terminate()
            process.join()
            await server.stop(None)


async def measure_store(load: Load) -> Rate:
    """Put and get through the gRPC service."""
    puts_s, gets_s = [], []
    async with running_store() as stub:
        for round_number in range(ROUNDS):
            made = trajectories(load, round_number)
            keys = [one.key for one in made]
            puts_s.append(await timed(put_trajectories(stub, made)))
            gets_s.append(await timed(get_trajectories(stub, keys)))
            await stub.DeleteTrajectories(pb.DeleteTrajectoriesRequest(keys=keys), timeout=60)
    return rate(load, puts_s, gets_s)


def serve_peer(pipe: Connection) -> None:
    """Be the process that hosts TransferQueue for its direct users."""
    nodes = Nodes.start(unit_count=1)
    infos = [node.get_zmq_server_info() for node in (nodes.controller, *nodes.units)]
    pipe.send([(info.role.value, info.id, info.ip, info.ports) for info in infos])
    pipe.recv()
    nodes.close()


@asynccontextmanager
async def running_peer() -> AsyncIterator[Any]:
    """Start TransferQueue; yield its package, ready for `async_kv_*`."""
    import transfer_queue
    import transfer_queue.interface
    from transfer_queue.client import TransferQueueClient
    from transfer_queue.utils.enum_utils import Role
    from transfer_queue.utils.zmq_utils import ZMQServerInfo

    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=serve_peer, args=(there,))
    process.start()
    controller, unit = (
        ZMQServerInfo(Role(role), name, ip, ports)
        for role, name, ip, ports in await asyncio.to_thread(here.recv)
    )
    client = TransferQueueClient("bench", controller)
    client.initialize_storage_manager("SimpleStorage", {"zmq_info": {unit.id: unit}})
    transfer_queue.interface._TQ_CLIENT = client
    try:
        yield transfer_queue
    finally:
        client.close()
        here.send(None)
        process.join()


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


async def measure_peer(load: Load, *, batched: bool) -> Rate:
    """Put and get with TransferQueue's own client."""
    import torch
    from tensordict import TensorDict

    tag = {"status": "finished", "prompt_len": 16, "response_len": load.tokens}
    puts_s, gets_s = [], []
    async with running_peer() as tq:

        async def put_batch(keys: list[str], rows: list[dict[str, Any]]) -> None:
            ragged = {
                name: torch.nested.as_nested_tensor(
                    [row[name] for row in rows], layout=torch.jagged
                )
                for name in rows[0]
            }
            await tq.async_kv_batch_put(
                keys, PARTITION, TensorDict(ragged, batch_size=len(keys)), [tag] * len(keys)
            )

        async def put_each(keys: list[str], rows: list[dict[str, Any]]) -> None:
            await asyncio.gather(
                *(
                    tq.async_kv_put(key, PARTITION, fields=row, tag=tag)
                    for key, row in zip(keys, rows, strict=True)
                )
            )

        put = put_batch if batched else put_each
        for round_number in range(ROUNDS):
            made = trajectories(load, round_number)
            keys, rows = [one.key for one in made], [fields_of(one) for one in made]
            puts_s.append(await timed(put(keys, rows)))
            gets_s.append(await timed(tq.async_kv_batch_get(keys, PARTITION)))
            await tq.async_kv_clear(keys, PARTITION)
    return rate(load, puts_s, gets_s)


async def _measure() -> dict[str, dict[str, Rate]]:
    return {
        load.name: {
            "store": await measure_store(load),
            "peer, one by one": await measure_peer(load, batched=False),
            "peer, batch": await measure_peer(load, batched=True),
        }
        for load in LOADS
    }


def measure() -> dict[str, dict[str, float]]:
    """Return, per load, trajectories per second of each way and the store's ratio to it."""
    configure("bench", "bench", level="error")
    results = {}
    for name, rates in asyncio.run(_measure()).items():
        ours = rates["store"]
        figures = {}
        for way, theirs in rates.items():
            figures[f"{way}: put/s"] = theirs.put
            figures[f"{way}: get/s"] = theirs.get
            if way != "store":
                figures[f"store / {way}: put"] = ours.put / theirs.put
                figures[f"store / {way}: get"] = ours.get / theirs.get
        results[name] = figures
    return results


def main() -> None:
    """Print the figures."""
    for load, figures in measure().items():
        print(load)
        for name, figure in figures.items():
            shown = f"{figure:.2f}x" if name.startswith("store /") else f"{figure:,.0f}"
            print(f"  {name:32} {shown:>10}")


if __name__ == "__main__":
    main()
