"""Tells the replay buffer which life the store is in, and which one that follows.

At the start, and after rows were restored: then only when the hold on deletions is over, because
the ledger would take a life that it does not know yet for the loss of all rows.

    which life is known? ──► this one, which follows that ──► refused: another became known meanwhile
              ▲                                                         │
              └─────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio

from headrace.errors import StoreFencedError, WireError
from headrace.log import get_logger
from headrace.rpc.calls import Stopped, persist
from headrace.rpc.process import Process
from headrace.store.life import Life
from headrace.store.store import TrajectoryStore
from headrace.v1 import replay_pb2, replay_pb2_grpc

_RETRY_S = 1.0
_log = get_logger()


class Registration:
    """Registers one store.

    Args:
        store: The store.
        replay: The replay buffer. While it is away, this waits for it.
        address: Where the store listens.
        process: Its waits, and what ends them.

    """

    def __init__(
        self,
        store: TrajectoryStore,
        replay: replay_pb2_grpc.ReplayBufferServiceAsyncStub,
        *,
        address: str,
        process: Process,
    ) -> None:
        self._store = store
        self._replay = replay
        self._address = address
        self._process = process

    def take_up_hold(self, *, unix_time_s: float) -> bool:
        """Go on with a hold under which rows were restored before this process began, if it lasts.

        Returns:
            Whether it does.

        """
        log = self._store.life.log
        if log is None or not log.identity.hold_id:
            return False
        left_s = log.identity.held_until_unix_s - unix_time_s
        if left_s <= 0:
            return False
        self._store.hold.begin(log.identity.hold_id, left_s)
        _log.info("hold_taken_up", hold_id=log.identity.hold_id, left_s=round(left_s, 1))
        return True

    async def register(self) -> None:
        """Register the life that there is now, unless another begins meanwhile.

        Raises:
            Stopped: the process is to stop.
            NotReadyError: the disk refused to take down that it was registered.

        """
        life = self._store.life
        while True:
            known = await self._known()
            if self._store.life is not life:
                return  # What is known may be the newer one, and is not to be followed by this.
            try:
                lost = await self._tell(life, follows=known)
            except StoreFencedError as error:
                _log.warning("store_registration_refused", detail=str(error))
            else:
                break
        _log.info("store_registered", store_incarnation=life.incarnation, lost_group_count=lost)
        if life.log is None:
            return
        if life.log.is_new and lost:
            _log.warning(
                "store_log_missing",
                directory=str(life.log.directory),
                lost_group_count=lost,
                detail="the log of the store before is not here; its groups are generated again",
            )
        await self._store.write_down_hold(life, "", 0.0)

    async def _known(self) -> str:
        """Ask which life the ledger knows; empty if none."""
        status = await persist(
            self._replay.GetReplayStatus,
            replay_pb2.GetReplayStatusRequest(),
            waits=self._process.waits,
            name="which store is known",
            owner="replay",
            stopping=self._process.stopping,
        )
        return status.store_incarnation

    async def _tell(self, life: Life, *, follows: str) -> int:
        """Register a life; count the groups that lost rows by it."""
        answer = await persist(
            self._replay.RegisterStore,
            replay_pb2.RegisterStoreRequest(
                store_incarnation=life.incarnation,
                follows=follows,
                capacity_bytes=self._store.capacity_bytes,
                address=self._address,
            ),
            waits=self._process.waits,
            name="the store's registration",
            owner="replay",
            stopping=self._process.stopping,
        )
        return answer.lost_group_count

    async def follow(self, begun: asyncio.Event) -> None:
        """Register each new life once its hold is over, until the process is to stop.

        Args:
            begun: Set whenever one has begun.

        """
        while True:
            await begun.wait()
            await self._store.hold.until_over()
            begun.clear()
            try:
                await self.register()
            except Stopped:
                return
            except WireError as error:
                _log.warning("store_not_registered", error=str(error))
                begun.set()
                await asyncio.sleep(_RETRY_S)
