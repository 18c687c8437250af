"""The feeder's calls: what is wanted, and what came in."""

from __future__ import annotations

from headrace.errors import FeedNotOpenError
from headrace.replay import feeding
from headrace.replay.service.base import Calls, Context, checked_wait
from headrace.v1 import replay_pb2 as pb


class FeederCalls(Calls):
    """OpenFeed, AwaitDemand, RegisterPrompts, EndFeed, RegisterRows."""

    async def OpenFeed(self, request: pb.OpenFeedRequest, context: Context) -> pb.OpenFeedResponse:
        def turn() -> pb.OpenFeedResponse:
            feeding.open_feed(
                self._ledger,
                self._settings,
                row_count=(feeding.UNKNOWN_LENGTH if request.length_unknown else request.row_count),
                fingerprint=request.fingerprint,
            )
            self._buffer.peers.hear("feeder", request.address)
            feed = self._ledger.feed
            return pb.OpenFeedResponse(
                cursor=self._ledger.cursor,
                ordinal_count=feed.ordinal_count,
                total_steps=feed.total_steps,
                source_state=self._ledger.source_state,
            )

        return await self._turn(turn)

    async def AwaitDemand(
        self, request: pb.AwaitDemandRequest, context: Context
    ) -> pb.AwaitDemandResponse:
        self._buffer.peers.hear("feeder", request.address)

        def answer() -> pb.AwaitDemandResponse:
            if not self._ledger.feed.total_steps:
                raise FeedNotOpenError("OpenFeed comes before AwaitDemand")
            return pb.AwaitDemandResponse(
                demand=feeding.demand(self._ledger, self._settings),
                cursor=self._ledger.cursor,
                ended=bool(self._ledger.ended_by),
                surplus_count=feeding.surplus_count(self._ledger),
            )

        def look() -> pb.AwaitDemandResponse | None:
            now = answer()
            is_news = not now.ended if request.after_end else now.demand or now.ended
            return now if is_news else None

        wanted = await self._buffer.until(look, checked_wait(request.wait_s)) or answer()
        await self._buffer.settled()
        return wanted

    async def RegisterPrompts(
        self, request: pb.RegisterPromptsRequest, context: Context
    ) -> pb.RegisterPromptsResponse:
        def turn() -> pb.RegisterPromptsResponse:
            accepted = feeding.register_prompts(
                self._ledger,
                self._settings,
                first_ordinal=request.first_ordinal,
                prompts=request.prompts,
                source_states=request.source_states,
            )
            return pb.RegisterPromptsResponse(accepted_count=accepted, cursor=self._ledger.cursor)

        return await self._turn(turn)

    async def EndFeed(self, request: pb.EndFeedRequest, context: Context) -> pb.EndFeedResponse:
        def turn() -> pb.EndFeedResponse:
            feeding.end_feed(self._ledger, self._settings, ordinal_count=request.ordinal_count)
            feed = self._ledger.feed
            return pb.EndFeedResponse(
                ordinal_count=feed.ordinal_count, total_steps=feed.total_steps
            )

        return await self._turn(turn)

    async def RegisterRows(
        self, request: pb.RegisterRowsRequest, context: Context
    ) -> pb.RegisterRowsResponse:
        uids = await self._turn(
            lambda: feeding.register_rows(
                self._ledger, request_id=request.request_id, rows=request.rows
            )
        )
        return pb.RegisterRowsResponse(uids=uids)
