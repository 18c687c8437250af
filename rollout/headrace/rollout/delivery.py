"""From scored sessions to recorded ones: put into the store, then complete at the ledger.

    put, until the store confirms ──► complete with the store's incarnation ──► HELD, DONE, LOST
      ▲                                                                           │
      └────────── STORE_CHANGED: the rows went with the store's former life ◄─────┘

Knows nothing of engines and rewards. Both steps are safe to repeat and are repeated until they
are answered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError
from headrace.rollout.ask import REFUSALS, Peer
from headrace.rollout.batcher import Batcher
from headrace.rpc.calls import Stopped
from headrace.rpc.waits import Waits
from headrace.trajectory.client import put_trajectories
from headrace.v1 import prompt_pb2, replay_pb2, trajectory_pb2

if TYPE_CHECKING:
    from headrace.v1 import replay_pb2_grpc, store_pb2_grpc

_MOST_SESSIONS: Final = 2048
"""Sessions in one call; the ledger takes at most 4096."""
_LONGEST_PAUSE_S: Final = 1.0


class DeliveryError(HeadraceError):
    """The store or the ledger refuses these sessions."""


@dataclass(frozen=True, slots=True)
class Made:
    """A session that is generated and scored."""

    trajectory: trajectory_pb2.Trajectory
    record: prompt_pb2.SessionRecord


@dataclass(frozen=True, slots=True, eq=False)
class _Parcel:
    lease: replay_pb2.LeaseRef
    made: Sequence[Made]
    status: asyncio.Future[replay_pb2.LeaseStatus.ValueType]


class Deliveries:
    """Delivers what is waiting together: one stream to the store, one call to the ledger."""

    def __init__(
        self,
        *,
        worker_id: str,
        replay: Peer,
        replay_stub: replay_pb2_grpc.ReplayBufferServiceAsyncStub,
        store_stub: store_pb2_grpc.TrajectoryStoreServiceAsyncStub,
        waits: Waits,
        stopping: asyncio.Event,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._worker_id = worker_id
        self._replay = replay
        self._replay_stub = replay_stub
        self._store_stub = store_stub
        self._waits = waits
        self._stopping = stopping
        self._sleep = sleep
        self._jitter = jitter
        self._parcels: Batcher[_Parcel] = Batcher(
            self._deliver, most=_MOST_SESSIONS, size=lambda parcel: len(parcel.made)
        )

    async def deliver(
        self, lease: replay_pb2.LeaseRef, made: Sequence[Made]
    ) -> replay_pb2.LeaseStatus.ValueType:
        """Deliver sessions of one lease, and return what the ledger says of it.

        Raises:
            DeliveryError: The store or the ledger refuses them.
            Stopped: `stopping` was set before they were recorded.

        """
        parcel = _Parcel(lease, made, asyncio.get_running_loop().create_future())
        self._parcels.add(parcel)
        return await parcel.status

    async def run(self) -> None:
        """Deliver for ever."""
        await self._parcels.run()

    async def _deliver(self, parcels: list[_Parcel]) -> None:
        """Settle each parcel. One that is refused does not hurt the others."""
        parcels = [parcel for parcel in parcels if not parcel.status.done()]
        try:
            await self._put_and_complete(parcels)
        except REFUSALS as error:
            open_ = [parcel for parcel in parcels if not parcel.status.done()]
            if len(parcels) > 1:
                for parcel in open_:
                    await self._deliver([parcel])
            for parcel in open_:
                if not parcel.status.done():
                    parcel.status.set_exception(DeliveryError(f"not stored: {error}"))
        except Stopped as stopped:
            for parcel in parcels:
                if not parcel.status.done():
                    parcel.status.set_exception(Stopped(str(stopped)))

    async def _put_and_complete(self, parcels: list[_Parcel]) -> None:
        pause_s = 0.05
        while parcels:
            incarnation = await put_trajectories(
                self._store_stub,
                [made.trajectory for parcel in parcels for made in parcel.made],
                waits=self._waits,
                stopping=self._stopping,
            )
            parcels = await self._complete(parcels, incarnation)
            if parcels:
                with self._waits.waiting(
                    "store's registration",
                    owner="store",
                    ends_when="the ledger knows the store's new life",
                ):
                    await self._sleep(pause_s * (0.5 + 0.5 * self._jitter()))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _complete(self, parcels: list[_Parcel], incarnation: str) -> list[_Parcel]:
        """Complete, and return the parcels that have to be put again."""
        request = replay_pb2.CompleteSessionsRequest(
            worker_id=self._worker_id,
            store_incarnation=incarnation,
            sessions=[
                replay_pb2.CompletedSession(lease=parcel.lease, record=made.record)
                for parcel in parcels
                for made in parcel.made
            ],
        )
        answer = await self._replay.ask(self._replay_stub.CompleteSessions, request)
        statuses = iter(answer.statuses)
        again = []
        for parcel in parcels:
            # The worst of the parcel's own: sessions of one lease share its fate.
            found = {next(statuses) for _ in parcel.made}
            if replay_pb2.LEASE_STATUS_STORE_CHANGED in found:
                again.append(parcel)
            elif not parcel.status.done():
                parcel.status.set_result(_worst(found))
        return again


def _worst(
    found: set[replay_pb2.LeaseStatus.ValueType],
) -> replay_pb2.LeaseStatus.ValueType:
    for status in (replay_pb2.LEASE_STATUS_LOST, replay_pb2.LEASE_STATUS_DONE):
        if status in found:
            return status
    return replay_pb2.LEASE_STATUS_HELD
