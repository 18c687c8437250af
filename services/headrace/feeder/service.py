"""The feeder over gRPC: how far the feed is, and rows for a warm start.

Checks, asks, shapes; the feed itself is in `demand.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.errors import InvalidFieldError, NotReadyError
from headrace.feeder.demand import Feed
from headrace.feeder.order import Order
from headrace.feeder.prompts import Prompts
from headrace.feeder.reading import Reader
from headrace.rpc.calls import Stopped
from headrace.v1 import feeder_pb2 as pb
from headrace.v1 import feeder_pb2_grpc, status_pb2

if TYPE_CHECKING:
    import grpc

MAX_ROWS_PER_CALL: Final = 4096
MAX_BYTES_PER_CALL: Final = 3 * 2**20
"""A message may have 4 MiB."""


class PromptFeederService(feeder_pb2_grpc.PromptFeederServiceServicer):
    """Answers for the feeder. Changes nothing."""

    def __init__(
        self,
        feed: Feed,
        prompts: Prompts,
        *,
        warm_start_order: Order,
        reader: Reader,
        process_status: Callable[[], status_pb2.ProcessStatus],
    ) -> None:
        """Answer for `feed`.

        Args:
            feed: The feed.
            prompts: The data set.
            warm_start_order: The order of `ReadRows`; not that of the feed.
            reader: Runs the reads.
            process_status: What the process says about itself.

        """
        self._feed = feed
        self._prompts = prompts
        self._order = warm_start_order
        self._reader = reader
        self._process_status = process_status

    async def GetFeederStatus(
        self,
        request: pb.GetFeederStatusRequest,
        context: grpc.aio.ServicerContext[pb.GetFeederStatusRequest, pb.GetFeederStatusResponse],
    ) -> pb.GetFeederStatusResponse:
        """Say how far the feed is."""
        cursor = self._feed.cursor
        return pb.GetFeederStatusResponse(
            process=self._process_status(),
            row_count=len(self._prompts),
            cursor=cursor,
            epoch=cursor // len(self._prompts),
            read_count=self._prompts.read_count,
            registered_count=self._feed.registered_count,
        )

    async def ReadRows(
        self,
        request: pb.ReadRowsRequest,
        context: grpc.aio.ServicerContext[pb.ReadRowsRequest, pb.ReadRowsResponse],
    ) -> pb.ReadRowsResponse:
        """Read rows in the order of the warm start, too long ones included."""
        if not 1 <= request.max_count <= MAX_ROWS_PER_CALL:
            raise InvalidFieldError("max_count", f"must be 1 to {MAX_ROWS_PER_CALL}")
        if request.offset < 0:
            raise InvalidFieldError("offset", "must not be negative")
        positions = range(request.offset, request.offset + request.max_count)
        rows = [self._order.place(position).row for position in positions]
        try:
            payloads = await self._reader.read(lambda: self._prompts.read(rows))
        except Stopped:
            raise NotReadyError("the feeder is stopping") from None
        response = pb.ReadRowsResponse(rows=payloads)
        if response.ByteSize() > MAX_BYTES_PER_CALL:
            raise InvalidFieldError(
                "max_count",
                f"these rows have {response.ByteSize()} bytes; ask for fewer, at most "
                f"{MAX_BYTES_PER_CALL} bytes at a time",
            )
        return response
