"""A replay buffer with a token and TLS: who may call it, and what everybody else is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from part_process import Part, started

from headrace.cli.credentials import Credentials, make_credentials
from headrace.config.config import Config
from headrace.errors import (
    ProtocolMismatchError,
    TokenRefusedError,
    UsageError,
    WireError,
    WrongRunError,
)
from headrace.rollout import process as worker
from headrace.rpc import metadata
from headrace.rpc.calls import persist
from headrace.rpc.channel import open_channel, open_sync_channel
from headrace.rpc.metadata import AUTHORIZATION, PROTOCOL, RUN
from headrace.rpc.process import ProcessOptions
from headrace.rpc.security import Security
from headrace.rpc.status import error_from
from headrace.rpc.waits import Waits
from headrace.v1 import replay_pb2 as pb
from headrace.v1 import replay_pb2_grpc

RUN_ID = "run-1"
METHODS = {
    method.name: method for method in pb.DESCRIPTOR.services_by_name["ReplayBufferService"].methods
}


def make_config(directory: Path, security: dict[str, Any], **sections: Any) -> Config:
    return Config.model_validate(
        {
            "run": {"run_dir": directory, "run_id": RUN_ID},
            "data": {
                "source": {"kind": "jsonl", "path": "rows.jsonl"},
                "train_batch_size": 4,
                "max_prompt_length": 4,
                "max_response_length": 6,
            },
            "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "abcdef", "eos": "."}},
            "rollout": {"engine": {"kind": "scripted"}, "n": 2},
            "security": security,
            **sections,
        }
    )


def section(credentials: Credentials) -> dict[str, Any]:
    tls = {"ca": credentials.ca, "cert": credentials.cert, "key": credentials.key}
    return {"token_file": credentials.token, "tls": tls}


@pytest.fixture(scope="session")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    directory = tmp_path_factory.mktemp("certs")
    return make_credentials(directory, (), days=1, force=False, now=datetime.now(UTC))


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    """Another run's."""
    directory = tmp_path_factory.mktemp("strangers")
    return make_credentials(directory, (), days=1, force=False, now=datetime.now(UTC))


@dataclass
class Guarded:
    """A replay buffer that wants a token, in a process of its own."""

    part: Part
    address: str
    config: Config
    security: Security

    async def status(self) -> pb.GetReplayStatusResponse:
        """Ask, and wait until its journal is loaded."""
        return await ask_for_long(self.address, self.security)

    async def state(self) -> tuple[int, str]:
        """What no refused call may change."""
        status = await self.status()
        return status.position, str(status.counts)

    async def work(self, config: Config) -> int:
        """Be a worker beside it, in this process."""
        return await worker.run(config, ProcessOptions(name="worker-0"))

    def workers_config(self, **sections: Any) -> Config:
        endpoints = {"replay": self.address, "store": self.address}
        security = self.config.security.model_dump()
        return make_config(
            self.config.run.run_dir or Path(),
            sections.pop("security", security),
            endpoints=endpoints,
            **sections,
        )


@pytest_asyncio.fixture
async def guarded(tmp_path: Path, credentials: Credentials) -> AsyncIterator[Guarded]:
    config = make_config(tmp_path, section(credentials))
    async with started("replay", config, tmp_path, "replay") as part:
        address = await part.address()
        yield Guarded(part, address, config, Security.from_config(config))


async def call(channel: Any, name: str, extra: metadata.Metadata) -> None:
    """Call a method of the replay buffer with an empty request, whatever kind it is."""
    method = METHODS[name]
    path = f"/{method.containing_service.full_name}/{name}"
    assert not method.client_streaming
    if method.server_streaming:
        async for _ in channel.unary_stream(path)(b"", metadata=extra, timeout=20):
            return
    else:
        await channel.unary_unary(path)(b"", metadata=extra, timeout=20)


async def refusal(work: Any) -> WireError:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await work
    error = error_from(failed.value)
    assert error is not None, failed.value
    assert failed.value.code() is error.code
    return error


CALLERS: dict[str, tuple[Callable[[str], dict[str, str]], type[WireError]]] = {
    "no token": (lambda _: {}, TokenRefusedError),
    "another token": (lambda _: {AUTHORIZATION: "Bearer no"}, TokenRefusedError),
    "the token alone": (lambda token: {AUTHORIZATION: token}, TokenRefusedError),
    "a longer token": (lambda token: {AUTHORIZATION: f"Bearer {token}x"}, TokenRefusedError),
    "an old protocol": (
        lambda token: {AUTHORIZATION: f"Bearer {token}", PROTOCOL: "0"},
        ProtocolMismatchError,
    ),
    "another run": (
        lambda token: {AUTHORIZATION: f"Bearer {token}", PROTOCOL: "1", RUN: "run-2"},
        WrongRunError,
    ),
}


