"""A storage with checkpoints, a ledger's answers, and plans made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checkpoint_files import (
    L0,
    directory_at,
    position_of,
    write_checkpoint,
)

from headrace.checkpoint.directory import CheckpointDirectory
from headrace.checkpoint.plan import (
    Plan,
)
from headrace.checkpoint.planner import Planner
from headrace.config.config import Config
from headrace.v1 import replay_pb2, resume_pb2, store_pb2

Status = replay_pb2.GetReplayStatusResponse


def config(**sections: Any) -> Config:
    """A small run; sections are put in."""
    return Config.model_validate(
        {
            "data": {
                "source": {"kind": "jsonl", "path": "rows.jsonl"},
                "train_batch_size": 4,
                "max_prompt_length": 8,
                "max_response_length": 8,
            },
            "model": {
                "architecture": "gpt2",
                "tokenizer": {"alphabet": "0123456789", "eos": "#"},
            },
            **sections,
        }
    )


class World:
    """A storage, a ledger's answers, and plans made from them."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.directory: CheckpointDirectory = directory_at(tmp_path / "storage")
        self.store = store_pb2.GetStoreStatusResponse(store_incarnation="s1", row_count=9)

    def write(self, *steps: int, **options: Any) -> None:
        for step in steps:
            write_checkpoint(self.directory, step, self.tmp_path / "scratch", **options)
            self.directory.point_to(step)

    def file(self, step: int, name: str) -> Path:
        return self.tmp_path / "storage" / f"global_step_{step}" / name

    async def plan(
        self,
        status: Status,
        *,
        facts: dict[str, str] | None = None,
        begun: resume_pb2.ResumeState | None = None,
        save_freq: int = 2,
        **resume: Any,
    ) -> Plan:
        settings = config(run={"run_id": "r"}, trainer={"save_freq": save_freq}, resume=resume)
        return await Planner(settings, self.directory).plan(
            status, self.store, facts or {}, begun=begun
        )


def status(committed: int = 0, **fields: Any) -> Status:
    fields = {"lineages": [L0], "lineage": "l0", "store_incarnation": "s1", **fields}
    return Status(committed_step=committed, **{"position": position_of(committed) + 50, **fields})


def fresh(**fields: Any) -> Status:
    return status(fresh=True, lineages=[], lineage="l9", **fields)
