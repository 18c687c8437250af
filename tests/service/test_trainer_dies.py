"""A trainer that is killed again and again, among real services: the run comes to its end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from part_process import started

from headrace.config.config import Config
from headrace.failpoints import VARIABLE
from headrace.rpc.channel import open_channel
from headrace.v1 import replay_pb2, replay_pb2_grpc

STEPS, BATCH, SESSIONS = 6, 4, 2
DEATHS = (
    "trainer.sampled:2",
    "trainer.updated:2",
    "trainer_part.copied",
    "trainer.loaded",
    "trainer_part.written",
    "trainer.committed:3",
    "trainer.published:2",
)
"""Where a life ends, one after the other."""


def config(directory: Path, endpoints: dict[str, str]) -> Config:
    """Six steps, saved every second one; scripted rollouts, a tiny policy."""
    sections: dict[str, Any] = {
        "run": {"run_dir": directory, "run_id": "test"},
        "data": {
            "source": {
                "kind": "python",
                "function": "headrace.feeder.sources.digits:digit_rows",
                "options": {"task": "sort", "digits": 4, "size": 400, "seed": 1},
            },
            "train_batch_size": BATCH,
            "max_prompt_length": 8,
            "max_response_length": 6,
        },
        "model": {
            "architecture": "gpt2",
            "options": {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16},
            "tokenizer": {"alphabet": "0123456789>", "eos": ";"},
        },
        "rollout": {"n": SESSIONS, "engine": {"kind": "scripted", "mean_latency_s": 0.01}},
        "reward": {"kind": "positional"},
        "trainer": {
            "num_warmup_batches": 1,
            "threads": 1,
            "tensorboard": False,
            "save_freq": 2,
            "total_training_steps": STEPS,
        },
        "sampler": {"max_off_policy_threshold": None},
        "endpoints": endpoints,
    }
    return Config.model_validate(sections)


@dataclass
class Around:
    """Everything but the trainer."""

    directory: Path
    endpoints: dict[str, str]

    async def live(self, death: str) -> int | None:
        """Start a trainer that dies at a point, or not; give its exit code."""
        environment = {VARIABLE: death} if death else {}
        run = config(self.directory, self.endpoints)
        async with started(
            "trainer", run, self.directory, "trainer", environment=environment
        ) as part:
            return await part.process.wait()

    def lines(self, name: str) -> list[dict[str, float]]:
        text = (self.directory / name).read_text()
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
async def around(tmp_path: Path) -> AsyncIterator[Around]:
    endpoints: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        for name, package in (
            ("replay", "replay"),
            ("store", "store"),
            ("feeder", "feeder"),
            ("checkpoint", "checkpoint"),
            ("worker-0", "rollout"),
        ):
            run = config(tmp_path, endpoints)
            part = await stack.enter_async_context(started(package, run, tmp_path, name))
            address = await part.address()
            if package == name:
                endpoints[name] = address
        yield Around(tmp_path, endpoints)


@pytest.mark.timeout(900)
async def test_wherever_it_dies_the_next_one_goes_on_and_each_step_is_told_once(
    around: Around,
) -> None:
    for death in DEATHS:
        assert await around.live(death) == -9, death
    assert await around.live("") == 0
    assert await around.live("") == 0  # the run is over: there is nothing to do

    async with open_channel(around.endpoints["replay"]) as channel:
        replay: Any = replay_pb2_grpc.ReplayBufferServiceStub(channel)
        status = await replay.GetReplayStatus(replay_pb2.GetReplayStatusRequest(), timeout=60)
        audit = await replay.Audit(replay_pb2.AuditRequest(), timeout=60)
    assert audit.ok, audit.violations
    assert (audit.counts.trained, status.ended) == (STEPS * BATCH, True)
    assert (status.committed_step, status.saved_step) == (STEPS, STEPS)
    assert len(status.lineages) > 1
    told = around.lines("metrics.jsonl")
    assert [line["step"] for line in told] == list(range(1, STEPS + 1))
    assert around.lines("metrics.abandoned.jsonl")
    assert sorted(path.name for path in (around.directory / "scratch").iterdir()) == []
