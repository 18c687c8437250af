"""The store's RPCs: check, ask, shape.

Answers NOT_READY until `open` has given it the store: TransferQueue takes seconds to start, and
the process is to be seen before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import grpc

from headrace.errors import InvalidFieldError, NotReadyError
from headrace.rpc.calls import Stopped
from headrace.store.row import Row, inspect
from headrace.store.store import TrajectoryStore
from headrace.store.sweep import Sweeper
from headrace.trajectory.chunks import MAX_CALL_BYTES, Joiner, split
from headrace.v1 import status_pb2, store_pb2_grpc
from headrace.v1 import store_pb2 as pb


@dataclass(frozen=True)
class _Open:
    store: TrajectoryStore
    sweeper: Sweeper


class StoreService(store_pb2_grpc.TrajectoryStoreServiceServicer):
    """TrajectoryStoreService.

    Args:
        status: What the process says about itself.

    """

    def __init__(self, status: Callable[[], status_pb2.ProcessStatus]) -> None:
        self._status = status
        self._opened: _Open | None = None
        self._not_yet = "TransferQueue is starting"

    def not_yet(self, why: str) -> None:
        """Say, until `open`, why calls are put off."""
        self._not_yet = why

    def open(self, store: TrajectoryStore, sweeper: Sweeper) -> None:
        """Answer from this store from now on."""
        self._opened = _Open(store, sweeper)

    async def close(self) -> None:
        """Wait for the writes under way. To be called when no more calls come."""
        if self._opened is not None:
            await self._opened.store.close()

    def add_to(self, server: grpc.aio.Server) -> Sequence[str]:
        """Add the service to a server; return its full name."""
        store_pb2_grpc.add_TrajectoryStoreServiceServicer_to_server(self, server)
        return [pb.DESCRIPTOR.services_by_name["TrajectoryStoreService"].full_name]

    async def PutTrajectories(
        self,
        request_iterator: AsyncIterator[pb.PutTrajectoriesRequest],
        context: grpc.aio.ServicerContext[pb.PutTrajectoriesRequest, pb.PutTrajectoriesResponse],
    ) -> pb.PutTrajectoriesResponse:
        """Collect, check and write rows; one put to TransferQueue for the whole call."""
        opened = self._ready()
        rows = await _receive(request_iterator)
        if not opened.store.has_room_for(rows):
            try:
                # The dead go at once, however young: what cannot be recorded never will be.
                await opened.sweeper.sweep(grace_s=0)
            except Stopped as error:
                raise NotReadyError(str(error)) from error
        await opened.store.put(rows)
        return pb.PutTrajectoriesResponse(
            store_incarnation=opened.store.incarnation, confirmed_count=len(rows)
        )

    async def GetTrajectories(
        self,
        request: pb.GetTrajectoriesRequest,
        context: grpc.aio.ServicerContext[pb.GetTrajectoriesRequest, pb.GetTrajectoriesResponse],
    ) -> AsyncIterator[pb.GetTrajectoriesResponse]:
        """Stream rows in the order of the keys; a key that is named twice comes once."""
        store = self._ready().store
        missing: list[str] = []
        for batch in store.batches(list(dict.fromkeys(request.keys))):
            values, absent = await store.read(batch)
            missing += absent
            for chunks in split(values):
                yield pb.GetTrajectoriesResponse(chunks=chunks)
        yield pb.GetTrajectoriesResponse(missing_keys=missing)

    async def DeleteTrajectories(
        self,
        request: pb.DeleteTrajectoriesRequest,
        context: grpc.aio.ServicerContext[
            pb.DeleteTrajectoriesRequest, pb.DeleteTrajectoriesResponse
        ],
    ) -> pb.DeleteTrajectoriesResponse:
        """Remove rows."""
        deleted = await self._ready().store.delete(request.keys)
        return pb.DeleteTrajectoriesResponse(deleted_count=deleted)

    async def GetStoreStatus(
        self,
        request: pb.GetStoreStatusRequest,
        context: grpc.aio.ServicerContext[pb.GetStoreStatusRequest, pb.GetStoreStatusResponse],
    ) -> pb.GetStoreStatusResponse:
        """Say what is held; of the process alone while TransferQueue starts."""
        if self._opened is None:
            return pb.GetStoreStatusResponse(process=self._status())
        store, sweeper = self._opened.store, self._opened.sweeper
        return pb.GetStoreStatusResponse(
            process=self._status(),
            store_incarnation=store.incarnation,
            row_count=len(store.catalogue),
            held_bytes=store.catalogue.held_bytes,
            capacity_bytes=store.capacity_bytes,
            swept_count=sweeper.swept_count,
        )

    def _ready(self) -> _Open:
        if self._opened is None:
            raise NotReadyError(self._not_yet)
        return self._opened


async def _receive(requests: AsyncIterator[pb.PutTrajectoriesRequest]) -> list[Row]:
    """Put the chunks of a call together and check every row.

    Raises:
        ChecksumMismatchError: bytes did not arrive whole.
        InvalidFieldError: a malformed key, chunk or trajectory, or too much for one call.

    """
    joiner = Joiner()
    rows: list[Row] = []
    received_bytes = 0
    async for request in requests:
        for chunk in request.chunks:
            received_bytes += len(chunk.data)
            if received_bytes > MAX_CALL_BYTES:
                raise InvalidFieldError("chunks", f"more than {MAX_CALL_BYTES} bytes in one call")
            value = joiner.add(chunk)
            if value is not None:
                rows.append(inspect(value))
    joiner.finish()
    return rows
