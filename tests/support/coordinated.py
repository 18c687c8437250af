"""Replay buffer, store and checkpoint coordinator as processes, and the test as all the others.

It feeds, generates, trains and saves by the same calls as feeder, worker and trainer, so that a test
says when which of them happens. A prompt's only session has one small trajectory.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from part_process import Part, started
from ports import free_port

from headrace.checkpoint.directory import CheckpointDirectory
from headrace.checkpoint.storage import Storage, fetch, step_name, write_part
from headrace.config.config import Config
from headrace.rpc.channel import open_channel
from headrace.trajectory.client import get_trajectories, put_trajectories
from headrace.trajectory.key import TrajectoryKey
from headrace.v1 import checkpoint_pb2 as pb
from headrace.v1 import (
    checkpoint_pb2_grpc,
    prompt_pb2,
    replay_pb2,
    replay_pb2_grpc,
    resume_pb2,
    store_pb2,
    store_pb2_grpc,
)
from headrace.v1.trajectory_pb2 import FINISH_REASON_STOP, Trajectory, WeightSpan

if TYPE_CHECKING:
    from headrace.v1.checkpoint_pb2_grpc import CheckpointCoordinatorServiceAsyncStub
    from headrace.v1.replay_pb2_grpc import ReplayBufferServiceAsyncStub
    from headrace.v1.store_pb2_grpc import TrajectoryStoreServiceAsyncStub

BATCH = 2
"""Groups per step; as many are in the window beside."""
FINGERPRINT = "data"
FACTS = {"rollout.n": "1", "data.train_batch_size": str(BATCH)}
CALL_S = 60.0


def config_of(directory: Path, **sections: Any) -> Config:
    values: dict[str, Any] = {
        "run": {"run_id": "r", "run_dir": str(directory / "run")},
        "data": {
            "source": {"kind": "jsonl", "path": "rows.jsonl"},
            "train_batch_size": BATCH,
            "max_prompt_length": 8,
            "max_response_length": 8,
        },
        "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "0123456789", "eos": "#"}},
        "rollout": {"n": 1},
        "trainer": {"save_freq": 1, "num_warmup_batches": 1},
        "store": {"durability": "memory", "sweep_every_s": 0.2, "sweep_grace_s": 60},
        "checkpoint": {"storage": str(directory / "storage"), "max_ckpt_to_keep": 2},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return Config.model_validate(values)


async def asked(method: Any, request: object, *, timeout_s: float = CALL_S) -> Any:
    """Ask until there is an answer, as processes do: who is asked may be starting still."""
    ends = time.monotonic() + timeout_s
    while True:
        left_s = max(0.0, ends - time.monotonic())
        try:
            return await method(request, wait_for_ready=True, timeout=left_s)
        except grpc.aio.AioRpcError as failed:
            if failed.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
        await asyncio.sleep(0.05)


@dataclass
class Coordinated:
    """One run."""

    directory: Path
    config: Config
    ports: Mapping[str, int]
    replay: ReplayBufferServiceAsyncStub
    store: TrajectoryStoreServiceAsyncStub
    coordinator: CheckpointCoordinatorServiceAsyncStub
    parts: dict[str, Part] = field(default_factory=dict)
    stacks: dict[str, AsyncExitStack] = field(default_factory=dict)
    trainer_count: int = 0
    incarnation: int = 0
    lineage: str = ""
    step: int = 0
    """The last committed one, as the trainer knows it."""

    # -- processes

    async def start(self, name: str, *, fail: str = "") -> Part:
        stack = AsyncExitStack()
        part = await stack.enter_async_context(
            started(
                name,
                self.config,
                self.directory,
                name,
                port=self.ports[name],
                environment={"HEADRACE_FAIL": fail},
            )
        )
        self.parts[name], self.stacks[name] = part, stack
        await part.address()
        return part

    async def kill(self, name: str) -> None:
        part = self.parts[name]
        if part.process.returncode is None:
            part.process.kill()
        await part.exit_code()
        await self.stacks[name].aclose()

    async def restart(self, name: str, *, fail: str = "") -> None:
        await self.kill(name)
        await self.start(name, fail=fail)

    async def restart_store(self, *, fail: str = "") -> None:
        """Have another store, and wait until the ledger knows."""
        before = (await self.status()).store_incarnation
        await self.restart("store", fail=fail)
        await self.store_known(after=before)

    async def store_known(self, *, after: str) -> None:
        """Wait until another store than one has told the ledger who it is, and takes rows."""
        async with asyncio.timeout(CALL_S):
            while True:
                known = (await self.status()).store_incarnation
                if known not in ("", after) and (await self.store_status()).store_incarnation:
                    return
                await asyncio.sleep(0.05)

    async def killed_itself(self, name: str) -> None:
        """Wait until a failpoint has done its work."""
        assert await self.parts[name].exit_code() == -signal.SIGKILL

    async def stopped_itself(self, name: str) -> None:
        """Wait until a failpoint has stopped a process, to be sent on with SIGCONT."""
        status = Path(f"/proc/{self.parts[name].process.pid}/status")
        async with asyncio.timeout(CALL_S):
            while "State:\tT" not in status.read_text():  # noqa: ASYNC110, ASYNC240 (another's state)
                await asyncio.sleep(0.05)

    @property
    def checkpoints(self) -> CheckpointDirectory:
        return CheckpointDirectory(Storage(str(self.config.checkpoint.storage)))

    # -- feeder

    async def open_feed(self) -> None:
        request = replay_pb2.OpenFeedRequest(row_count=1000, fingerprint=FINGERPRINT)
        await asked(self.replay.OpenFeed, request)

    async def feed(self) -> int:
        wanted = await self.replay.AwaitDemand(replay_pb2.AwaitDemandRequest())
        prompts = [
            replay_pb2.NewPrompt(uid=f"e0r{wanted.cursor + number}")
            for number in range(wanted.demand)
        ]
        if prompts:
            await self.replay.RegisterPrompts(
                replay_pb2.RegisterPromptsRequest(first_ordinal=wanted.cursor, prompts=prompts)
            )
        return len(prompts)

    # -- worker

    async def lease(self, version: int, count: int = 64) -> list[prompt_pb2.Lease]:
        answer = await self.replay.LeasePrompts(
            replay_pb2.LeasePromptsRequest(
                worker_id="w",
                max_count=count,
                weights=prompt_pb2.WeightsId(lineage=self.lineage, version=version),
                weights_checksum="c",
            )
        )
        return list(answer.leases)

    async def generate(self, version: int, count: int = 64) -> list[str]:
        """Lease, put and complete; give the uids."""
        leases = await self.lease(version, count)
        if not leases:
            return []
        made = [trajectory(lease, version) for lease in leases]
        incarnation = await put_trajectories(self.store, made)
        sessions = [
            replay_pb2.CompletedSession(
                lease=replay_pb2.LeaseRef(uid=lease.uid, attempt=lease.attempt),
                record=prompt_pb2.SessionRecord(
                    trajectory_count=1, size_bytes=100, min_version=version, max_version=version
                ),
            )
            for lease in leases
        ]
        await self.replay.CompleteSessions(
            replay_pb2.CompleteSessionsRequest(
                worker_id="w", store_incarnation=incarnation, sessions=sessions
            )
        )
        return [lease.uid for lease in leases]

    async def finished(self) -> list[str]:
        """Give the groups that are ready to be trained on; a slow step may have left some."""
        request = replay_pb2.ListPromptsRequest(state=prompt_pb2.PROMPT_STATE_FINISHED)
        return [group.uid for group in (await self.replay.ListPrompts(request)).groups]

    # -- trainer

    async def register(self) -> None:
        self.trainer_count += 1
        request = replay_pb2.RegisterTrainerRequest(trainer_id=f"t{self.trainer_count}")
        answer = await asked(self.replay.RegisterTrainer, request)
        self.incarnation, self.lineage = answer.incarnation, answer.lineage

    async def ask_to_resume(
        self,
        until: resume_pb2.ResumePhase.ValueType,
        *,
        wait_s: float = 30,
        facts: Mapping[str, str] = FACTS,
    ) -> pb.ResumeResponse:
        request = pb.ResumeRequest(
            incarnation=self.incarnation, facts=facts, until_phase=until, wait_s=wait_s
        )
        answer: pb.ResumeResponse = await asked(
            self.coordinator.Resume, request, timeout_s=wait_s + CALL_S
        )
        return answer

    async def resume(self) -> pb.ResumeResponse:
        """Go on as a trainer does, with a worker and a feeder beside; give the last answer."""
        wanted = resume_pb2.RESUME_PHASE_WEIGHTS
        answer = await self.ask_to_resume(wanted)
        while answer.HasField("state") and answer.state.phase < wanted:  # somebody is away
            answer = await self.ask_to_resume(wanted)
        if not answer.HasField("state"):
            if answer.plan.action == pb.RESUME_ACTION_BEGIN:
                await self.publish(0)
            return answer
        self.take_over(answer)
        await self.publish(self.step)
        await self.lease(self.step)  # a worker has loaded them; nothing is leased yet
        opening = asyncio.create_task(self.ask_to_resume(resume_pb2.RESUME_PHASE_OPEN))
        while not opening.done():
            await self.feed()
            await asyncio.wait([opening], timeout=0.05)
        return opening.result()

    def take_over(self, answer: pb.ResumeResponse) -> None:
        """Load what the trainer's part says."""
        assert answer.state.phase >= resume_pb2.RESUME_PHASE_WEIGHTS, answer
        self.lineage, self.step = answer.state.lineage, answer.state.step
        if answer.HasField("trainer_part"):
            fetch(answer.trainer_part, self.directory / "loaded")
            assert (self.directory / "loaded" / "trainer" / "state").read_text() == str(self.step)
        else:
            assert self.step == 0

    async def come(self) -> pb.ResumeResponse:
        """Be a new trainer, and go on."""
        await self.register()
        return await self.resume()

    async def publish(self, version: int) -> None:
        weights = prompt_pb2.PublishedWeights(
            id=prompt_pb2.WeightsId(lineage=self.lineage, version=version), uri="u", checksum="c"
        )
        await self.replay.PublishWeights(
            replay_pb2.PublishWeightsRequest(incarnation=self.incarnation, weights=weights)
        )

    async def train(self, *, delete: bool = True) -> list[str]:
        """Train the next step on what is there or is generated now; give its uids."""
        step = self.step + 1
        sampling = asyncio.create_task(self._sample(step))
        while not sampling.done():
            await self.feed()
            await self.generate(step - 1)
            await asyncio.wait([sampling], timeout=0.05)
        groups = sampling.result()
        keys = [each.key for group in groups for each in group.trajectories]
        read, missing = await get_trajectories(self.store, keys)
        assert not missing
        assert sorted(read) == sorted(keys)
        request = replay_pb2.CommitStepRequest(incarnation=self.incarnation, step=step)
        await self.replay.CommitStep(request)
        self.step = step
        await self.publish(step)
        await self.feed()
        if delete:
            await self.store.DeleteTrajectories(store_pb2.DeleteTrajectoriesRequest(keys=keys))
        return [group.uid for group in groups]

    async def _sample(self, step: int) -> list[prompt_pb2.SampledGroup]:
        while True:
            answer = await self.replay.SampleBatch(
                replay_pb2.SampleBatchRequest(
                    incarnation=self.incarnation, step=step, part_count=1, wait_s=10
                ),
                timeout=CALL_S,
            )
            if answer.groups:
                return list(answer.groups)

    async def begin_snapshot(self, *, timeout_s: float = CALL_S) -> pb.BeginSnapshotResponse:
        request = pb.BeginSnapshotRequest(incarnation=self.incarnation, step=self.step, facts=FACTS)
        answer: pb.BeginSnapshotResponse = await asked(
            self.coordinator.BeginSnapshot, request, timeout_s=timeout_s
        )
        return answer

    async def report_part(self, snapshot_id: str, *, times: int = 1) -> None:
        """Write the trainer's part once, and say so."""
        source = self.directory / "state_of_trainer"
        source.mkdir(exist_ok=True)
        (source / "state").write_text(str(self.step))
        uri = Storage(str(self.config.checkpoint.storage)).join(step_name(self.step))
        report = pb.ReportPartRequest(snapshot_id=snapshot_id)
        try:
            part = write_part(uri, name="trainer", owner="trainer", source=source, target="trainer")
            report.part.CopyFrom(part)
        except OSError as error:  # the directory may be removed meanwhile
            report.error = str(error)
        for _ in range(times):
            await self.coordinator.ReportPart(report, timeout=CALL_S)

    async def commit(self, snapshot_id: str) -> pb.CommitSnapshotResponse:
        request = pb.CommitSnapshotRequest(snapshot_id=snapshot_id, wait_s=50)
        return await self.coordinator.CommitSnapshot(request, timeout=CALL_S)

    async def save(self) -> pb.CommitSnapshotResponse:
        """Have the last step saved."""
        begun = await self.begin_snapshot()
        if begun.complete:
            return pb.CommitSnapshotResponse(complete=True)
        await self.report_part(begun.snapshot_id)
        saved = await self.commit(begun.snapshot_id)
        assert saved.complete
        return saved

    # -- looking

    async def count_events(self, name: str) -> int:
        """Count the events of a name in the journal so far."""
        last, count = (await self.status()).position, 0
        stream = self.replay.WatchEvents(replay_pb2.WatchEventsRequest())
        async for message in stream:
            count += sum(event.name == name for event in message.events)
            if message.events[-1].position >= last:
                break
        stream.cancel()
        return count

    async def status(self) -> replay_pb2.GetReplayStatusResponse:
        request = replay_pb2.GetReplayStatusRequest()
        answer: replay_pb2.GetReplayStatusResponse = await asked(
            self.replay.GetReplayStatus, request
        )
        return answer

    async def store_status(self) -> store_pb2.GetStoreStatusResponse:
        return await self.store.GetStoreStatus(
            store_pb2.GetStoreStatusRequest(), wait_for_ready=True, timeout=CALL_S
        )

    async def coordinator_status(self) -> pb.GetCoordinatorStatusResponse:
        """Wait until the coordinator has taken up what was left, and look."""
        async with asyncio.timeout(CALL_S):
            while True:
                status = await self.coordinator.GetCoordinatorStatus(
                    pb.GetCoordinatorStatusRequest(), wait_for_ready=True, timeout=CALL_S
                )
                if status.storage:
                    return status
                await asyncio.sleep(0.05)

    async def balanced(self) -> None:
        audit = await self.replay.Audit(replay_pb2.AuditRequest())
        assert audit.ok, list(audit.violations)


