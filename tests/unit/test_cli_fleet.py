"""The processes of a run on one machine: who needs whom, and who goes first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.fleet import parts, stop_order
from headrace.cli.keeper import Part, Ports
from headrace.config.config import Config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError


def config(**sections: Any) -> Config:
    return Config.model_validate(
        {
            "data": {"source": {"kind": "jsonl", "path": "/a"}, "train_batch_size": 4},
            "model": {"architecture": "gpt2", "tokenizer": "/t"},
            "rollout": {"workers": 2},
            **sections,
        }
    )


def made(
    directory: Path, settings: Config, environment: Mapping[str, str] | None = None
) -> dict[str, Part]:
    found = parts(settings, RunDirectory(directory), environment or {})
    return {part.name: part for part in found}


def shown(directory: Path, settings: Config, environment: Mapping[str, str]) -> list[str | None]:
    """Give the GPUs that each worker sees."""
    found = made(directory, settings, environment)
    where = dict.fromkeys(found, "127.0.0.1:1")
    workers = [found[name].command(where, Ports(7, 8)) for name in ("worker-0", "worker-1")]
    return [command.environment.get("CUDA_VISIBLE_DEVICES") for command in workers]


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


def test_workers_share_out_the_gpus_in_order(tmp_path: Path) -> None:
    vllm = {"kind": "vllm", "tensor_parallel_size": 2}
    two = config(rollout={"workers": 2, "engine": vllm, "gpus": [1, 2, 3, 4]})
    one = config(rollout={"workers": 2, "gpus": [2, 1]})

    assert shown(tmp_path, two, {}) == ["1,2", "3,4"]
    assert shown(tmp_path, one, {}) == ["2", "1"]
    assert shown(tmp_path, one, {"CUDA_VISIBLE_DEVICES": "5, GPU-a,GPU-b"}) == ["GPU-b", "GPU-a"]
    assert shown(tmp_path, config(), {"CUDA_VISIBLE_DEVICES": "5"}) == [None, None]


def test_a_gpu_that_the_launcher_does_not_see_is_named(tmp_path: Path) -> None:
    settings = config(rollout={"workers": 2, "gpus": [1, 2]})
    with pytest.raises(UsageError, match="has GPU 2, and CUDA_VISIBLE_DEVICES=4,5 shows 2,"):
        made(tmp_path, settings, {"CUDA_VISIBLE_DEVICES": "4,5"})
