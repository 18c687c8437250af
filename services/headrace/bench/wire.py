"""The control cycle's calls at their sizes, to a server that answers at once and does nothing.

With the interceptors of ours on both sides, and without any. What it costs is gRPC and the messages:
no cycle by these calls can cost less.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any

import grpc
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from headrace.bench.child import running, tell
from headrace.bench.client import Client
from headrace.bench.groups import PAYLOAD
from headrace.bench.laps import Lap, Way
from headrace.bench.stopwatch import Stopwatch, cpu_of
from headrace.rpc.channel import open_channel
from headrace.rpc.server import create_server
from headrace.v1 import prompt_pb2, replay_pb2_grpc
from headrace.v1 import replay_pb2 as pb

IN_FLIGHT = 4


def _handlers(count: int, n: int) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """Make handlers that say the same to everybody, about so many groups of n sessions."""
    uids = [f"b{i}" for i in range(count)]
    leases = [
        prompt_pb2.Lease(uid=uid, attempt=1, payload=PAYLOAD, missing_sessions=range(n))
        for uid in uids
    ]
    groups = [
        prompt_pb2.SampledGroup(
            uid=uid,
            trajectories=[
                prompt_pb2.TrajectoryRef(key=f"{uid}_{session}_0_bencha1", session=session)
                for session in range(n)
            ],
        )
        for uid in uids
    ]
    return {
        "RegisterPrompts": _saying(
            pb.RegisterPromptsRequest, pb.RegisterPromptsResponse(accepted_count=count)
        ),
        "LeasePrompts": _saying(pb.LeasePromptsRequest, pb.LeasePromptsResponse(leases=leases)),
        "CompleteSessions": _saying(
            pb.CompleteSessionsRequest,
            pb.CompleteSessionsResponse(statuses=[pb.LEASE_STATUS_DONE] * (count * n)),
        ),
        "SampleBatch": _saying(
            pb.SampleBatchRequest,
            pb.SampleBatchResponse(status=pb.SAMPLE_STATUS_READY, groups=groups),
        ),
    }


def _saying(request: type[Message], response: Message) -> grpc.RpcMethodHandler[Any, Any]:
    async def answer(_request: object, _context: object) -> Message:
        return response

    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=request.FromString,
        response_serializer=type(response).SerializeToString,
    )


def _serve(pipe: Connection, is_bare: bool, count: int, n: int) -> None:
    async def serve() -> None:
        server = grpc.aio.server() if is_bare else create_server(CollectorRegistry())
        service = pb.DESCRIPTOR.services_by_name["ReplayBufferService"].full_name
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, _handlers(count, n))]
        )
        tell(pipe, f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        await server.wait_for_termination()

    asyncio.run(serve())


@asynccontextmanager
async def running_wire(
    *, is_bare: bool, group_count: int, groups_per_call: int, n: int
) -> AsyncIterator[Way]:
    """Start such a server; yield the way to send it the calls of so many groups."""
    async with running("server", _serve, is_bare, groups_per_call, n) as child:
        address = await child.receive()
        channel = grpc.aio.insecure_channel(address) if is_bare else open_channel(address)
        async with channel:
            client = Client(replay_pb2_grpc.ReplayBufferServiceStub(channel), address)
            watch = Stopwatch(cpu_of(child.pid))

            async def call(times: int) -> None:
                for _ in range(times):
                    await client.feed(groups_per_call)
                    leases = await client.lease("worker", groups_per_call, wait_s=5.0)
                    await client.complete("worker", leases)
                    await client.sample()

            async def way() -> Lap:
                times = group_count // groups_per_call // IN_FLIGHT
                with watch.lap(times * groups_per_call * IN_FLIGHT) as taken:
                    await asyncio.gather(*(call(times) for _ in range(IN_FLIGHT)))
                return taken.lap

            yield way