def trajectory(lease: prompt_pb2.Lease, version: int) -> Trajectory:
    key = TrajectoryKey(lease.uid, 0, 0, lease.lineage, lease.attempt)
    return Trajectory(
        schema_version=1,
        key=str(key),
        prompt_token_ids=[1, 2],
        response_token_ids=[3, 4],
        logprobs=[-0.5, -0.25],
        loss_mask=[True, True],
        reward=1.0,
        weight_spans=[WeightSpan(lineage=lease.lineage, version=version, begin=0, end=2)],
        finish_reason=FINISH_REASON_STOP,
        temperature=1.0,
    )


@asynccontextmanager
async def coordinated(directory: Path, **sections: Any) -> AsyncIterator[Coordinated]:
    """Start all three; the run has not begun."""
    ports = {name: free_port() for name in ("replay", "store", "checkpoint")}
    endpoints = {name: f"127.0.0.1:{ports[name]}" for name in ("replay", "store", "checkpoint")}
    config = config_of(directory, endpoints=endpoints, **sections)
    async with AsyncExitStack() as stack:
        channels = {
            name: await stack.enter_async_context(open_channel(address))
            for name, address in endpoints.items()
        }
        run = Coordinated(
            directory,
            config,
            ports,
            replay_pb2_grpc.ReplayBufferServiceStub(channels["replay"]),
            store_pb2_grpc.TrajectoryStoreServiceStub(channels["store"]),
            checkpoint_pb2_grpc.CheckpointCoordinatorServiceStub(channels["checkpoint"]),
        )
        try:
            await asyncio.gather(*(run.start(name) for name in ports))
            await run.open_feed()
            await run.store_known(after="")
            yield run
        finally:
            for name in run.parts:
                await run.kill(name)
