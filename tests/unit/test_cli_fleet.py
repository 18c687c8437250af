"""The processes of a run on one machine: who needs whom, and who goes first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.cli.fleet import parts, stop_order
from headrace.cli.keeper import Part, Ports
from headrace.config.config import Config
from headrace.config.rundir import RunDirectory


def config(**sections: Any) -> Config:
    return Config.model_validate(
        {
            "data": {"source": {"kind": "jsonl", "path": "/a"}, "train_batch_size": 4},
            "model": {"architecture": "gpt2", "tokenizer": "/t"},
            "rollout": {"workers": 2},
            **sections,
        }
    )


def made(directory: Path, settings: Config) -> dict[str, Part]:
    return {part.name: part for part in parts(settings, RunDirectory(directory))}


def test_a_run_with_checkpoints_has_a_coordinator_and_a_trainer_that_resumes(
    tmp_path: Path,
) -> None:
    settings = config(checkpoint={"preempt_grace_s": 40})
    found = made(tmp_path, settings)

    assert found["checkpoint"].needs == ("replay", "store")
    trainer = found["trainer"]
    assert trainer.needs == ("replay", "store", "feeder", "checkpoint")
    assert (trainer.is_main, trainer.resumes, trainer.saving_s) == (True, True, 40)
    where = {name: f"127.0.0.1:{number}" for number, name in enumerate(found, 1)}
    command = trainer.command(where, Ports(7, 8))
    assert f"endpoints.checkpoint={where['checkpoint']}" in command.arguments
    assert stop_order(settings) == [
        ["trainer"],
        ["worker-0", "worker-1"],
        ["feeder"],
        ["checkpoint"],
        ["store"],
    ]


def test_without_checkpoints_there_is_no_coordinator_and_a_dead_trainer_stays_dead(
    tmp_path: Path,
) -> None:
    settings = config(trainer={"save_freq": -1})
    found = made(tmp_path, settings)

    assert "checkpoint" not in found
    assert "checkpoint" not in found["trainer"].needs
    assert (found["trainer"].resumes, found["trainer"].saving_s) == (False, 0)
    assert ["checkpoint"] not in stop_order(settings)
