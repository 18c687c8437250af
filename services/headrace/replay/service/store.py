"""The store's calls: which life it is in, and which rows nobody needs."""

from __future__ import annotations

from headrace.errors import InvalidFieldError
from headrace.replay import rows
from headrace.replay.service.base import Calls, Context
from headrace.v1 import replay_pb2 as pb

MAX_KEYS_PER_CALL = 65536


class StoreCalls(Calls):
    """RegisterStore, FindDeadTrajectories."""

    async def RegisterStore(
        self, request: pb.RegisterStoreRequest, context: Context
    ) -> pb.RegisterStoreResponse:
        def turn() -> pb.RegisterStoreResponse:
            lost = rows.register_store(
                self._ledger,
                incarnation=request.store_incarnation,
                follows=request.follows,
                capacity_bytes=request.capacity_bytes,
            )
            self._buffer.store_held_bytes = 0
            self._buffer.peers.hear("store", request.address)
            return pb.RegisterStoreResponse(lost_group_count=lost)

        return await self._turn(turn)

    async def FindDeadTrajectories(
        self, request: pb.FindDeadTrajectoriesRequest, context: Context
    ) -> pb.FindDeadTrajectoriesResponse:
        if len(request.keys) > MAX_KEYS_PER_CALL:
            raise InvalidFieldError("keys", f"at most {MAX_KEYS_PER_CALL}")
        self._buffer.peers.hear("store", request.address)
        if request.store_incarnation == self._ledger.store_incarnation:
            self._buffer.store_held_bytes = request.held_bytes
            self._buffer.wake()
        # A journal that was lost is begun anew, and may still get its groups from a checkpoint.
        unsettled = self._ledger.is_fresh or self._ledger.is_resuming
        dead = [] if unsettled else rows.find_dead(self._ledger, request.keys)
        register_again = not self._ledger.store_capacity
        await self._buffer.settled()
        return pb.FindDeadTrajectoriesResponse(dead_keys=dead, register_again=register_again)
