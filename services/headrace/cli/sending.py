"""Sends a worker of a run home. Synchronous."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc

from headrace.cli.find import run_directory
from headrace.cli.view import SERVICES
from headrace.client.finding import announced_address
from headrace.config.load import load_config
from headrace.config.rundir import RunDirectory
from headrace.errors import HeadraceError, UsageError
from headrace.rpc.channel import open_sync_channel
from headrace.rpc.failures import detail_of, failure_of
from headrace.rpc.security import Security
from headrace.v1 import rollout_pb2, rollout_pb2_grpc

TIMEOUT_S: Final = 10.0
"""How long the answer may take."""


def send_home(worker: str, run: Path | None) -> int:
    """Tell a worker to drain; give the groups that it holds.

    Raises:
        UsageError: there is no such run or worker, or the worker does not answer.

    """
    directory = run_directory(run)
    address = announced_address(directory, worker) if worker not in SERVICES else None
    if address is None:
        there = ", ".join(_workers(directory)) or "none"
        raise UsageError(f"no worker {worker!r} of {directory.path} is running; there are: {there}")
    security = Security.for_looking(load_config(directory.config_file))
    with open_sync_channel(address, security) as channel:
        stub = rollout_pb2_grpc.RolloutWorkerServiceStub(channel)
        try:
            return stub.Drain(rollout_pb2.DrainRequest(), timeout=TIMEOUT_S).groups_in_flight
        except grpc.RpcError as failed:
            failure = failure_of(failed, worker)
            if isinstance(failure, HeadraceError):
                raise failure from failed
            raise UsageError(f"{worker} does not answer: {detail_of(failed)}") from None


def _workers(directory: RunDirectory) -> list[str]:
    """Name the workers that listen."""
    files = sorted(directory.endpoint_file("any").parent.glob("*.json"))
    names = [file.stem for file in files if file.stem not in SERVICES]
    return [name for name in names if announced_address(directory, name) is not None]
