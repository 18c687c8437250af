"""Trajectories of the sizes that are measured, for the store and for the peer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.v1.trajectory_pb2 import Trajectory


@dataclass(frozen=True)
class Load:
    """How many trajectories go into one call, and how long they are."""

    name: str
    count: int
    tokens: int
    """Response tokens each; a token takes about 7 bytes of a trajectory."""

    @property
    def tag(self) -> dict[str, Any]:
        """Give the peer's tag of such a trajectory."""
        return {"status": "finished", "prompt_len": 16, "response_len": self.tokens}


LOADS = (Load("512 x 1 KB", 512, 140), Load("64 x 16 KB", 64, 2300))
QUICK_LOADS = (Load("128 x 1 KB", 128, 140), Load("32 x 16 KB", 32, 2300))


def trajectories(load: Load, round_number: int) -> list[Trajectory]:
    """Make the trajectories of one round."""
    return [
        Trajectory(
            schema_version=1,
            key=f"e0r{i}_{load.tokens}_0_bencha{round_number}",
            prompt_token_ids=range(16),
            response_token_ids=[j % 30_000 for j in range(load.tokens)],
            logprobs=[-0.5] * load.tokens,
            loss_mask=[True] * load.tokens,
            reward=1.0,
        )
        for i in range(load.count)
    ]


def fields_of(one: Trajectory) -> dict[str, Any]:
    """Return a trajectory as the peer's tensors."""
    import torch

    return {
        "prompts": torch.tensor(one.prompt_token_ids),
        "responses": torch.tensor(one.response_token_ids),
        "response_mask": torch.tensor(one.loss_mask, dtype=torch.int64),
        "rollout_log_probs": torch.tensor(one.logprobs),
        "rm_scores": torch.tensor([one.reward]),
    }
