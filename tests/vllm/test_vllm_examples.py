"""The example that learns on vLLM does."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

import yaml
from launched import launched
from vllm_world import MARKS

EXAMPLE = Path(__file__).parents[2] / "examples" / "sort_digits_vllm.yaml"
STEPS = 60

pytestmark = MARKS


def test_a_model_with_rotary_positions_learns_on_vllm_and_agrees_with_the_trainer(
    tmp_path: Path,
) -> None:
    config: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    config["run"]["run_dir"] = str(tmp_path / "run")
    config["trainer"]["total_training_steps"] = STEPS
    with launched(tmp_path, config) as run:
        code, output = run.ended(within_s=1700)
        assert code == 0, output
    log = (run.run / "logs" / "worker-0.log").read_text()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    gaps = {line["version"]: line["probe_gap"] for line in lines if "probe_gap" in line}
    rewards = [
        json.loads(line)["critic/rewards/mean"] for line in (run.run / "metrics.jsonl").open()
    ]

    assert len(rewards) == STEPS
    assert mean(rewards[-10:]) > mean(rewards[:5]) + 0.1
    # The head is tied: one that kept old values would be off by a multiple of this.
    assert len(gaps) > STEPS / 2
    assert max(gaps.values()) < 1e-4
