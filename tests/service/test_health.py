"""What a process says about its health: that it lives, whether it is ready, and on which port."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from part_process import started
from ports import free_port
from redis_server import RedisServer
from structlog.testing import capture_logs
from worker_world import TinyLedger, TinyStore, serving

from headrace.cli.credentials import make_credentials
from headrace.config.config import Config
from headrace.rpc.channel import open_channel
from headrace.rpc.health import LIVE
from headrace.rpc.process import Process
from headrace.rpc.security import Security
from headrace.v1 import prompt_pb2, replay_pb2_grpc, store_pb2_grpc
from headrace.v1 import replay_pb2 as pb
from headrace.weights.directory import write

READY = ""
SERVICE = "headrace.v1.ReplayBufferService"
WITHIN_S = 30.0


def make_config(directory: Path, **sections: Any) -> Config:
    return Config.model_validate(
        {
            "run": {"run_dir": directory, "run_id": "test"},
            "data": {
                "source": {"kind": "jsonl", "path": "rows.jsonl"},
                "train_batch_size": 4,
                "max_prompt_length": 4,
                "max_response_length": 6,
            },
            "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "abcdef", "eos": "."}},
            "rollout": {"engine": {"kind": "scripted"}, "n": 2},
            **sections,
        }
    )


async def is_serving(address: str, what: str = READY) -> bool:
    """Ask without TLS and without a token, as a kubelet does."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=what), timeout=20)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def until_ready(address: str, wanted: bool) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            if await is_serving(address) is wanted:
                return
            await asyncio.sleep(0.05)


async def test_a_process_lives_from_its_start_and_is_ready_as_long_as_what_it_needs_is_there() -> (
    None
):
    process = Process(name="p", run_id="r", stall_after_s=60)
    address = await process.start(lambda _: [])
    assert await is_serving(address, LIVE)
    there = False
    with capture_logs() as logs, process.waits.waiting("journal", owner="Redis"):
        process.ready(lambda: there)
        assert not await is_serving(address)
        for there in (True, False, True):
            await until_ready(address, there)
            assert await is_serving(address, LIVE)
    await process.close(0)
    said = [line for line in logs if "ready" in line["event"]]
    assert [line["event"] for line in said] == ["ready", "not_ready", "ready"]
    assert said[1]["waits"] == ["journal"]


async def test_a_health_port_needs_neither_tls_nor_token_and_serves_health_alone(
    tmp_path: Path,
) -> None:
    files = make_credentials(tmp_path, (), days=1, force=False, now=datetime.now(UTC))
    config = make_config(
        tmp_path,
        security={
            "token_file": files.token,
            "tls": {"ca": files.ca, "cert": files.cert, "key": files.key},
        },
    )
    port = free_port()
    process = Process(
        name="p",
        run_id="r",
        stall_after_s=60,
        health_port=port,
        security=Security.from_config(config),
    )
    ledger = TinyLedger()  # type: ignore[abstract]  # never called

    def add_services(server: grpc.aio.Server) -> list[str]:
        replay_pb2_grpc.add_ReplayBufferServiceServicer_to_server(ledger, server)
        return [SERVICE]

    address = await process.start(add_services)
    assert not await is_serving(f"127.0.0.1:{port}")
    process.ready()
    assert await is_serving(f"127.0.0.1:{port}")
    assert await is_serving(f"127.0.0.1:{port}", SERVICE)
    with pytest.raises(grpc.aio.AioRpcError):
        await is_serving(address)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = replay_pb2_grpc.ReplayBufferServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetReplayStatus(pb.GetReplayStatusRequest(), timeout=20)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await process.close(0)
    with pytest.raises(grpc.aio.AioRpcError):
        await is_serving(f"127.0.0.1:{port}", LIVE)


async def test_a_replay_buffer_is_not_ready_while_its_journal_is_away_and_lives_on(
    tmp_path: Path,
) -> None:
    redis = RedisServer(tmp_path, port=free_port())
    config = make_config(tmp_path, journal={"kind": "redis", "redis_url": redis.url})
    request = pb.OpenFeedRequest(row_count=8, fingerprint="f")
    try:
        async with started("replay", config, tmp_path, "replay") as part:
            address = await part.address()
            assert not await is_serving(address)
            assert await is_serving(address, LIVE)
            redis.start()
            await until_ready(address, True)
            redis.kill()
            async with open_channel(address) as channel:
                stub = replay_pb2_grpc.ReplayBufferServiceStub(channel)
                opening = asyncio.ensure_future(stub.OpenFeed(request, timeout=WITHIN_S))
                await until_ready(address, False)
                assert await is_serving(address, LIVE)
                redis.start()
                await until_ready(address, True)
                await opening
    finally:
        redis.stop()


async def test_a_worker_is_ready_once_it_has_loaded_and_confirmed_weights(tmp_path: Path) -> None:
    ledger = TinyLedger()  # type: ignore[abstract]  # the workers' side only
    store = TinyStore()  # type: ignore[abstract]
    async with AsyncExitStack() as stack:
        replay = await stack.enter_async_context(
            serving(lambda s: replay_pb2_grpc.add_ReplayBufferServiceServicer_to_server(ledger, s))
        )
        trajectories = await stack.enter_async_context(
            serving(lambda s: store_pb2_grpc.add_TrajectoryStoreServiceServicer_to_server(store, s))
        )
        config = make_config(tmp_path, endpoints={"replay": replay, "store": trajectories})
        part = await stack.enter_async_context(started("rollout", config, tmp_path, "worker-0"))
        address = await part.address()
        assert await is_serving(address, LIVE)
        await asyncio.sleep(1)
        assert not await is_serving(address)
        directory, checksum = write(
            tmp_path / "weights", run_id="test", lineage="main", version=0,
            write_files=lambda _: None,
        )  # fmt: skip
        await ledger.publish(
            prompt_pb2.PublishedWeights(
                id=prompt_pb2.WeightsId(lineage="main", version=0),
                uri=str(directory),
                checksum=checksum,
            )
        )
        await until_ready(address, True)
