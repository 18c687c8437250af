"""Asks every process of a run once a second how it is, and follows the trainer's steps.

A process that does not answer changes nothing but the time it was last heard of. Never
fails; only looks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

import grpc

from headrace.cli.addresses import Addresses
from headrace.cli.standing import Standing
from headrace.cli.view import View
from headrace.errors import HeadraceError
from headrace.rpc.channel import open_channel
from headrace.rpc.failures import detail_of, failure_of
from headrace.rpc.security import Security
from headrace.v1 import (
    checkpoint_pb2,
    checkpoint_pb2_grpc,
    feeder_pb2,
    feeder_pb2_grpc,
    replay_pb2,
    replay_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    status_pb2,
    store_pb2,
    store_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
)

ASK_EVERY_S: Final = 1.0
"""How often each process is asked."""
ANSWER_WITHIN_S: Final = 2.0
"""How long it may take."""
AUDIT_WITHIN_S: Final = 30.0
"""How long an audit may take."""
STREAM_S: Final = 10.0
"""After this long the stream of steps is opened again: after a resume it leads on from an earlier
step."""


class Watcher:
    """Keeps a view up to date.

    Args:
        view: what is kept up to date.
        addresses: where the processes listen.
        names: the processes; may grow.
        security: what they want of a caller.
        now: seconds of the clock of the view.

    """

    def __init__(
        self,
        view: View,
        addresses: Addresses,
        names: Collection[str],
        *,
        security: Security | None = None,
        now: Callable[[], float],
    ) -> None:
        self._view = view
        self._addresses = addresses
        self._names = names
        self._security = security
        self._now = now
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name in self._names:
                tasks.create_task(self.keep_asking(name))
            tasks.create_task(self.follow_steps())

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            await channel.close()

    async def ask_all(self) -> None:
        """Ask everybody once more, for the summary."""
        known = [name for name in self._names if name in self._addresses.all]
        await asyncio.gather(*(self._ask(name) for name in known))

    async def audit(self) -> replay_pb2.AuditResponse | None:
        """Ask for an audit; None if the replay buffer does not answer."""
        if "replay" not in self._addresses.all:
            return None
        stub: Any = replay_pb2_grpc.ReplayBufferServiceStub(self._channel("replay"))
        with contextlib.suppress(grpc.aio.AioRpcError):
            answer: replay_pb2.AuditResponse = await stub.Audit(
                replay_pb2.AuditRequest(), timeout=AUDIT_WITHIN_S
            )
            return answer
        return None

    async def standing(self) -> Standing | None:
        """Ask where the run stands; None if nobody can say."""
        if "replay" not in self._addresses.all:
            return None
        try:
            status = await self.reach()
        except HeadraceError:
            return None
        return Standing.of(status) if status is not None else None

    async def reach(self) -> replay_pb2.GetReplayStatusResponse | None:
        """Ask the replay buffer; None if it does not answer.

        Raises:
            HeadraceError: it does not speak with us.

        """
        try:
            await self._ask_replay("replay")
        except grpc.aio.AioRpcError as failed:
            failure = failure_of(failed, "replay")
            if isinstance(failure, HeadraceError):
                raise failure from failed
            return None
        return self._view.replay

    async def locate(self, uid: str) -> replay_pb2.LocatePromptResponse:
        """Ask where a prompt is.

        Raises:
            HeadraceError: there is no such prompt.
            grpc.aio.AioRpcError: the replay buffer does not answer.

        """
        stub: Any = replay_pb2_grpc.ReplayBufferServiceStub(self._channel("replay"))
        request = replay_pb2.LocatePromptRequest(uid=uid)
        try:
            answer: replay_pb2.LocatePromptResponse = await stub.LocatePrompt(
                request, timeout=ANSWER_WITHIN_S
            )
        except grpc.aio.AioRpcError as failed:
            raise failure_of(failed, "replay") from failed
        return answer

    async def keep_asking(self, name: str) -> None:
        """Ask a process again and again, until cancelled."""
        await self._addresses.known([name])
        self._view.heard.setdefault(name, self._now())
        while True:
            await self._ask(name)
            await asyncio.sleep(ASK_EVERY_S)

    async def _ask(self, name: str) -> None:
        try:
            process = await self._asker(name)(name)
        except grpc.aio.AioRpcError as failed:
            self._view.trouble[name] = detail_of(failed)
            return
        self._view.trouble.pop(name, None)
        self._view.processes[name] = process
        self._view.heard[name] = self._now()

    def _asker(self, name: str) -> Callable[[str], Awaitable[status_pb2.ProcessStatus]]:
        special = {
            "replay": self._ask_replay,
            "trainer": self._ask_trainer,
            "store": self._ask_store,
            "feeder": self._ask_feeder,
            "checkpoint": self._ask_coordinator,
        }
        return special.get(name, self._ask_worker)

    async def _ask_replay(self, name: str) -> status_pb2.ProcessStatus:
        stub: Any = replay_pb2_grpc.ReplayBufferServiceStub(self._channel(name))
        answer: replay_pb2.GetReplayStatusResponse = await stub.GetReplayStatus(
            replay_pb2.GetReplayStatusRequest(), timeout=ANSWER_WITHIN_S
        )
        self._view.replay = answer
        resume = answer.resume
        if resume.lineage and resume.resume_id != self._view.last_resume:
            self._view.last_resume = resume.resume_id
            self._view.steps.forget_after(resume.step)
        if answer.paused:
            self._view.paused_until = self._now()
        return answer.process

    async def _ask_trainer(self, name: str) -> status_pb2.ProcessStatus:
        stub: Any = trainer_pb2_grpc.TrainerServiceStub(self._channel(name))
        answer: trainer_pb2.GetTrainerStatusResponse = await stub.GetTrainerStatus(
            trainer_pb2.GetTrainerStatusRequest(), timeout=ANSWER_WITHIN_S
        )
        self._view.trainer = answer
        return answer.process

    async def _ask_store(self, name: str) -> status_pb2.ProcessStatus:
        stub: Any = store_pb2_grpc.TrajectoryStoreServiceStub(self._channel(name))
        answer: store_pb2.GetStoreStatusResponse = await stub.GetStoreStatus(
            store_pb2.GetStoreStatusRequest(), timeout=ANSWER_WITHIN_S
        )
        return answer.process

    async def _ask_feeder(self, name: str) -> status_pb2.ProcessStatus:
        stub: Any = feeder_pb2_grpc.PromptFeederServiceStub(self._channel(name))
        answer: feeder_pb2.GetFeederStatusResponse = await stub.GetFeederStatus(
            feeder_pb2.GetFeederStatusRequest(), timeout=ANSWER_WITHIN_S
        )
        return answer.process

    async def _ask_coordinator(self, name: str) -> status_pb2.ProcessStatus:
        stub: Any = checkpoint_pb2_grpc.CheckpointCoordinatorServiceStub(self._channel(name))
        answer: checkpoint_pb2.GetCoordinatorStatusResponse = await stub.GetCoordinatorStatus(
            checkpoint_pb2.GetCoordinatorStatusRequest(), timeout=ANSWER_WITHIN_S
        )
        self._view.coordinator = answer
        return answer.process

    async def _ask_worker(self, name: str) -> status_pb2.ProcessStatus:
        stub: Any = rollout_pb2_grpc.RolloutWorkerServiceStub(self._channel(name))
        answer: rollout_pb2.GetWorkerStatusResponse = await stub.GetWorkerStatus(
            rollout_pb2.GetWorkerStatusRequest(), timeout=ANSWER_WITHIN_S
        )
        self._view.workers[name] = answer
        for count in (self._view.tokens, self._view.worker_tokens[name]):
            count.add(name, answer.generated_token_count, answer.wasted_token_count, self._now())
        return answer.process

    async def follow_steps(self) -> None:
        """Follow the trainer's steps, until cancelled."""
        await self._addresses.known(["trainer"])
        while True:
            stub: Any = trainer_pb2_grpc.TrainerServiceStub(self._channel("trainer"))
            after = trainer_pb2.WatchStepsRequest(after_step=self._view.steps.last)
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for answer in stub.WatchSteps(after, timeout=STREAM_S):
                    self._view.steps.add(answer.step, answer.metrics, self._now())
            await asyncio.sleep(ASK_EVERY_S)

    def _channel(self, name: str) -> grpc.aio.Channel:
        """Processes mostly keep their port when they are started again, and channels stay good."""
        address = self._addresses.all[name]
        if address not in self._channels:
            self._channels[address] = open_channel(address, self._security)
        return self._channels[address]
