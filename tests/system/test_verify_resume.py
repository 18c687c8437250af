"""`headrace verify-resume` as a user calls it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import stream_rows
import yaml
from launched import headrace, living_in
from long_run import KILLS, SEED, is_long
from scene import small_config

pytestmark = [pytest.mark.timeout(900 + 30 * KILLS), pytest.mark.chaos]


def test_a_rehearsal_is_killed_and_everything_holds(tmp_path: Path) -> None:
    """All roles, the trainer and the coordinator among them."""
    kills = KILLS if is_long() else 3
    steps = max(12, kills * 4 // 5)
    limit_s = 600 + 30 * kills
    config = small_config(tmp_path, rows=4 * steps, sampler={"max_off_policy_strategy": "wait"})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))

    answer = headrace(
        tmp_path,
        "verify-resume", "config.yaml", "--kills", f"{kills}", "--seed", f"{SEED}",
        "--steps", f"{steps}", "--rounds", "1", "--limit-s", f"{limit_s}",
        timeout_s=limit_s + 250,
    )  # fmt: skip

    print(answer.stdout)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "BROKEN" not in answer.stdout
    assert "holds  same: trained on the same prompts as undisturbed" in answer.stdout
    assert f"{kills} random kills" in answer.stdout
    assert "again: headrace verify-resume config.yaml" in answer.stdout
    assert "Traceback" not in answer.stdout + answer.stderr
    assert not (tmp_path / "run").exists(), "the user's own run directory is none of a rehearsal's"
    assert not living_in(tmp_path)


def test_a_stream_cannot_be_rehearsed_and_a_line_says_what_can(tmp_path: Path) -> None:
    config = small_config(tmp_path, trainer={"total_training_steps": 5})
    shutil.copy(stream_rows.__file__, tmp_path)
    source = {"kind": "stream", "function": "stream_rows:numbers", "options": {"count": 40}}
    config["data"]["source"] = source
    config["data"]["shuffle"] = False
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))

    answer = headrace(tmp_path, "verify-resume", "config.yaml")

    assert answer.returncode == 2
    assert "a stream is read once; verify with a jsonl file" in answer.stderr
    assert "Traceback" not in answer.stderr
