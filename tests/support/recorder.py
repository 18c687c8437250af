"""The test itself as the trainer: it trains nothing, and writes down all that it is told.

Speaks gRPC by the protos alone: no client code of headrace's is between it and the answers. The
history is append-only and lies outside of the system, for the judge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from crc32c import crc32c
from watcher import AGAIN_S, RECONNECT, Watcher

from headrace.v1 import prompt_pb2, store_pb2, store_pb2_grpc
from headrace.v1 import replay_pb2 as pb
from headrace.v1.trajectory_pb2 import Trajectory
from headrace.weights.directory import prune, write

if TYPE_CHECKING:
    from headrace.v1.store_pb2_grpc import TrajectoryStoreServiceAsyncStub

WAIT_S = 2.0
OUTAGE_S = 60.0
"""How long nobody may answer; restarts take seconds, on a busy machine some more."""


class Recorder(Watcher):
    """A trainer that learns nothing.

    `step` is the one it works on; `steps_done` wakes who waits for progress. `save` writes the
    files of a version.
    """

    def __init__(
        self,
        replay: str,
        store: str,
        weights: Path,
        *,
        run_id: str,
        part_count: int = 1,
        save: Callable[[Path, int], None],
    ) -> None:
        super().__init__(grpc.aio.insecure_channel(replay, RECONNECT), outage_s=OUTAGE_S)
        self.step = 1
        self.ended = False
        self.incarnation = 0
        self.lineage = ""
        self.total_steps = 0
        self._weights = weights
        self._run_id = run_id
        self._part_count = part_count
        self._save = save
        self._progress = asyncio.Condition()
        self._store_channel = grpc.aio.insecure_channel(store, RECONNECT)
        self.store: TrajectoryStoreServiceAsyncStub = store_pb2_grpc.TrajectoryStoreServiceStub(
            self._store_channel
        )

    async def close(self) -> None:
        await super().close()
        await self._store_channel.close()

    # -- the trainer's calls

    async def begin(self) -> None:
        """Register, wait for the feed, publish the initial weights."""
        while not self.total_steps:
            answer = await self.call(
                "RegisterTrainer", pb.RegisterTrainerRequest(trainer_id="recorder")
            )
            self.incarnation, self.lineage = answer.incarnation, answer.lineage
            self.total_steps = answer.total_steps
            await asyncio.sleep(0 if self.total_steps else AGAIN_S)
        await self.publish(0)

    async def publish(self, version: int) -> None:
        """Write weights, and announce them."""
        place = {"run_id": self._run_id, "lineage": self.lineage}
        directory, checksum = await asyncio.to_thread(
            lambda: write(
                self._weights,
                **place,
                version=version,
                write_files=lambda directory: self._save(directory, version),
            )
        )
        weights = prompt_pb2.PublishedWeights(
            id=prompt_pb2.WeightsId(lineage=self.lineage, version=version),
            uri=str(directory),
            checksum=checksum,
        )
        request = pb.PublishWeightsRequest(incarnation=self.incarnation, weights=weights)
        answer = await self.call("PublishWeights", request)
        prune(self._weights, **place, oldest_needed=answer.oldest_needed_version)

    async def run(self, steps: int | None = None) -> None:
        """Train to the end, or so many steps."""
        last = None if steps is None else self.step + steps
        while not self.ended and self.step != last:
            await self.train()

    async def train(self) -> None:
        """Do one step."""
        keys = await self.sample()
        if keys is None:
            self.ended = True
        else:
            await self.commit(keys)
        if self.ended:
            await self.call("EndRun", pb.EndRunRequest(incarnation=self.incarnation))
        async with self._progress:
            self._progress.notify_all()

    async def sample(self) -> list[str] | None:
        """Get the step's batch and read it; give the keys, or None when there are no more."""
        keys: list[str] = []
        for part in range(self._part_count):
            groups = await self._sample(part)
            if groups is None:
                return None
            keys += [ref.key for group in groups for ref in group.trajectories]
        return keys

    async def commit(self, keys: Sequence[str]) -> None:
        """Commit the step, publish its weights, let its trajectories go."""
        request = pb.CommitStepRequest(incarnation=self.incarnation, step=self.step)
        answer = await self.call("CommitStep", request)
        await self.publish(self.step)
        self.ended = answer.ended
        with contextlib.suppress(grpc.aio.AioRpcError):  # the store sweeps what is left
            await self.store.DeleteTrajectories(
                store_pb2.DeleteTrajectoriesRequest(keys=keys), timeout=5
            )
        self.step += 1

    async def reached(self, step: int) -> None:
        """Wait until this step is worked on, or the run has ended."""
        async with self._progress:
            await self._progress.wait_for(lambda: self.step >= step or self.ended)

    async def _sample(self, part: int) -> Sequence[prompt_pb2.SampledGroup] | None:
        """Get a part with all its trajectories; None when there are no more."""
        request = pb.SampleBatchRequest(
            incarnation=self.incarnation,
            step=self.step,
            part=part,
            part_count=self._part_count,
            wait_s=WAIT_S,
        )
        while True:
            answer = await self.call("SampleBatch", request, timeout_s=WAIT_S + 5)
            if answer.status == pb.SAMPLE_STATUS_DATA_ENDED:
                return None
            if answer.status != pb.SAMPLE_STATUS_READY:
                continue
            keys = [ref.key for group in answer.groups for ref in group.trajectories]
            read = {row.key for row in await self.read(keys)}
            lost = [
                group
                for group in answer.groups
                if not read.issuperset(ref.key for ref in group.trajectories)
            ]
            if not lost:
                return list(answer.groups)
            request_back = pb.ReturnGroupsRequest(
                incarnation=self.incarnation,
                step=self.step,
                part=part,
                uids=[group.uid for group in lost],
                attempts=[group.attempt for group in lost],
                error="the recorder cannot read them",
            )
            await self.call("ReturnGroups", request_back)

    async def read(self, keys: Sequence[str]) -> tuple[Trajectory, ...]:
        """Read trajectories; those with a wrong checksum count as missing."""
        request = store_pb2.GetTrajectoriesRequest(keys=keys)

        async def once() -> tuple[Trajectory, ...]:
            return tuple([row async for row in _rows(self.store, request)])

        return await self._insist("GetTrajectories", request, once)


async def _rows(
    store: TrajectoryStoreServiceAsyncStub, request: store_pb2.GetTrajectoriesRequest
) -> AsyncIterator[Trajectory]:
    pieces = b""
    async for answer in store.GetTrajectories(request, timeout=10):
        for chunk in answer.chunks:
            assert chunk.offset_bytes == len(pieces), chunk.key
            pieces += chunk.data
            if len(pieces) < chunk.total_bytes:
                continue
            if crc32c(pieces) == chunk.crc32c:
                yield Trajectory.FromString(pieces)
            pieces = b""
