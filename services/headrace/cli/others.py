"""Asks the processes of a run beside the replay buffer how they are. Synchronous."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import grpc

from headrace.client.finding import announced_address
from headrace.config.rundir import RunDirectory
from headrace.rpc.channel import open_sync_channel
from headrace.rpc.security import Security
from headrace.v1 import (
    checkpoint_pb2,
    checkpoint_pb2_grpc,
    feeder_pb2,
    feeder_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    status_pb2,
    store_pb2,
    store_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
)

TIMEOUT_S = 2.0
"""How long one of them may take to answer."""


def other_processes(
    directory: RunDirectory | None, security: Security
) -> Iterator[status_pb2.ProcessStatus]:
    """Give what those that answer say about themselves; none without a run directory."""
    if directory is None:
        return
    for file in sorted(directory.endpoint_file("any").parent.glob("*.json")):
        address = None if file.stem == "replay" else announced_address(directory, file.stem)
        if address is not None:
            with (
                contextlib.suppress(grpc.RpcError),
                open_sync_channel(address, security) as channel,
            ):
                yield _ask(file.stem, channel)


def _ask(name: str, channel: grpc.Channel) -> status_pb2.ProcessStatus:
    if name == "feeder":
        feeder = feeder_pb2_grpc.PromptFeederServiceStub(channel)
        return feeder.GetFeederStatus(
            feeder_pb2.GetFeederStatusRequest(), timeout=TIMEOUT_S
        ).process
    if name == "store":
        store = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
        return store.GetStoreStatus(store_pb2.GetStoreStatusRequest(), timeout=TIMEOUT_S).process
    if name == "trainer":
        trainer = trainer_pb2_grpc.TrainerServiceStub(channel)
        return trainer.GetTrainerStatus(
            trainer_pb2.GetTrainerStatusRequest(), timeout=TIMEOUT_S
        ).process
    if name == "checkpoint":
        coordinator = checkpoint_pb2_grpc.CheckpointCoordinatorServiceStub(channel)
        return coordinator.GetCoordinatorStatus(
            checkpoint_pb2.GetCoordinatorStatusRequest(), timeout=TIMEOUT_S
        ).process
    worker = rollout_pb2_grpc.RolloutWorkerServiceStub(channel)
    return worker.GetWorkerStatus(rollout_pb2.GetWorkerStatusRequest(), timeout=TIMEOUT_S).process
