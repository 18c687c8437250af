"""A whole run on vLLM: from the command to the books, through the death of vLLM."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import yaml
from launched import Launched, headrace, launched
from prometheus_client.parser import text_string_to_metric_families
from vllm_world import MARKS

ROOT = Path(__file__).parents[2]
STEPS = 6

pytestmark = MARKS


def example(directory: Path) -> dict[str, Any]:
    """Sort four digits, in small: each step is made by the weights that it trains."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "examples/sort_digits.yaml").read_text())
    config["run"]["run_dir"] = str(directory / "run")
    config["data"]["train_batch_size"] = 8
    config["rollout"] = {
        "n": 4,
        "temperature": 0.7,
        "engine": {"kind": "vllm", "threads": 1, "kv_cache_memory_bytes": 2**26},
    }
    config["trainer"] |= {
        "trainer_mode": "sync",
        "num_warmup_batches": 0,
        "total_training_steps": STEPS,
    }
    return config


def core_of(run: Launched) -> psutil.Process:
    """Find the process that the worker's vLLM computes in."""
    children = psutil.Process(run.pid("worker-0")).children()
    [core] = [child for child in children if "EngineCore" in " ".join(child.cmdline())]
    return core


def metrics_of(run: Launched) -> dict[str, float]:
    address = json.loads((run.run / "endpoints" / "worker-0.json").read_text())["metrics"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }


def documented() -> set[str]:
    """Read the names that docs/metrics.md gives of a worker with vLLM."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    section = page.split("\n## Rollout worker with vLLM\n")[1].split("\n## ")[0]
    return {line.split("`")[1] for line in section.splitlines() if line.startswith("| `headrace_")}


def test_a_run_on_vllm_comes_to_its_end_though_vllm_is_killed_and_the_books_balance(
    tmp_path: Path,
) -> None:
    with launched(tmp_path, example(tmp_path)) as run:
        run.until(lambda: run.steps >= 2, within_s=900)
        found = metrics_of(run)
        core_of(run).kill()
        code, output = run.ended(within_s=800)
        assert code == 0, output
        assert run.left() == []
        log = (run.run / "logs" / "worker-0.log").read_text()
        steps = [json.loads(line) for line in (run.run / "metrics.jsonl").open()]

    assert f"{STEPS} of {STEPS}" in output
    assert "holds: every prompt is accounted for" in output
    assert f"{8 * STEPS} trained" in output
    assert headrace(tmp_path, "audit", "--run", str(tmp_path / "run")).returncode == 0
    assert "engine_lost" in log
    assert "worker-0 died" not in output
    # Each step's responses were made by the weights that it began with: what differs is the engine.
    gaps = [step["training/rollout_logprobs_diff_max"] for step in steps]
    assert len(gaps) == STEPS
    assert max(gaps) < 1e-4
    served = {name for name in found if name.startswith("headrace_worker_engine_")}
    assert {name for name in served if "batch_seconds" not in name} == documented()
    assert found["headrace_worker_engine_prompt_tokens_total"] > 0
