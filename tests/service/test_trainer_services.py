"""The trainer with a real replay buffer and a real store; feeder and worker are the test's."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from headrace.config.load import load_config
from headrace.rpc import announce
from headrace.rpc.channel import open_channel
from headrace.rpc.process import ProcessOptions
from headrace.rpc.waits import Waits
from headrace.trainer.process import run
from headrace.trajectory.client import get_trajectories, put_trajectories
from headrace.trajectory.key import TrajectoryKey
from headrace.v1 import feeder_pb2, prompt_pb2, replay_pb2_grpc, store_pb2, store_pb2_grpc
from headrace.v1 import replay_pb2 as pb
from headrace.v1.trajectory_pb2 import FINISH_REASON_STOP, Trajectory, WeightSpan

ROWS, BATCH, SESSIONS, EOS = 22, 4, 2, 1
UNLUCKY = "e0r5"
"""The group whose trajectories are lost after they were recorded, once."""


def config_file(directory: Path) -> Path:
    settings = {
        "run": {"run_dir": str(directory), "run_id": "r"},
        "data": {
            "source": {"kind": "jsonl", "path": "none"},
            "train_batch_size": BATCH,
            "max_prompt_length": 4,
            "max_response_length": 2,
        },
        "model": {
            "architecture": "gpt2",
            "options": {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8},
            "tokenizer": {"alphabet": "0123", "eos": ";"},
        },
        "rollout": {"n": SESSIONS},
        "trainer": {
            "threads": 1,
            "tensorboard": False,
            "parameter_sync_step": 2,
            "save_freq": -1,
        },
    }
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@asynccontextmanager
async def served(kind: str, config: Path, *overrides: str) -> AsyncIterator[str]:
    """Run one of the services as a process; yield its address."""
    place = config.parent / f"{kind}.json"
    arguments = ("serve", kind, str(config), *overrides, "--announce", str(place))
    with (config.parent / f"{kind}.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headrace.cli.main", *arguments, stdout=output, stderr=output
        )
        try:
            while (announced := announce.read(place)) is None:
                assert process.returncode is None, (config.parent / f"{kind}.log").read_text()
                await asyncio.sleep(0.05)
            yield announced.address
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


class Rest:
    """The feeder and one worker, as small as they can be."""

    def __init__(self, replay: Any, store: Any) -> None:
        self.replay = replay
        self.store = store
        self.made: list[str] = []
        self.waits = Waits(stall_after_s=60)

    async def feed(self) -> None:
        opened = await self.replay.OpenFeed(pb.OpenFeedRequest(row_count=ROWS, fingerprint="f"))
        cursor = opened.cursor
        while True:
            answer = await self.replay.AwaitDemand(pb.AwaitDemandRequest(wait_s=5))
            count = answer.surplus_count if answer.ended else answer.demand
            reason = (
                prompt_pb2.DROP_REASON_SURPLUS
                if answer.ended
                else prompt_pb2.DROP_REASON_UNSPECIFIED
            )
            prompts = [
                pb.NewPrompt(
                    uid=f"e0r{ordinal}",
                    payload=feeder_pb2.PromptPayload(token_ids=[2, 3]),
                    drop_reason=reason,
                )
                for ordinal in range(cursor, cursor + count)
            ]
            if prompts:
                request = pb.RegisterPromptsRequest(first_ordinal=cursor, prompts=prompts)
                cursor = (await self.replay.RegisterPrompts(request)).cursor
            if answer.ended:
                return

    async def work(self) -> None:
        weights = prompt_pb2.PublishedWeights()
        while True:
            newest = await self.replay.AwaitWeights(
                pb.AwaitWeightsRequest(
                    newer_than=weights.id if weights.checksum else None,
                    wait_s=0 if weights.checksum else 5,
                )
            )
            if newest.HasField("weights"):
                weights = newest.weights
            if not weights.checksum:
                continue
            answer = await self.replay.LeasePrompts(
                pb.LeasePromptsRequest(
                    worker_id="w",
                    max_count=2,
                    weights=weights.id,
                    weights_checksum=weights.checksum,
                    wait_s=0.5,
                )
            )
            for lease in answer.leases:
                await self._complete(lease, weights.id)
            if answer.ended:
                return

    async def _complete(self, lease: prompt_pb2.Lease, weights: prompt_pb2.WeightsId) -> None:
        made = [self._generate(lease, session, weights) for session in lease.missing_sessions]
        # The replay buffer knows of the store a moment before it takes puts.
        incarnation = await put_trajectories(self.store, made, waits=self.waits)
        self.made += [trajectory.key for trajectory in made]
        if lease.uid == UNLUCKY and lease.attempt == 1:
            keys = [trajectory.key for trajectory in made[:1]]
            await self.store.DeleteTrajectories(store_pb2.DeleteTrajectoriesRequest(keys=keys))
        sessions = [
            pb.CompletedSession(
                lease=pb.LeaseRef(uid=lease.uid, attempt=lease.attempt),
                record=prompt_pb2.SessionRecord(
                    session=session,
                    trajectory_count=1,
                    size_bytes=trajectory.ByteSize(),
                    token_count=2,
                    reward=trajectory.reward,
                    min_version=weights.version,
                    max_version=weights.version,
                ),
            )
            for session, trajectory in zip(lease.missing_sessions, made, strict=True)
        ]
        await self.replay.CompleteSessions(
            pb.CompleteSessionsRequest(
                worker_id="w", store_incarnation=incarnation, sessions=sessions
            )
        )

    def _generate(
        self, lease: prompt_pb2.Lease, session: int, weights: prompt_pb2.WeightsId
    ) -> Trajectory:
        key = TrajectoryKey(lease.uid, session, 0, lease.lineage, lease.attempt)
        return Trajectory(
            schema_version=1,
            key=str(key),
            prompt_token_ids=lease.payload.token_ids,
            response_token_ids=[2 + session, EOS],
            logprobs=[-1.8, -1.8],
            loss_mask=[True, True],
            reward=float(session),
            weight_spans=[
                WeightSpan(lineage=weights.lineage, version=weights.version, begin=0, end=2)
            ],
            finish_reason=FINISH_REASON_STOP,
            temperature=lease.sampling.temperature,
        )


async def test_22_rows_in_batches_of_4_are_5_steps_with_every_prompt_accounted_for(
    tmp_path: Path,
) -> None:
    file = config_file(tmp_path)
    async with served("replay", file) as replay_address:
        endpoint = f"endpoints.replay={replay_address}"
        async with (
            served("store", file, endpoint) as store_address,
            open_channel(replay_address) as to_replay,
            open_channel(store_address) as to_store,
        ):
            replay: Any = replay_pb2_grpc.ReplayBufferServiceStub(to_replay)
            store: Any = store_pb2_grpc.TrajectoryStoreServiceStub(to_store)
            rest = Rest(replay, store)
            config = load_config(file, [endpoint, f"endpoints.store={store_address}"])
            code, _, _ = await asyncio.gather(
                run(config, ProcessOptions(name="trainer")), rest.feed(), rest.work()
            )
            audit = await replay.Audit(pb.AuditRequest())
            unlucky = await replay.LocatePrompt(pb.LocatePromptRequest(uid=UNLUCKY))
            left, missing = await get_trajectories(store, rest.made)

    assert code == 0
    assert audit.ok, audit.violations
    assert (audit.counts.fed, audit.counts.trained) == (22, 20)
    assert dict(audit.counts.dropped) == {"surplus": 2}
    assert (unlucky.group.state, unlucky.group.attempt) == (prompt_pb2.PROMPT_STATE_TRAINED, 2)
    assert "groups_returned" in [event.name for event in unlucky.history]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["training/global_step"] for line in lines] == [1, 2, 3, 4, 5]
    # What was trained on is let go; what was lost on the way is the sweep's.
    assert len(missing) >= 20 * SESSIONS
    assert all(key.startswith(f"{UNLUCKY}_") for key in left)
