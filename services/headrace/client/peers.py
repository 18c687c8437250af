"""The processes of a run beside the replay buffer, as far as it or the run directory names them.

Synchronous.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError
from headrace.rpc import announce
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

TIMEOUT_S: Final = 2.0
"""How long all of them together may take to say how they are."""


@dataclass(frozen=True)
class Roll:
    """Who answered, and who did not."""

    present: Mapping[str, status_pb2.ProcessStatus] = field(default_factory=dict)
    """By name, what each says about itself."""
    silent: tuple[str, ...] = ()
    """Those that did not answer."""


class Peers:
    """Addresses and connections of the other processes, by name.

    Args:
        security: What calls carry.
        known: Addresses by name, that count before what the replay buffer says.

    """

    def __init__(
        self, security: Security | None = None, known: Mapping[str, str] | None = None
    ) -> None:
        self._security = security
        self._known = dict(known or {})
        self._addresses: dict[str, str] = dict(self._known)
        self._channels: dict[str, tuple[str, grpc.Channel]] = {}

    def learn(self, addresses: Mapping[str, str], directory: RunDirectory | None = None) -> None:
        """Take what is known now; what was known before stays.

        Args:
            addresses: As the replay buffer says.
            directory: The run directory, if it is on this machine; it names the workers, too.

        """
        self._addresses.update({**addresses, **self._known})
        if directory is None:
            return
        for file in directory.endpoint_file("any").parent.glob("*.json"):
            announced = announce.read(file)
            if file.stem != "replay" and announced is not None:
                self._addresses[file.stem] = announced.address

    def channel(self, name: str) -> grpc.Channel:
        """Give the connection to a process.

        Raises:
            UsageError: nobody has said where it is.

        """
        address = self._addresses.get(name)
        if address is None:
            raise UsageError(
                "nobody has said where the checkpoint coordinator listens: give its address, "
                "connect(…, checkpoint='host:port'), or name it in the replay buffer's "
                "configuration, endpoints.checkpoint"
                if name == "checkpoint"
                else f"nobody has said yet where the {name} listens: it has not come to the replay "
                "buffer since that was started"
            )
        known = self._channels.get(name)
        if known is None or known[0] != address:
            known = (address, open_sync_channel(address, self._security))
            self._channels[name] = known
        return known[1]

    def known_channel(self, name: str) -> grpc.Channel | None:
        """Give the connection to a process; None if nobody has said where it is."""
        return self.channel(name) if name in self._addresses else None

    def call_the_roll(self) -> Roll:
        """Ask all of them at once how they are."""
        calls, present, silent = {}, {}, []
        for name in self._addresses:
            try:
                calls[name] = _ask(name, self.channel(name))
            except UsageError:  # a token is not sent there
                silent.append(name)
        for name, call in calls.items():
            try:
                present[name] = call.result().process
            except grpc.RpcError:
                silent.append(name)
        return Roll(present, tuple(sorted(silent)))


def _ask(name: str, channel: grpc.Channel) -> Any:
    """Begin to ask; the answer has a `process`."""
    if name == "feeder":
        feeder = feeder_pb2_grpc.PromptFeederServiceStub(channel)
        return feeder.GetFeederStatus.future(feeder_pb2.GetFeederStatusRequest(), timeout=TIMEOUT_S)
    if name == "store":
        store = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
        return store.GetStoreStatus.future(store_pb2.GetStoreStatusRequest(), timeout=TIMEOUT_S)
    if name == "trainer":
        trainer = trainer_pb2_grpc.TrainerServiceStub(channel)
        return trainer.GetTrainerStatus.future(
            trainer_pb2.GetTrainerStatusRequest(), timeout=TIMEOUT_S
        )
    if name == "checkpoint":
        coordinator = checkpoint_pb2_grpc.CheckpointCoordinatorServiceStub(channel)
        return coordinator.GetCoordinatorStatus.future(
            checkpoint_pb2.GetCoordinatorStatusRequest(), timeout=TIMEOUT_S
        )
    worker = rollout_pb2_grpc.RolloutWorkerServiceStub(channel)
    return worker.GetWorkerStatus.future(rollout_pb2.GetWorkerStatusRequest(), timeout=TIMEOUT_S)
