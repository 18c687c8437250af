"""A whole run on vLLM, and at a vLLM server: from the command to the books, through their death."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import yaml
from launched import Launched, headrace, launched
from prometheus_client.parser import text_string_to_metric_families
from vllm_process import server_process
from vllm_world import MARKS

from headrace.config.model import ModelConfig
from headrace.tokenizer.load import load_tokenizer
from headrace.trainer.model import build_model
from headrace.trainer.publisher import save_model

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


def model_of(config: dict[str, Any], directory: Path) -> Path:
    """Write a folder with the model that is trained, as a server wants it; weights do not matter."""
    section, data = ModelConfig(**config["model"]), config["data"]
    length = data["max_prompt_length"] + data["max_response_length"]
    model = build_model(section, load_tokenizer(section), max_length=length)
    directory.mkdir()
    save_model(model, directory)
    return directory


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


def figures_of(run: Launched) -> set[str]:
    """Name what the worker tells of vLLM's work, but for batches, which vLLM has none of."""
    return {
        name
        for name in metrics_of(run)
        if name.startswith("headrace_worker_engine_") and "batch_seconds" not in name
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
        assert figures_of(run) == documented()
        assert metrics_of(run)["headrace_worker_engine_prompt_tokens_total"] > 0
        core_of(run).kill()
        code, output = run.ended(within_s=800)
        assert code == 0, output
        assert run.left() == []

    assert "engine_lost" in log_of(run)
    assert_balanced(run, output)


def test_a_run_at_a_vllm_server_comes_to_its_end_though_that_is_killed_and_the_books_balance(
    tmp_path: Path,
) -> None:
    config = example(tmp_path)
    with server_process(model_of(config, tmp_path / "model"), tmp_path / "server.log") as server:
        config["rollout"]["engine"] = {
            "kind": "vllm_server", "base_urls": [server.url], "look_every_s": 0.5
        }  # fmt: skip
        with launched(tmp_path, config) as run:
            run.until(lambda: run.steps >= 2, within_s=600)
            run.until(lambda: figures_of(run) == documented())
            assert metrics_of(run)["headrace_worker_engine_prompt_tokens_total"] > 0
            server.kill()
            server.start()
            code, output = run.ended(within_s=600)
            assert code == 0, output
            assert run.left() == []

    log = log_of(run)
    assert log.index("server_ejected") < log.rindex("server_admitted")
    assert_balanced(run, output)


def log_of(run: Launched) -> str:
    return (run.run / "logs" / "worker-0.log").read_text()


def assert_balanced(run: Launched, output: str) -> None:
    """Have a run be whole, and its engine agree with its trainer."""
    assert f"{STEPS} of {STEPS}" in output
    assert "holds: every prompt is accounted for" in output
    assert f"{8 * STEPS} trained" in output
    assert headrace(run.directory, "audit", "--run", str(run.run)).returncode == 0
    assert "worker-0 died" not in output
    # Each step's responses were made by the weights that it began with: what differs is the engine.
    steps = [json.loads(line) for line in (run.run / "metrics.jsonl").open()]
    gaps = [step["training/rollout_logprobs_diff_max"] for step in steps]
    assert len(gaps) == STEPS
    assert max(gaps) < 1e-4
