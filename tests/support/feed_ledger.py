"""A real server with the replay buffer's side of the feed, and nothing else of it.

It keeps a cursor and a demand by the rules of the proto, loses answers when told to, and
remembers every prompt and call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from headrace.errors import DataChangedError, FeedGapError, FeedNotOpenError
from headrace.rpc.server import bind, create_server
from headrace.v1 import prompt_pb2
from headrace.v1 import replay_pb2 as pb

TOO_LONG = prompt_pb2.DROP_REASON_TOO_LONG
SURPLUS = prompt_pb2.DROP_REASON_SURPLUS
USABLE = prompt_pb2.DROP_REASON_UNSPECIFIED
UNANSWERED_WAIT_S = 0.05


class FeedLedger:
    """The feed's side of the replay buffer: a cursor, a demand, what was registered."""

    def __init__(self, row_count: int, epochs: int = 1) -> None:
        self.ordinal_count = row_count * epochs
        self.registered: list[pb.NewPrompt] = []
        self.calls: list[pb.RegisterPromptsRequest] = []
        self.demand = 0
        self.ended = False
        self.surplus_count = 0
        self.opened = asyncio.Event()
        self.changed = asyncio.Condition()
        self.fingerprint = ""
        self.answers_to_lose = 0
        self.accept_at_most = 10**9
        self.polls = 0

    @property
    def uids(self) -> list[str]:
        return [prompt.uid for prompt in self.registered]

    async def want(self, count: int) -> None:
        async with self.changed:
            self.demand += count
            self.changed.notify_all()

    async def end(self, surplus_count: int) -> None:
        async with self.changed:
            self.ended, self.surplus_count = True, surplus_count
            self.changed.notify_all()

    async def satisfied(self) -> None:
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(lambda: not self.demand and not self.surplus_count)

    async def OpenFeed(self, request: pb.OpenFeedRequest, context: Any) -> pb.OpenFeedResponse:
        if self.fingerprint not in ("", request.fingerprint):
            raise DataChangedError(
                "other data", opened_with=self.fingerprint, offered=request.fingerprint
            )
        self.fingerprint = request.fingerprint
        self.opened.set()
        return pb.OpenFeedResponse(
            cursor=len(self.registered), ordinal_count=self.ordinal_count, total_steps=1
        )

    async def AwaitDemand(
        self, request: pb.AwaitDemandRequest, context: Any
    ) -> pb.AwaitDemandResponse:
        self.polls += 1
        async with self.changed:
            with suppress(TimeoutError):
                async with asyncio.timeout(UNANSWERED_WAIT_S):
                    await self.changed.wait_for(lambda: self.demand or self.ended)
        return pb.AwaitDemandResponse(
            demand=0 if self.ended else self.demand,
            cursor=len(self.registered),
            ended=self.ended,
            surplus_count=self.surplus_count,
        )

    async def RegisterPrompts(
        self, request: pb.RegisterPromptsRequest, context: Any
    ) -> pb.RegisterPromptsResponse:
        if not self.opened.is_set():
            raise FeedNotOpenError("not open")
        cursor = len(self.registered)
        if request.first_ordinal > cursor:
            raise FeedGapError("gap", cursor=str(cursor))
        self.calls.append(request)
        accepted = min(cursor - request.first_ordinal, len(request.prompts))
        async with self.changed:
            for prompt in request.prompts[accepted:][: self.accept_at_most]:
                if prompt.drop_reason == USABLE:
                    if not self.demand:
                        break
                    self.demand -= 1
                elif prompt.drop_reason == SURPLUS:
                    self.surplus_count -= 1
                self.registered.append(prompt)
                accepted += 1
            self.changed.notify_all()
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the answer was lost")
        return pb.RegisterPromptsResponse(accepted_count=accepted, cursor=len(self.registered))


@asynccontextmanager
async def serving(ledger: FeedLedger, port: int = 0) -> AsyncIterator[str]:
    """Serve it on a port, which a second life may have again."""
    server = create_server(CollectorRegistry())
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            getattr(ledger, name),
            request_deserializer=getattr(pb, f"{name}Request").FromString,
            response_serializer=getattr(pb, f"{name}Response").SerializeToString,
        )
        for name in ("OpenFeed", "AwaitDemand", "RegisterPrompts")
    }
    service = pb.DESCRIPTOR.services_by_name["ReplayBufferService"].full_name
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    address = bind(server, "127.0.0.1", port)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)
