"""Where batches come from: groups from the replay buffer, their trajectories from the store.

Knows the calls that a part of a batch takes; knows nothing of tensors or of learning.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.failpoints import reach
from headrace.log import get_logger
from headrace.rpc.calls import persist
from headrace.rpc.waits import Waits
from headrace.trajectory.client import get_trajectories
from headrace.v1 import replay_pb2 as pb
from headrace.v1 import replay_pb2_grpc, store_pb2_grpc
from headrace.v1.prompt_pb2 import SampledGroup
from headrace.v1.trajectory_pb2 import Trajectory

if TYPE_CHECKING:
    ReplayStub = replay_pb2_grpc.ReplayBufferServiceAsyncStub
    StoreStub = store_pb2_grpc.TrajectoryStoreServiceAsyncStub

POLL_S = 20.0
"""How long the replay buffer may hold one call that has no batch yet."""
ANSWER_S = 10.0
"""How long an answer may take beyond that."""

log = get_logger()


@dataclass(frozen=True)
class Part:
    """One part of a step's batch, complete."""

    groups: tuple[SampledGroup, ...]
    trajectories: tuple[Trajectory, ...]
    """N of them: of the groups in order, and of each in the order of its sessions."""

    @property
    def group_of(self) -> npt.NDArray[np.int64]:
        """The number of the group each trajectory belongs to: [N], 0 to G - 1."""
        counts = [len(group.trajectories) for group in self.groups]
        return np.repeat(np.arange(len(counts)), counts)

    @property
    def keys(self) -> list[str]:
        """Where the trajectories are in the store."""
        return [trajectory.key for trajectory in self.trajectories]


class BatchSource:
    """Gets parts of batches, whatever it takes.

    Args:
        replay: the replay buffer.
        store: the trajectory store.
        incarnation: the trainer's.
        part_count: parts per step.
        address: where the trainer listens, for those who ask the replay buffer.
        waits: where waits are registered.
        stopping: ends them.

    """

    def __init__(
        self,
        replay: ReplayStub,
        store: StoreStub,
        *,
        incarnation: int,
        part_count: int,
        address: str = "",
        waits: Waits,
        stopping: asyncio.Event,
    ) -> None:
        self._replay = replay
        self._store = store
        self._incarnation = incarnation
        self._part_count = part_count
        self._address = address
        self._waits = waits
        self._stopping = stopping

    async def part(self, step: int, part: int) -> Part | None:
        """Get one part of a step's batch; None when there will be no more.

        Groups whose trajectories the store does not have any more are given back, and others
        awaited in their place.

        Raises:
            TrainerFencedError: a newer trainer has registered.
            Stopped: the process is to stop.

        """
        while True:
            groups = await self._sample(step, part)
            if groups is None:
                return None
            reach("trainer.sampled")
            keys = [ref.key for group in groups for ref in group.trajectories]
            found, missing = await get_trajectories(
                self._store, keys, waits=self._waits, stopping=self._stopping
            )
            if not missing:
                return Part(groups, tuple(found[key] for key in keys))
            await self._give_back(step, part, groups, frozenset(missing))

    async def _sample(self, step: int, part: int) -> tuple[SampledGroup, ...] | None:
        request = pb.SampleBatchRequest(
            incarnation=self._incarnation,
            step=step,
            part=part,
            part_count=self._part_count,
            wait_s=POLL_S,
            address=self._address,
        )
        with self._waits.waiting(
            "batch", owner="replay", ends_when="the replay buffer answers"
        ) as wait:
            while True:
                response = await persist(
                    self._replay.SampleBatch,
                    request,
                    # The wait is listed once, above; each poll would begin a new one.
                    waits=Waits(stall_after_s=math.inf),
                    name="batch",
                    owner="replay",
                    timeout_s=POLL_S + ANSWER_S,
                    stopping=self._stopping,
                )
                if response.status == pb.SAMPLE_STATUS_READY:
                    return tuple(response.groups)
                if response.status == pb.SAMPLE_STATUS_DATA_ENDED:
                    return None
                wait.ends_when = f"step {step}, part {part}: {response.blocked_by}"

    async def _give_back(
        self, step: int, part: int, groups: tuple[SampledGroup, ...], missing: frozenset[str]
    ) -> None:
        lost = [
            group
            for group in groups
            if any(reference.key in missing for reference in group.trajectories)
        ]
        uids = [group.uid for group in lost]
        log.warning("groups_returned", step=step, part=part, uids=uids, missing=len(missing))
        await persist(
            self._replay.ReturnGroups,
            pb.ReturnGroupsRequest(
                incarnation=self._incarnation,
                step=step,
                part=part,
                uids=uids,
                attempts=[group.attempt for group in lost],
                error=f"{len(missing)} trajectories are not in the store",
            ),
            waits=self._waits,
            name="groups returned",
            owner="replay",
            stopping=self._stopping,
        )
