"""The replay buffer in a process of its own, and what the others ask of it.

It is the real one, with its file journal and every append synced.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench_ledger import STORE, WEIGHTS, completed, new_prompts

from headrace.config.config import Config
from headrace.log import configure
from headrace.replay.process import run
from headrace.rpc import announce
from headrace.rpc.calls import persist
from headrace.rpc.channel import open_channel
from headrace.rpc.process import ProcessOptions
from headrace.rpc.waits import Waits
from headrace.v1 import prompt_pb2, replay_pb2_grpc
from headrace.v1 import replay_pb2 as pb

SPAWN = multiprocessing.get_context("spawn")
ROW_COUNT = 10**9


def _serve(config_json: str, announcement: str) -> None:
    configure("replay", "bench", level="error")
    options = ProcessOptions(name="replay", announce=Path(announcement))
    sys.exit(asyncio.run(run(Config.model_validate_json(config_json), options)))


@asynccontextmanager
async def running_replay(
    directory: Path,
    *,
    batch_size: int,
    n: int,
    window_batches: float,
    opens_feed: bool = True,
) -> AsyncIterator[Client]:
    """Start a replay buffer whose journal lies in the directory, and open a run in it."""
    directory.mkdir()  # noqa: ASYNC240 (nothing runs beside it)
    announcement = directory / "replay.json"
    config = Config.model_validate(
        {
            "run": {"run_dir": str(directory), "run_id": "bench"},
            "data": {"source": {"kind": "jsonl", "path": "none"}, "train_batch_size": batch_size},
            "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "a", "eos": "."}},
            "rollout": {"n": n},
            "sampler": {"max_off_policy_strategy": "none"},
            "trainer": {"num_warmup_batches": window_batches},
            "ledger": {"lease_s": 3600.0},
        }
    )
    process = SPAWN.Process(target=_serve, args=(config.model_dump_json(), str(announcement)))
    process.start()
    try:
        while (announced := announce.read(announcement)) is None:  # noqa: ASYNC110 (a file)
            await asyncio.sleep(0.05)
        async with open_channel(announced.address) as channel:
            stub = replay_pb2_grpc.ReplayBufferServiceStub(channel)
            client = Client(stub, announced.address, announced.pid)
            await client.open(opens_feed=opens_feed)
            yield client
    finally:
        process.terminate()
        process.join()


class Client:
    """A feeder, a worker and a trainer of one run, without anything of their own to do."""

    def __init__(
        self, stub: replay_pb2_grpc.ReplayBufferServiceAsyncStub, address: str, pid: int
    ) -> None:
        self.stub = stub
        self.address = address
        self.cursor = 0
        self.step = 1
        self._pid = pid
        self._incarnation = 0
        self._lineage = ""

    async def open(self, *, opens_feed: bool) -> None:
        """Be there: as the store, the trainer with its first weights, and perhaps the feeder."""
        await persist(
            self.stub.GetReplayStatus,
            pb.GetReplayStatusRequest(),
            waits=Waits(stall_after_s=60),
            name="the replay buffer",
            owner="replay buffer",
        )
        if opens_feed:
            await self.stub.OpenFeed(pb.OpenFeedRequest(row_count=ROW_COUNT, fingerprint="bench"))
        await self.stub.RegisterStore(
            pb.RegisterStoreRequest(store_incarnation=STORE, capacity_bytes=10**15)
        )
        trainer = await self.stub.RegisterTrainer(pb.RegisterTrainerRequest(trainer_id="t"))
        self._incarnation, self._lineage = trainer.incarnation, trainer.lineage
        weights = prompt_pb2.PublishedWeights()
        weights.CopyFrom(WEIGHTS)
        weights.id.lineage = self._lineage
        await self.stub.PublishWeights(
            pb.PublishWeightsRequest(incarnation=self._incarnation, weights=weights)
        )

    async def demand(self, wait_s: float) -> int:
        """Wait for demand."""
        wanted = await self.stub.AwaitDemand(pb.AwaitDemandRequest(wait_s=wait_s))
        return wanted.demand

    async def feed(self, count: int) -> None:
        """Register so many prompts in one call."""
        request = pb.RegisterPromptsRequest(
            first_ordinal=self.cursor, prompts=new_prompts(self.cursor, count)
        )
        answer = await self.stub.RegisterPrompts(request)
        assert answer.accepted_count == count, "the window is too small for the benchmark"
        self.cursor = answer.cursor

    async def lease(self, worker: str, count: int, wait_s: float) -> Sequence[prompt_pb2.Lease]:
        """Lease up to so many prompts in one call."""
        answer = await self.stub.LeasePrompts(
            pb.LeasePromptsRequest(
                worker_id=worker,
                max_count=count,
                weights=prompt_pb2.WeightsId(lineage=self._lineage, version=0),
                weights_checksum=WEIGHTS.checksum,
                wait_s=wait_s,
            )
        )
        return answer.leases

    async def complete(self, worker: str, leases: Sequence[prompt_pb2.Lease]) -> None:
        """Complete all sessions of the leases in one call."""
        sessions = [
            session
            for lease in leases
            for session in completed(lease.uid, lease.attempt, lease.missing_sessions)
        ]
        await self.stub.CompleteSessions(
            pb.CompleteSessionsRequest(worker_id=worker, store_incarnation=STORE, sessions=sessions)
        )

    async def sample(self, part: int = 0, part_count: int = 1) -> None:
        """Take a part of the current step, waiting until it is ready."""
        answer = await self.stub.SampleBatch(
            pb.SampleBatchRequest(
                incarnation=self._incarnation,
                step=self.step,
                part=part,
                part_count=part_count,
                wait_s=5.0,
            )
        )
        assert answer.status == pb.SAMPLE_STATUS_READY, answer.blocked_by

    async def commit(self) -> None:
        """Commit the current step."""
        await self.stub.CommitStep(
            pb.CommitStepRequest(incarnation=self._incarnation, step=self.step)
        )
        self.step += 1

    def cpu_s(self) -> float:
        """Give the CPU seconds that this process and the replay buffer's have used so far."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")
