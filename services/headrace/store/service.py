"""The store's RPCs: check, ask, shape.

Answers NOT_READY until `open` has given it the store: TransferQueue takes seconds to start, and
the process is to be seen before.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import grpc

from headrace.errors import InvalidFieldError, NotReadyError
from headrace.rpc.calls import Stopped
from headrace.store.restorer import RowRestorer
from headrace.store.row import Row, inspect
from headrace.store.saver import RowSaver
from headrace.store.store import TrajectoryStore
from headrace.store.sweep import Sweeper
from headrace.trajectory.chunks import MAX_CALL_BYTES, Joiner, split
from headrace.v1 import status_pb2, store_pb2_grpc
from headrace.v1 import store_pb2 as pb

MAX_KEYS_PER_CALL = 65_536
"""Most keys of one check."""


@dataclass(frozen=True)
class _Open:
    store: TrajectoryStore
    sweeper: Sweeper
    saver: RowSaver
    restorer: RowRestorer


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

    def open(
        self, store: TrajectoryStore, sweeper: Sweeper, saver: RowSaver, restorer: RowRestorer
    ) -> None:
        """Answer from this store from now on."""
        self._opened = _Open(store, sweeper, saver, restorer)

    async def close(self) -> None:
        """Wait for the writes under way. To be called when no more calls come."""
        if self._opened is not None:
            await self._opened.saver.close()
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
        incarnation = await opened.store.put(rows)
        return pb.PutTrajectoriesResponse(store_incarnation=incarnation, confirmed_count=len(rows))

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

    async def CheckTrajectories(
        self,
        request: pb.CheckTrajectoriesRequest,
        context: grpc.aio.ServicerContext[
            pb.CheckTrajectoriesRequest, pb.CheckTrajectoriesResponse
        ],
    ) -> pb.CheckTrajectoriesResponse:
        """Read each row, and name those that are not whole."""
        if len(request.keys) > MAX_KEYS_PER_CALL:
            raise InvalidFieldError("keys", f"at most {MAX_KEYS_PER_CALL}")
        store = self._ready().store
        incarnation, missing = store.incarnation, []
        for batch in store.batches(list(dict.fromkeys(request.keys))):
            _, absent = await store.read(batch)
            missing += absent
        if store.incarnation != incarnation:
            raise NotReadyError("rows were restored meanwhile; check again")
        return pb.CheckTrajectoriesResponse(missing_keys=missing, store_incarnation=incarnation)

    async def HoldDeletions(
        self,
        request: pb.HoldDeletionsRequest,
        context: grpc.aio.ServicerContext[pb.HoldDeletionsRequest, pb.HoldDeletionsResponse],
    ) -> pb.HoldDeletionsResponse:
        """Hold deletions back."""
        _require("hold_id", request.hold_id)
        if not 0 < request.hold_s < math.inf:
            raise InvalidFieldError("hold_s", "must be a number of seconds above 0")
        store = self._ready().store
        await store.hold_deletions(request.hold_id, request.hold_s, unix_time_s=time.time())
        return pb.HoldDeletionsResponse(store_incarnation=store.incarnation)

    async def ReleaseDeletions(
        self,
        request: pb.ReleaseDeletionsRequest,
        context: grpc.aio.ServicerContext[pb.ReleaseDeletionsRequest, pb.ReleaseDeletionsResponse],
    ) -> pb.ReleaseDeletionsResponse:
        """End a hold, and delete what was noted."""
        _require("hold_id", request.hold_id)
        opened = self._ready()
        # A save that was asked for twice may still write: the manifest comes after the release.
        await opened.saver.settle()
        deleted = await opened.store.release_deletions(request.hold_id)
        return pb.ReleaseDeletionsResponse(deleted_count=deleted)

    async def SaveRows(
        self,
        request: pb.SaveRowsRequest,
        context: grpc.aio.ServicerContext[pb.SaveRowsRequest, pb.SaveRowsResponse],
    ) -> pb.SaveRowsResponse:
        """Write the store's part of a checkpoint."""
        _require("uri", request.uri)
        _require("hold_id", request.hold_id)
        saved = await self._ready().saver.save(request.uri, request.hold_id)
        return pb.SaveRowsResponse(
            part=saved.part,
            row_count=saved.row_count,
            raw_bytes=saved.raw_bytes,
            locked_s=saved.locked_s,
            longest_put_wait_s=saved.longest_put_wait_s,
            store_incarnation=saved.store_incarnation,
        )

    async def RestoreRows(
        self,
        request: pb.RestoreRowsRequest,
        context: grpc.aio.ServicerContext[pb.RestoreRowsRequest, pb.RestoreRowsResponse],
    ) -> pb.RestoreRowsResponse:
        """Begin another life with the rows of a checkpoint."""
        _require("restore_id", request.restore_id)
        _require("part", request.part.uri)
        opened = self._ready()
        await opened.restorer.restore(request.restore_id, request.part, unix_time_s=time.time())
        return pb.RestoreRowsResponse(
            store_incarnation=opened.store.incarnation, row_count=len(opened.store.catalogue)
        )

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
            hold_id=store.hold.hold_id,
        )

    def _ready(self) -> _Open:
        if self._opened is None:
            raise NotReadyError(self._not_yet)
        return self._opened


def _require(field: str, value: str) -> None:
    if not value:
        raise InvalidFieldError(field, "is required")


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
