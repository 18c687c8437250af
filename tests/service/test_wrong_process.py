"""A call that reaches another process than it means: said, waited out, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from ports import free_port
from worker_world import TinyLedger, TinyStore

from headrace.cli.credentials import make_credentials
from headrace.errors import TokenRefusedError, WrongProcessError
from headrace.rpc import server as server_module
from headrace.rpc.calls import persist
from headrace.rpc.channel import open_channel
from headrace.rpc.process import Process
from headrace.rpc.security import Security
from headrace.rpc.status import error_from
from headrace.rpc.waits import Waits
from headrace.v1 import replay_pb2 as pb
from headrace.v1 import replay_pb2_grpc, store_pb2, store_pb2_grpc

if TYPE_CHECKING:
    from headrace.v1.store_pb2_grpc import TrajectoryStoreServiceAsyncStub as Stub

WITHIN_S = 30.0


def add_store(server: grpc.aio.Server) -> list[str]:
    store = TinyStore()  # type: ignore[abstract]  # the workers' side only
    store_pb2_grpc.add_TrajectoryStoreServiceServicer_to_server(store, server)
    return ["headrace.v1.TrajectoryStoreService"]


def add_replay(server: grpc.aio.Server) -> list[str]:
    ledger = TinyLedger()  # type: ignore[abstract]  # the workers' side only
    replay_pb2_grpc.add_ReplayBufferServiceServicer_to_server(ledger, server)
    return ["headrace.v1.ReplayBufferService"]


async def said(waits: Waits, words: str) -> None:
    """Wait until a wait says these words."""
    while True:
        if any(words in wait.ends_when for wait in waits.snapshot()):
            return
        await asyncio.sleep(0.05)


async def test_a_call_waits_until_the_right_process_is_at_its_address() -> None:
    port = free_port()
    waits = Waits(stall_after_s=60)
    other = Process(name="store", run_id="r", stall_after_s=60, port=port)
    address = await other.start(add_store)
    async with open_channel(address) as channel:
        call = asyncio.ensure_future(
            persist(
                replay_pb2_grpc.ReplayBufferServiceStub(channel).AwaitWeights,
                pb.AwaitWeightsRequest(wait_s=0.01),
                waits=waits,
                name="weights",
                owner="replay",
            )
        )
        async with asyncio.timeout(WITHIN_S):
            await said(waits, "store has no AwaitWeights")
        await other.close(0)
        right = Process(name="replay", run_id="r", stall_after_s=60, port=port)
        await right.start(add_replay)
        async with asyncio.timeout(WITHIN_S):
            await call
        await right.close(0)


async def one_to_one(stub: Stub) -> None:
    await stub.GetStoreStatus(store_pb2.GetStoreStatusRequest())


async def many_to_one(stub: Stub) -> None:
    async def requests() -> AsyncIterator[store_pb2.PutTrajectoriesRequest]:
        yield store_pb2.PutTrajectoriesRequest()

    await stub.PutTrajectories(requests())


async def one_to_many(stub: Stub) -> None:
    async for _ in stub.GetTrajectories(store_pb2.GetTrajectoriesRequest()):
        pytest.fail("nobody could answer that")


@pytest.mark.parametrize("call", [one_to_one, many_to_one, one_to_many])
async def test_a_method_of_another_process_is_refused_by_name(
    call: Callable[[Stub], Awaitable[None]],
) -> None:
    replay = Process(name="replay", run_id="r", stall_after_s=60)
    address = await replay.start(add_replay)
    async with open_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(store_pb2_grpc.TrajectoryStoreServiceStub(channel))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert isinstance(error_from(refused.value), WrongProcessError)
    await replay.close(0)


async def test_a_stranger_does_not_learn_which_process_it_is(tmp_path: Path) -> None:
    files = make_credentials(tmp_path, (), days=1, force=False, now=datetime.now(UTC))
    guarded = Security.for_tool(token_file=files.token)
    replay = Process(name="replay", run_id="r", stall_after_s=60, security=guarded)
    address = await replay.start(add_replay)
    async with open_channel(address) as channel:
        stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetStoreStatus(store_pb2.GetStoreStatusRequest())
    assert isinstance(error_from(refused.value), TokenRefusedError)
    await replay.close(0)


async def test_a_connection_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    soon = ("grpc.max_connection_age_ms", 200)
    options = [option for option in server_module.OPTIONS if option[0] != soon[0]]
    assert len(options) < len(server_module.OPTIONS)
    monkeypatch.setattr(server_module, "OPTIONS", (*options, soon))
    peers: list[str] = []

    async def work(_request: bytes, context: Any) -> bytes:
        peers.append(context.peer())
        return b""

    def add(server: grpc.aio.Server) -> list[str]:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Work": grpc.unary_unary_rpc_method_handler(work)
        }
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("test.Service", handlers)]
        )
        return ["test.Service"]

    process = Process(name="p", run_id="r", stall_after_s=60)
    async with grpc.aio.insecure_channel(await process.start(add)) as channel:
        method: Any = channel.unary_unary("/test.Service/Work")
        async with asyncio.timeout(WITHIN_S):
            while len(set(peers)) < 2:
                await method(b"", timeout=20)
                await asyncio.sleep(0.05)
    await process.close(0)