async def test_no_method_lets_in_who_has_no_business_here(guarded: Guarded) -> None:
    before = await guarded.state()
    assert guarded.security.authority is not None
    credentials = grpc.ssl_channel_credentials(guarded.security.authority)
    async with grpc.aio.secure_channel(guarded.address, credentials) as channel:
        for caller, (make, expected) in CALLERS.items():
            extra = tuple(make(guarded.security.token).items())
            for name in METHODS:
                error = await refusal(call(channel, name, extra))
                assert type(error) is expected, (caller, name)
    assert await guarded.state() == before


async def test_a_tool_of_no_run_and_no_protocol_is_welcome_with_the_token(
    guarded: Guarded,
) -> None:
    await guarded.status()
    assert guarded.security.authority is not None
    credentials = grpc.ssl_channel_credentials(guarded.security.authority)
    extra = ((AUTHORIZATION, f"Bearer {guarded.security.token}"),)
    async with grpc.aio.secure_channel(guarded.address, credentials) as channel:
        await call(channel, "GetReplayStatus", extra)


async def test_a_refusal_names_both_sides(guarded: Guarded) -> None:
    other = replace(guarded.security, run_id="run-2")
    async with open_channel(guarded.address, other) as channel:
        stub = replay_pb2_grpc.ReplayBufferServiceStub(channel)
        error = await refusal(stub.GetReplayStatus(pb.GetReplayStatusRequest()))
    assert error.metadata == {"run_id": RUN_ID, "callers_run_id": "run-2"}
    assert str(error).startswith("replay belongs to the run run-1, and the caller to run-2: ")


async def test_health_needs_no_token_and_reflection_does(guarded: Guarded) -> None:
    stranger = replace(guarded.security, token="")

    refused = asyncio.Event()

    async def requests(security: Security) -> AsyncIterator[Any]:
        if security is stranger:
            # A message to a call that has ended hides how it ended: gRPC then says INTERNAL.
            await refused.wait()
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    async def services(security: Security) -> list[str]:
        channel: Any
        async with open_channel(guarded.address, security) as channel:
            stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
            calls = stub.ServerReflectionInfo(requests(security), timeout=20)
            [answer] = [a async for a in calls]
        return [service.name for service in answer.list_services_response.service]

    async with open_channel(guarded.address, stranger) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=20)
        assert answer.status in (
            health_pb2.HealthCheckResponse.SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        )
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=20)
        assert await watch.read()
        watch.cancel()
    assert isinstance(await refusal(services(stranger)), TokenRefusedError)
    assert "headrace.v1.ReplayBufferService" in await services(guarded.security)


async def test_a_synchronous_channel_carries_the_token_too(guarded: Guarded) -> None:
    def position(security: Security) -> int:
        with open_sync_channel(guarded.address, security) as channel:
            stub = replay_pb2_grpc.ReplayBufferServiceStub(channel)
            return stub.GetReplayStatus(pb.GetReplayStatusRequest()).position

    await guarded.status()
    assert await asyncio.to_thread(position, guarded.security) >= 0
    with pytest.raises(grpc.RpcError) as failed:
        await asyncio.to_thread(position, replace(guarded.security, token="other"))
    assert isinstance(error_from(failed.value), TokenRefusedError)


async def test_a_worker_with_another_token_ends_with_a_line_and_changes_nothing(
    guarded: Guarded, strangers: Credentials
) -> None:
    before = await guarded.state()
    security = guarded.config.security.model_dump() | {"token_file": strangers.token}
    with pytest.raises(UsageError, match=r"^replay refuses this token, it has another one: .*\Z"):
        await guarded.work(guarded.workers_config(security=security))
    assert await guarded.state() == before


async def test_a_worker_of_another_run_ends_with_a_line_and_changes_nothing(
    guarded: Guarded, tmp_path: Path
) -> None:
    before = await guarded.state()
    config = guarded.workers_config(run={"run_dir": tmp_path, "run_id": "run-2"})
    with pytest.raises(UsageError, match=r"^replay belongs to the run run-1, .* to run-2: .*\Z"):
        await guarded.work(config)
    assert await guarded.state() == before


async def test_a_worker_of_an_old_protocol_ends_with_a_line_and_changes_nothing(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await guarded.state()
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "PROTOCOL_VERSION", "0")
        with pytest.raises(UsageError, match=r"^replay speaks version 1 of .*, .* version 0: .*\Z"):
            await guarded.work(guarded.workers_config())
    assert await guarded.state() == before


async def test_a_worker_that_is_refused_in_a_process_of_its_own_exits_with_2(
    guarded: Guarded, strangers: Credentials, tmp_path: Path
) -> None:
    security = guarded.config.security.model_dump() | {"token_file": strangers.token}
    config = guarded.workers_config(security=security)
    async with started("rollout", config, tmp_path, "worker-0") as part:
        assert await part.exit_code() == 2
    said = part.log.read_text().splitlines()[-1]
    assert said.startswith("replay refuses this token, it has another one")


