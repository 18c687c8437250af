"""What a rehearsal makes of a user's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scene import small_config

from headrace.config.config import Config
from headrace.config.rollout import ScriptedEngine
from headrace.verify.rehearsal import rehearse


def rehearsed(directory: Path, **sections: Any) -> Config:
    config = Config.model_validate(small_config(directory, **sections))
    return rehearse(config, run_dir=directory / "rehearsal", steps=4, seed=1)


def test_responses_take_time_and_are_reported_if_the_users_are(tmp_path: Path) -> None:
    rollout = {"partial_rollout": True, "journal_tokens_every": 64}
    config = rehearsed(tmp_path, rollout=rollout, data={"max_response_length": 80})

    assert isinstance(config.rollout.engine, ScriptedEngine)
    assert config.rollout.partial_rollout
    assert config.rollout.engine.token_latency_s * 80 == 3.0
    assert config.rollout.journal_tokens_every == 10


def test_otherwise_they_are_there_at_once(tmp_path: Path) -> None:
    config = rehearsed(tmp_path)

    assert isinstance(config.rollout.engine, ScriptedEngine)
    assert config.rollout.engine.token_latency_s == 0
    assert config.rollout.journal_tokens_every is None


def test_it_uses_no_gpu(tmp_path: Path) -> None:
    values = small_config(tmp_path)
    values["rollout"] |= {"engine": {"kind": "vllm"}, "gpus": [1]}
    config = rehearse(
        Config.model_validate(values), run_dir=tmp_path / "rehearsal", steps=4, seed=1
    )

    assert config.rollout.gpus is None
    assert config.trainer.device == "cpu"
