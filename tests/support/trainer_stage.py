"""A trainer's process in this one, with peers that the test plays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import torch
from trainer_world import GROUPS, LENGTH, SESSIONS, Peers

from headrace.config.config import Config
from headrace.rpc.process import ProcessOptions
from headrace.trainer.process import run
from headrace.v1 import trainer_pb2_grpc

PEERS = ("replay", "store", "feeder", "checkpoint")


class Stage:
    """A trainer and its peers."""

    def __init__(self, run_dir: Path, address: str, peers: Peers) -> None:
        self.run_dir = run_dir
        self.peers = peers
        self.address = address
        self.announce = run_dir / "trainer.json"
        self.sections: dict[str, Any] = {}
        """Further ones of the configuration."""
        self.coordinator = peers.coordinator

    async def run(self, **trainer: Any) -> int:
        """Run the trainer to its end; without checkpoints, unless `save_freq` is given."""
        torch.manual_seed(0)  # of the workers
        options = ProcessOptions(name="trainer", announce=self.announce)
        return await run(Config.model_validate(self.settings(**trainer)), options)

    def settings(self, **trainer: Any) -> dict[str, Any]:
        """Give the configuration."""
        return {
            "run": {"run_dir": self.run_dir, "run_id": "r"},
            "data": {
                "source": {"kind": "jsonl", "path": "none"},
                "train_batch_size": GROUPS,
                "max_prompt_length": 4,
                "max_response_length": LENGTH,
            },
            "model": {
                "architecture": "gpt2",
                "options": {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 8},
                "tokenizer": {"alphabet": "0123", "eos": ";"},
            },
            "rollout": {"n": SESSIONS},
            "trainer": {
                "threads": 1,
                "tensorboard": False,
                "optim": {"lr": 3e-3},
                "save_freq": -1,
                **trainer,
            },
            "endpoints": dict.fromkeys(PEERS, self.address),
            **self.sections,
        }

    @property
    def metrics(self) -> list[dict[str, float]]:
        text = (self.run_dir / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def stub(self) -> tuple[grpc.aio.Channel, Any]:
        """Connect to the trainer, which must have been announced."""
        channel = grpc.aio.insecure_channel(json.loads(self.announce.read_text())["address"])
        return channel, trainer_pb2_grpc.TrainerServiceStub(channel)
