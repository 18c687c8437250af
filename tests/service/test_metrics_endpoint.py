"""docs/metrics.md says what real processes serve, and all of it."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from part_process import Part, started
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.config.config import Config
from headrace.rpc import announce

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SECTIONS = {
    "replay": "Replay buffer",
    "feeder": "Prompt feeder",
    "store": "Trajectory store",
    "checkpoint": "Checkpoint coordinator",
    "worker-0": "Rollout worker",
    "trainer": "Trainer",
}
EVERY = "Every process"
ELSEWHERE = "Rollout worker with vLLM"
"""Compared in tests/vllm."""
OF_PROMETHEUS = ("process_", "python_")


@dataclass(frozen=True)
class Documented:
    """A row of the page."""

    name: str
    type: str
    labels: frozenset[str]


def documented() -> dict[str, set[Documented]]:
    """Read the page: the rows of its tables by section."""
    found: defaultdict[str, set[Documented]] = defaultdict(set)
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("| `headrace_"):
            name, kind, labels, meaning = (cell.strip() for cell in line.strip("|").split("|"))
            assert meaning.endswith("."), line
            row = Documented(name.strip("`"), kind, frozenset(re.findall(r"`(\w+)`", labels)))
            found[section].add(row)
    return found


def config(directory: Path, **endpoints: str) -> Config:
    """A run that trains for ever: small, scripted, without a GPU."""
    sections: dict[str, Any] = {
        "run": {"run_dir": directory, "run_id": "test"},
        "data": {
            "source": {
                "kind": "python",
                "function": "headrace.feeder.sources.digits:digit_rows",
                "options": {"task": "sort", "digits": 4, "size": 20_000, "seed": 1},
            },
            "train_batch_size": 4,
            "max_prompt_length": 8,
            "max_response_length": 6,
        },
        "model": {
            "architecture": "gpt2",
            "options": {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16},
            "tokenizer": {"alphabet": "0123456789>", "eos": ";"},
        },
        "rollout": {"n": 2, "engine": {"kind": "scripted", "mean_latency_s": 0.01}},
        "reward": {"kind": "positional"},
        "trainer": {
            "num_warmup_batches": 1,
            "threads": 1,
            "tensorboard": False,
            "save_freq": 2,
        },
        "sampler": {"max_off_policy_threshold": 4},
        "endpoints": endpoints,
    }
    return Config.model_validate(sections)


def fetch(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


async def scrape(part: Part) -> dict[str, Metric]:
    """Ask a process for its metrics, until its event loop answers; by name as queried."""
    announced = announce.read(part.announcement)
    assert announced is not None
    while True:
        text = await asyncio.to_thread(fetch, announced.metrics)
        families = text_string_to_metric_families(text)
        found = {f"{f.name}_total" if f.type == "counter" else f.name: f for f in families}
        if value(found["headrace_loop_answered"]):
            return found


Scraped = dict[str, dict[str, Metric]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scraped(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scraped]:
    """Start all six as processes of their own, and scrape them when steps have been made."""
    directory = tmp_path_factory.mktemp("run")
    async with AsyncExitStack() as stack:
        parts: dict[str, Part] = {}
        endpoints: dict[str, str] = {}
        for name, package in (
            ("replay", "replay"),
            ("feeder", "feeder"),
            ("store", "store"),
            ("checkpoint", "checkpoint"),
            ("trainer", "trainer"),
            ("worker-0", "rollout"),
        ):
            run = config(directory, **endpoints)
            parts[name] = await stack.enter_async_context(started(package, run, directory, name))
            if name in ("replay", "feeder", "store", "checkpoint"):
                endpoints[name] = await parts[name].address()
        await parts["worker-0"].address()
        await parts["trainer"].address()
        async with asyncio.timeout(250):
            while value((await scrape(parts["trainer"]))["headrace_trainer_step"]) < 3:
                assert all(part.process.returncode is None for part in parts.values())
                await asyncio.sleep(0.2)
            while not value((await scrape(parts["checkpoint"]))["headrace_checkpoint_step"]):  # noqa: ASYNC110 (no event for it)
                await asyncio.sleep(0.2)
        yield {name: await scrape(part) for name, part in parts.items()}


def value(metric: Metric, **labels: str) -> float:
    [found] = [sample.value for sample in metric.samples if sample.labels == labels]
    return float(found)


# Six processes start, two of them with torch.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("process", list(SECTIONS))
async def test_the_page_names_what_a_process_serves_and_nothing_else(
    scraped: Scraped, process: str
) -> None:
    page = documented()
    rows = page[EVERY] | page[SECTIONS[process]]
    served = {n: f for n, f in scraped[process].items() if not n.startswith(OF_PROMETHEUS)}

    assert set(served) == {row.name for row in rows}
    assert {name: family.type for name, family in served.items()} == {
        row.name: row.type for row in rows
    }


@pytest.mark.parametrize("process", list(SECTIONS))
async def test_every_sample_has_the_labels_that_the_page_names(
    scraped: Scraped, process: str
) -> None:
    page = documented()
    labels = {row.name: row.labels for row in page[EVERY] | page[SECTIONS[process]]}

    for name, family in scraped[process].items():
        for sample in family.samples:
            if not name.startswith(OF_PROMETHEUS):
                assert set(sample.labels) - {"le"} == labels[name], name


async def test_the_page_has_a_section_for_each_process_and_no_other() -> None:
    assert set(documented()) == {EVERY, ELSEWHERE, *SECTIONS.values()}


async def test_what_is_served_is_what_happened(scraped: Scraped) -> None:
    replay, worker, trainer = scraped["replay"], scraped["worker-0"], scraped["trainer"]
    store, feeder = scraped["store"], scraped["feeder"]
    prompts = replay["headrace_replay_prompts"]

    assert sum(s.value for s in prompts.samples) == value(replay["headrace_replay_fed_total"])
    assert value(replay["headrace_replay_balance_ok"]) == 1
    assert value(prompts, state="trained", reason="") >= 8
    assert value(feeder["headrace_feeder_rows_registered_total"]) >= 8
    assert value(store["headrace_store_rows_put_total"]) >= 16
    assert value(store["headrace_store_rows_read_total"]) >= 16
    assert value(worker["headrace_worker_sessions_total"]) >= 16
    assert value(worker["headrace_worker_tokens_generated_total"]) > 0
    assert value(trainer["headrace_trainer_tokens_total"]) > 0
    assert value(scraped["checkpoint"]["headrace_snapshot_bytes"]) > 0
    assert value(trainer["headrace_trainer_seconds_total"], phase="step") > 0
    assert 0 <= value(trainer["headrace_trainer_reward_mean"]) <= 1
