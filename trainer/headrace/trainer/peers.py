"""The processes that a trainer calls. Knows where they are, and nothing of what is asked of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from headrace.config.config import Config
from headrace.errors import UsageError
from headrace.rpc.channel import open_channel
from headrace.rpc.security import Security
from headrace.v1 import checkpoint_pb2_grpc, feeder_pb2_grpc, replay_pb2_grpc, store_pb2_grpc

if TYPE_CHECKING:
    ReplayStub = replay_pb2_grpc.ReplayBufferServiceAsyncStub
    StoreStub = store_pb2_grpc.TrajectoryStoreServiceAsyncStub
    FeederStub = feeder_pb2_grpc.PromptFeederServiceAsyncStub
    CoordinatorStub = checkpoint_pb2_grpc.CheckpointCoordinatorServiceAsyncStub


@dataclass(frozen=True)
class Peers:
    """Whom a trainer calls."""

    replay: ReplayStub
    """Has the ledger."""
    store: StoreStub
    """Has the trajectories."""
    feeder: FeederStub | None
    """Has the data set; None where nothing is read of it."""
    coordinator: CoordinatorStub | None
    """Makes checkpoints; None where there are none."""


def saves(config: Config) -> bool:
    """Whether the run has checkpoints."""
    return config.trainer.save_freq > 0


@asynccontextmanager
async def open_peers(config: Config, security: Security) -> AsyncIterator[Peers]:
    """Open channels to all of them.

    Raises:
        UsageError: an address is missing.

    """
    async with AsyncExitStack() as stack:

        async def channel(name: str) -> grpc.aio.Channel:
            return await stack.enter_async_context(open_channel(_address(config, name), security))

        warm = config.trainer.warm_start.steps > 0
        yield Peers(
            replay=replay_pb2_grpc.ReplayBufferServiceStub(await channel("replay")),
            store=store_pb2_grpc.TrajectoryStoreServiceStub(await channel("store")),
            feeder=(
                feeder_pb2_grpc.PromptFeederServiceStub(await channel("feeder")) if warm else None
            ),
            coordinator=(
                checkpoint_pb2_grpc.CheckpointCoordinatorServiceStub(await channel("checkpoint"))
                if saves(config)
                else None
            ),
        )


def check_addresses(config: Config) -> None:
    """Find early that an address is missing.

    Raises:
        UsageError: one is.

    """
    _address(config, "replay")
    _address(config, "store")
    if config.trainer.warm_start.steps:
        _address(config, "feeder")
    if saves(config):
        _address(config, "checkpoint")


def _address(config: Config, name: str) -> str:
    address: str | None = getattr(config.endpoints, name)
    if address is None:
        instead = (
            ", or trainer.save_freq=-1 for a run without checkpoints"
            if name == "checkpoint"
            else ""
        )
        raise UsageError(
            f"endpoints.{name} is not set: the trainer needs the host:port of that service{instead}"
        )
    return address
