"""Sends a worker of a run home: by its own address, or through the replay buffer. Synchronous."""

from __future__ import annotations

import re
from typing import Final

import grpc

from headrace.cli.places import Places
from headrace.cli.view import SERVICES
from headrace.client.finding import announced_address
from headrace.client.wire import WireLedger
from headrace.config.rundir import RunDirectory
from headrace.errors import HeadraceError, UsageError
from headrace.rpc.channel import open_sync_channel
from headrace.rpc.failures import detail_of, failure_of
from headrace.rpc.security import Security
from headrace.v1 import rollout_pb2, rollout_pb2_grpc

TIMEOUT_S: Final = 10.0
"""How long the answer may take."""
_LIFE: Final = re.compile(r"-[0-9]+-[0-9a-f]{6}$")
"""What a worker's id has beyond its name: one of its lives."""


def send_home(worker: str, places: Places) -> int:
    """Tell a worker to drain; give the groups that it holds.

    Raises:
        UsageError: there is no such run or worker, or it does not answer.

    """
    if places.directory is None:
        return _through_replay(worker, WireLedger(places.replay, places.security))
    return _directly(worker, places.directory, places.security)


def _directly(worker: str, directory: RunDirectory, security: Security) -> int:
    address = announced_address(directory, worker) if worker not in SERVICES else None
    if address is None:
        there = ", ".join(_workers(directory)) or "none"
        raise UsageError(f"no worker {worker!r} of {directory.path} is running; there are: {there}")
    with open_sync_channel(address, security) as channel:
        stub = rollout_pb2_grpc.RolloutWorkerServiceStub(channel)
        try:
            return stub.Drain(rollout_pb2.DrainRequest(), timeout=TIMEOUT_S).groups_in_flight
        except grpc.RpcError as failed:
            failure = failure_of(failed, worker)
            if isinstance(failure, HeadraceError):
                raise failure from failed
            raise UsageError(f"{worker} does not answer: {detail_of(failed)}") from None


def _through_replay(worker: str, ledger: WireLedger) -> int:
    """Find it by its id, or by its name if no other worker has that."""
    there = [summary.worker_id for summary in ledger.status().workers]
    named = [each for each in there if worker in (each, _name_of(each))]
    if not named:
        listed = ", ".join(there) or "none"
        raise UsageError(f"no worker {worker!r} was heard of lately; there are: {listed}")
    if len(named) > 1:
        raise UsageError(f"{worker} is the name of several: give one of {', '.join(named)}")
    return ledger.drain_worker(named[0])


def _name_of(worker_id: str) -> str:
    return _LIFE.sub("", worker_id)


def _workers(directory: RunDirectory) -> list[str]:
    """Name the workers that listen."""
    files = sorted(directory.endpoint_file("any").parent.glob("*.json"))
    names = [file.stem for file in files if file.stem not in SERVICES]
    return [name for name in names if announced_address(directory, name) is not None]