async def ask(
    address: str, security: Security, waits: Waits, jitter: Callable[[], float] = float
) -> pb.GetReplayStatusResponse:
    async with open_channel(address, security) as channel:
        stub: replay_pb2_grpc.ReplayBufferServiceAsyncStub
        stub = replay_pb2_grpc.ReplayBufferServiceStub(channel)
        return await persist(
            stub.GetReplayStatus,
            pb.GetReplayStatusRequest(),
            waits=waits,
            name="an answer",
            owner="replay",
            jitter=jitter,
        )


async def ask_for_long(address: str, security: Security) -> pb.GetReplayStatusResponse:
    return await asyncio.wait_for(ask(address, security, Waits(stall_after_s=60)), 60)


async def test_a_caller_that_trusts_another_authority_is_told_once(
    guarded: Guarded, strangers: Credentials
) -> None:
    other = replace(guarded.security, authority=strangers.ca.read_bytes())
    with pytest.raises(UsageError, match=r"^no secure connection to replay: its certificate does "):
        await ask_for_long(guarded.address, other)


async def test_a_caller_with_tls_is_told_that_the_other_side_has_none(tmp_path: Path) -> None:
    config = make_config(tmp_path, {})
    made = make_credentials(tmp_path / "c", (), days=1, force=False, now=datetime.now(UTC))
    async with started("replay", config, tmp_path, "replay") as part:
        address = await part.address()
        with pytest.raises(UsageError, match=r"^no secure connection to replay: it speaks no TLS"):
            await ask_for_long(address, Security(authority=made.ca.read_bytes()))


async def test_a_caller_without_tls_goes_on_and_says_how_the_last_try_failed(
    guarded: Guarded,
) -> None:
    # A connection that a server with TLS closes looks like one that a dying server closes.
    waits, failed = Waits(stall_after_s=60), asyncio.Event()

    def jitter() -> float:
        failed.set()
        return 0.0

    asking = asyncio.create_task(ask(guarded.address, Security(), waits, jitter))
    await asyncio.wait_for(failed.wait(), 60)
    [wait] = waits.snapshot()
    assert wait.ends_when.startswith("replay answers (the last try failed: ")
    assert wait.ends_when.endswith("Socket closed)")
    assert not asking.done()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@pytest_asyncio.fixture
async def tls_server() -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """Serve nothing with a certificate that a process would not start with."""
    servers = []

    async def serve(credentials: Credentials, host: str = "127.0.0.1") -> str:
        server = grpc.aio.server()
        pair = (credentials.key.read_bytes(), credentials.cert.read_bytes())
        port = server.add_secure_port(f"{host}:0", grpc.ssl_server_credentials([pair]))
        await server.start()
        servers.append(server)
        return f"{host}:{port}"

    yield serve
    for server in servers:
        await server.stop(0)


async def test_a_certificate_that_expired_while_its_server_ran_is_named(
    tmp_path: Path, tls_server: Callable[..., Awaitable[str]]
) -> None:
    past = datetime.now(UTC) - timedelta(days=2)
    old = make_credentials(tmp_path, (), days=1, force=False, now=past)
    address = await tls_server(old)
    with pytest.raises(UsageError, match=r"replay: its certificate has expired"):
        await ask_for_long(address, Security(authority=old.ca.read_bytes()))


async def test_a_certificate_for_another_name_is_named(
    credentials: Credentials, tls_server: Callable[..., Awaitable[str]]
) -> None:
    address = await tls_server(credentials, "127.0.0.2")
    with pytest.raises(UsageError, match=r"does not name it as it is called here"):
        await ask_for_long(address, Security(authority=credentials.ca.read_bytes()))


async def test_a_server_on_all_addresses_announces_one_that_its_certificate_names(
    tmp_path: Path, credentials: Credentials
) -> None:
    config = make_config(tmp_path, section(credentials), endpoints={"bind_host": "0.0.0.0"})
    async with started("replay", config, tmp_path, "replay") as part:
        address = await part.address()
        assert address.startswith("127.0.0.1:")
        await ask_for_long(address, Security.from_config(config))


@pytest.mark.parametrize("missing", ["token_file", "tls"])
async def test_a_server_on_all_addresses_without_both_does_not_start(
    tmp_path: Path, credentials: Credentials, missing: str
) -> None:
    security = section(credentials) | {missing: None}
    config = make_config(tmp_path, security, endpoints={"bind_host": "0.0.0.0"})
    async with started("replay", config, tmp_path, "replay") as part:
        assert await part.exit_code() == 2
    said = part.log.read_text().splitlines()[-1]
    assert said.startswith("cannot listen on '0.0.0.0': without a token and TLS ")
    assert f"set security.{missing} (" in said
