"""The feeder over gRPC: how far the feed is, rows for a warm start, rows given by hand.

Checks, asks, shapes; the feed itself is in `demand.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from headrace.errors import InvalidFieldError, NotReadyError
from headrace.feeder.demand import Feed
from headrace.feeder.handfed import HandFeed
from headrace.feeder.reading import Reader
from headrace.feeder.supply import Supply
from headrace.rpc.calls import Stopped
from headrace.v1 import feeder_pb2 as pb
from headrace.v1 import feeder_pb2_grpc, status_pb2

if TYPE_CHECKING:
    import grpc

MAX_ROWS_PER_CALL: Final = 4096
MAX_BYTES_PER_CALL: Final = 3 * 2**20
"""A message may have 4 MiB."""


ReadPositions = Callable[[Sequence[int]], list[pb.PromptPayload]]
"""Gives the rows at positions of an order that is not the feed's."""


class PromptFeederService(feeder_pb2_grpc.PromptFeederServiceServicer):
    """Answers for the feeder."""

    def __init__(
        self,
        feed: Feed,
        supply: Supply,
        *,
        read_positions: ReadPositions | None,
        hand_feed: HandFeed,
        reader: Reader,
        process_status: Callable[[], status_pb2.ProcessStatus],
    ) -> None:
        """Answer for `feed`.

        Args:
            feed: The feed.
            supply: What it is fed from.
            read_positions: Reads rows for a warm start; None if the source is a stream.
            hand_feed: Takes rows given by hand.
            reader: Runs the reads.
            process_status: What the process says about itself.

        """
        self._feed = feed
        self._supply = supply
        self._read_positions = read_positions
        self._hand_feed = hand_feed
        self._reader = reader
        self._process_status = process_status

    async def GetFeederStatus(
        self,
        request: pb.GetFeederStatusRequest,
        context: grpc.aio.ServicerContext[pb.GetFeederStatusRequest, pb.GetFeederStatusResponse],
    ) -> pb.GetFeederStatusResponse:
        """Say how far the feed is."""
        return pb.GetFeederStatusResponse(
            process=self._process_status(),
            row_count=self._supply.row_count or 0,
            cursor=self._feed.cursor,
            epoch=self._feed.epoch,
            read_count=self._supply.read_count,
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
        read = self._read_positions
        if read is None:
            raise InvalidFieldError("offset", "the source is a stream, which has no positions")
        positions = range(request.offset, request.offset + request.max_count)
        try:
            payloads = await self._reader.read(lambda: read(positions))
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

    async def FeedRows(
        self,
        request: pb.FeedRowsRequest,
        context: grpc.aio.ServicerContext[pb.FeedRowsRequest, pb.FeedRowsResponse],
    ) -> pb.FeedRowsResponse:
        """Register rows given by hand."""
        try:
            uids = await self._hand_feed.feed(request.request_id, request.rows_json)
        except Stopped:
            raise NotReadyError("the feeder is stopping") from None
        return pb.FeedRowsResponse(uids=uids)
